"""A local cluster: the embedded ZooKeeper, controllers and brokers as supervised processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio

from anabranch.command_error import CommandError
from anabranch.local.directory import held_directory
from anabranch.local.embedded_zookeeper import EmbeddedZookeeper
from anabranch.local.plan import (
    HOST,
    LocalClusterConfig,
    ProcessPlan,
    log_dir,
    metrics_address,
    plan_brokers,
    plan_controllers,
    validate,
)
from anabranch.local.ports import held_port
from anabranch.local.supervisor import Child, Supervisor
from anabranch.protocol.generated.describe_cluster import DescribeClusterRequest
from anabranch.protocol.plurals import counted
from anabranch.runtime.channel import Channel
from anabranch.runtime.real_trio import TrioNetwork

CHECK_EVERY_S = 0.05
CHECK_TIMEOUT_S = 5.0
ZOOKEEPER, CONSOLE = "zookeeper", "console"


@dataclass(slots=True)
class LocalCluster:
    """A running cluster. ``bootstrap`` does not change when brokers are restarted."""

    config: LocalClusterConfig
    zookeeper: str
    brokers: list[ProcessPlan]
    controllers: list[ProcessPlan]
    supervisor: Supervisor
    is_serving: bool = False

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{plan.port}" for plan in self.brokers)

    @property
    def controller_addresses(self) -> dict[int, str]:
        """``host:port`` of each controller's listener by its id."""
        return {plan.node_id: f"{HOST}:{plan.port}" for plan in self.controllers}

    @property
    def metrics(self) -> dict[str, str]:
        """The address (``host:port``) of each process's metrics and health, by name."""
        return {plan.name: plan.properties["metrics.listener"] for plan in [*self.controllers, *self.brokers]}

    @property
    def console(self) -> str | None:
        """The console's address; None when there is no console."""
        return None if self.config.console_port is None else f"{HOST}:{self.config.console_port}"

    def pid(self, name: str) -> int:
        """Process id of ``broker-1``, ``controller-1000`` or ``zookeeper``."""
        return self.supervisor.children[name].pid

    def describe(self) -> dict[str, Any]:
        """The content of ``--ready-file``."""
        return {
            "bootstrap": self.bootstrap,
            "zookeeper": self.zookeeper,
            "pids": {
                "zookeeper": self.pid(ZOOKEEPER),
                "controller": [self.pid(plan.name) for plan in self.controllers],
                "brokers": {str(plan.node_id): self.pid(plan.name) for plan in self.brokers},
            },
            "metrics": self.metrics,
            "console": self.console,
            "log_dirs": {str(plan.node_id): log_dir(self.config.directory, plan.node_id) for plan in self.brokers},
        }

    def write_ready_file(self) -> None:
        """Replace the file of ``--ready-file`` atomically, so that a reader never sees half of it."""
        path = self.config.ready_file
        if path is None or not self.is_serving:
            return
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self.describe(), indent=2) + "\n")
        temporary.replace(path)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one process; the supervisor restarts a process that dies of it."""
        os.kill(self.pid(name), number)

    async def wait_until_serving(self) -> None:
        """Return when every broker responds and lists all brokers. Raises ``CommandError`` at the deadline."""
        limit_s = self.config.start_timeout_ms / 1000
        with trio.move_on_after(limit_s):
            for plan in self.brokers:
                while not await self._ask_for_all(plan):
                    await trio.sleep(CHECK_EVERY_S)
            return
        children = self.supervisor.children.values()
        down = [child for child in children if not child.running] or list(children)
        reports = "; ".join(f"{child.name}: {child.last_lines(3) or 'no output'}" for child in down)
        raise CommandError(f"the cluster was not ready within {limit_s:g} s (--start-timeout-ms): {reports}")

    async def _ask_for_all(self, plan: ProcessPlan) -> bool:
        with trio.move_on_after(CHECK_TIMEOUT_S):
            try:
                async with Channel.open(TrioNetwork(), HOST, plan.port, client_id="anabranch-up") as channel:
                    response = await channel.request(DescribeClusterRequest(), timeout_s=CHECK_TIMEOUT_S)
            except OSError:
                return False
            return {broker.broker_id for broker in response.brokers} >= {other.node_id for other in self.brokers}
        return False


def _remove_ready_file(config: LocalClusterConfig) -> None:
    if config.ready_file is not None:
        config.ready_file.unlink(missing_ok=True)


@asynccontextmanager
async def run_local_cluster(
    config: LocalClusterConfig, *, report_line: Callable[[str], None], restart: bool = True
) -> AsyncIterator[LocalCluster]:
    """Start all processes, yield the cluster once it serves, and stop all processes at the end of the block.

    Raises ``ConfigError`` for invalid sizes, and ``CommandError`` when another cluster runs in the directory, a port is
    taken, or a process does not start. With ``restart=False`` a process that dies is not restarted.
    """
    validate(config)
    with ExitStack() as held:
        directory = Path(config.directory).resolve()
        if exists := directory.is_dir():
            held.enter_context(held_directory(directory))
        broker_ports = [
            held.enter_context(held_port(HOST, config.port + index if config.port else 0))
            for index in range(config.brokers)
        ]
        controller_ports = [held.enter_context(held_port(HOST)) for _ in range(config.controllers)]
        host, first = metrics_address(config)
        metrics_ports = [
            held.enter_context(held_port(host, first + index if first else 0, key="metrics.listener"))
            for index in range(config.brokers + config.controllers)
        ]
        zookeeper_port = held.enter_context(held_port(HOST))
        if config.console_port is not None:
            port = held.enter_context(held_port(HOST, config.console_port, key="--console-port"))
            config = replace(config, console_port=port)
        if not exists:  # made last, so that a port that is taken leaves no empty directory
            held.enter_context(held_directory(directory))
        async with _run_on_ports(
            config,
            (broker_ports, metrics_ports[: config.brokers]),
            (controller_ports, metrics_ports[config.brokers :]),
            zookeeper_port,
            report_line=report_line,
            restart=restart,
        ) as cluster:
            yield cluster


@asynccontextmanager
async def _run_on_ports(
    config: LocalClusterConfig,
    broker_ports: tuple[list[int], list[int]],
    controller_ports: tuple[list[int], list[int]],
    zookeeper_port: int,
    *,
    report_line: Callable[[str], None],
    restart: bool,
) -> AsyncIterator[LocalCluster]:
    directory = Path(config.directory).resolve()
    _remove_ready_file(config)  # of a run that was killed
    if (directory / ZOOKEEPER).is_dir():
        report_line(f"using the data of an earlier run in {directory}; --dir names another directory")
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    config = replace(config, directory=str(directory))
    zookeeper = EmbeddedZookeeper(str(directory / ZOOKEEPER), client_port=zookeeper_port)
    zookeeper.prepare()
    cluster = LocalCluster(
        config,
        zookeeper.connect_string,
        plan_brokers(config, zookeeper.connect_string, *broker_ports),
        plan_controllers(config, zookeeper.connect_string, *controller_ports),
        Supervisor(report_line=report_line, on_restart=lambda _: cluster.write_ready_file(), restart=restart),
    )
    async with trio.open_nursery() as nursery:
        supervisor = cluster.supervisor
        try:
            report_line("starting ZooKeeper")
            supervisor.add(Child(ZOOKEEPER, zookeeper.command, str(directory / "logs" / "zookeeper.log")), nursery)
            await zookeeper.wait_until_serving(config.start_timeout_ms / 1000)
            report_line(f"starting {counted(config.controllers, 'controller')} and {counted(config.brokers, 'broker')}")
            for plan in [*cluster.controllers, *cluster.brokers]:
                Path(plan.config_path).write_text(plan.properties_text())
                argv = [sys.executable, "-m", f"anabranch.{plan.role}", "--config", plan.config_path]
                supervisor.add(Child(plan.name, argv, str(directory / "logs" / f"{plan.name}.log")), nursery)
            await cluster.wait_until_serving()
            if cluster.console is not None:
                argv = [sys.executable, "-m", "anabranch.cli.main", "console", "-b", cluster.bootstrap]
                argv += ["--listen", cluster.console]
                supervisor.add(Child(CONSOLE, argv, str(directory / "logs" / "console.log")), nursery)
            cluster.is_serving = True
            cluster.write_ready_file()
            yield cluster
        finally:
            cluster.is_serving = False
            with trio.CancelScope(shield=True):
                await supervisor.stop([name for name in (CONSOLE,) if name in supervisor.children])
                await supervisor.stop([plan.name for plan in cluster.brokers if plan.name in supervisor.children])
                await supervisor.stop([plan.name for plan in cluster.controllers if plan.name in supervisor.children])
                await supervisor.stop([name for name in (ZOOKEEPER,) if name in supervisor.children])
            _remove_ready_file(config)
            nursery.cancel_scope.cancel()
