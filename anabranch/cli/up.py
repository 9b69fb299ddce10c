"""``anabranch up``: a local cluster in the foreground."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter
from rich.console import Console

from anabranch.cli.options import DEFAULT_BOOTSTRAP, Int, Settings
from anabranch.cli.own_command import this_command
from anabranch.local.cluster import LocalCluster, run_local_cluster
from anabranch.local.plan import START_TIMEOUT_MS, LocalClusterConfig, parse_overrides

DEFAULT_PORT = 9092
DEFAULT_CONSOLE_PORT = 8480


def up(
    *,
    brokers: Int = 3,
    controllers: Int = 1,
    dir: Path = Path("anabranch-data"),
    port: Int = DEFAULT_PORT,
    console_port: Int | None = None,
    no_console: Annotated[bool, Parameter(negative=())] = False,
    ready_file: Path | None = None,
    start_timeout_ms: Int = START_TIMEOUT_MS,
    set_: Settings = None,
) -> int:
    """Run ZooKeeper, a controller, brokers and the console on this machine until Ctrl-C.

    Parameters
    ----------
    brokers
        How many brokers; their ids start at 1.
    controllers
        How many controllers; one is active, the others stand by.
    dir
        The directory of logs, configuration and ZooKeeper's data. Data of an earlier run is used again. Only one
        cluster at a time can run in it.
    port
        The first broker's port, the others take the next ones; 0 takes free ones.
    console_port
        The console's port; by default 8480, or a free one if --port is not 9092.
    no_console
        Do not run the console.
    ready_file
        Written as JSON when the cluster serves, and again whenever a process was restarted. Removed when the cluster
        starts and when it stops.
    start_timeout_ms
        How long the start of ZooKeeper may take, and then that of the other processes.
    set_
        A config key of the brokers, such as log.retention.ms=3600000; may be given many times. docs/configuration.md
        has the keys, and anabranch configs describe broker 1 --all shows them while the cluster runs.
    """
    if console_port is None:
        console_port = DEFAULT_CONSOLE_PORT if port == DEFAULT_PORT else 0
    chosen = None if no_console or find_spec("starlette") is None else console_port
    overrides = parse_overrides(set_ or [])
    config = LocalClusterConfig(
        str(dir), brokers, controllers, port, overrides, chosen, ready_file, start_timeout_ms=start_timeout_ms
    )
    trio.run(_serve, config)
    return 0


async def _serve(config: LocalClusterConfig) -> None:
    console = Console(highlight=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(_cancel_on_signal, nursery.cancel_scope, console)
        async with run_local_cluster(config, report_line=console.print) as cluster:
            console.print(welcome(cluster, this_command()), soft_wrap=True)
            await trio.sleep_forever()


def welcome(cluster: LocalCluster, command: str) -> str:
    """A text with the running servers and the next commands to try; ``command`` starts this program."""
    bootstrap = cluster.bootstrap
    server = "" if bootstrap.split(",")[0] == DEFAULT_BOOTSTRAP else f" -b {bootstrap}"
    metrics = "".join(f"\n  {name:<15} http://{address}/metrics" for name, address in cluster.metrics.items())
    controllers = ", ".join(f"{number} at {address}" for number, address in cluster.controller_addresses.items())
    page = f"Console: http://{cluster.console}/\n" if cluster.console is not None else ""
    return f"""
[bold]Anabranch serves at[/bold] {bootstrap}
{page}Controllers {controllers} (for --bootstrap-controller)
ZooKeeper at {cluster.zookeeper}, data and logs in {cluster.config.directory}
Metrics for Prometheus (health at /health/ready):{metrics}

Try in another terminal:
  {command} topics create events --partitions 6{server}
  seq 10 | {command} produce events{server}
  {command} consume events --from-beginning --max-messages 10{server}
  {command} topics alter events --partitions 8 --wait{server}
Any Kafka client works with the same bootstrap servers. Ctrl-C stops everything.
"""


async def _cancel_on_signal(
    scope: trio.CancelScope, console: Console, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            console.print("stopping the cluster")
            scope.cancel()
            return
