"""``anabranch demo``: runs the demo in an empty directory, and prints its verdict."""

from __future__ import annotations

import json
import os
import shutil
import sys
import webbrowser
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import trio
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from anabranch.cli.exit_status import DONE, FAILED
from anabranch.cli.options import Int, JsonFile
from anabranch.cli.own_command import this_command
from anabranch.command_error import CommandError, UsageError
from anabranch.demo.hand_over import Percentiles
from anabranch.demo.run import PAGE_NAME, PARTITIONS, STREAM_S, TOPIC, DemoResult, run_demo
from anabranch.demo.verify import RunVerdict
from anabranch.demo.view import LiveView
from anabranch.local.cluster import run_local_cluster
from anabranch.local.plan import LocalClusterConfig
from anabranch.protocol.plurals import counted

BROKERS = 3
MARKER = ".anabranch-demo"


def demo(
    *,
    json_: JsonFile = None,
    events: Int | None = None,
    seconds: float = STREAM_S,
    dir: Path = Path("anabranch-demo"),
    watch: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Split and merge a topic's partitions under load, and prove that every key kept its order.

    Starts ZooKeeper, a controller and three brokers; producers stream real events into a topic of 4 partitions, which
    is resized to 6, 9, 6, 4, 8 and 4. The last three resizes begin while marked partitions drain. A group of three
    consumers keeps a state for every key. One broker is killed meanwhile. A control topic gets the same events and
    resizes without ordered delivery. Then the exported segment files are audited with Spark. Exit status 0 and PASS, or
    1 and the first offending records.

    Parameters
    ----------
    events
        Stream only this many events, the first ones.
    seconds
        The duration of the stream. The resizes happen during this time. Slow resizes prolong the stream.
    dir
        The directory for logs, the workers' files and the exported segments. They stay there until the next demo
        replaces them.
    watch
        Open the console in a browser. After the demo, the cluster and the console run until Ctrl-C.
    """
    if events is not None and events < 1:
        raise UsageError(f"--events {events}: must be at least 1")
    if seconds <= 0:
        raise UsageError(f"--seconds {seconds:g}: must be more than 0")
    console = Console()
    prepare(dir)

    def show_result(result: DemoResult) -> None:
        if json_ is not None:
            json_.write_text(json.dumps(result.to_json(), indent=2, default=str) + "\n")
        show(result, dir, console)

    if watch and find_spec("starlette") is None:
        raise CommandError("--watch opens the console, which is not installed: pip install 'anabranch[console]'")
    return DONE if trio.run(_run, dir, events, seconds, console, watch, show_result) else FAILED


def prepare(directory: Path) -> None:
    """Empty the directory. Raises ``CommandError`` when it has other files than those of an earlier demo."""
    marker = directory / MARKER
    if directory.exists() and not marker.exists() and any(directory.iterdir()):
        raise CommandError(
            f"{directory} has files, but not of an earlier demo; give the demo its own directory with --dir"
        )
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    marker.touch()


def has_screen(environment: Mapping[str, str]) -> bool:
    """Whether a browser would have a window of its own. A browser in the terminal would cover the demo."""
    return sys.platform in ("darwin", "win32") or any(environment.get(key) for key in ("DISPLAY", "WAYLAND_DISPLAY"))


async def _run(
    directory: Path,
    events: int | None,
    seconds: float,
    console: Console,
    watch: bool,
    show_result: Callable[[DemoResult], None],
) -> bool:
    view = LiveView(console)
    config = LocalClusterConfig(str(directory / "cluster"), brokers=BROKERS, console_port=0 if watch else None)
    async with run_local_cluster(config, report_line=view.stage) as cluster:
        if cluster.console is not None:
            console.print(f"The console: http://{cluster.console}/topics/{TOPIC}", highlight=False)
            if has_screen(os.environ):
                await trio.to_thread.run_sync(
                    webbrowser.open, f"http://{cluster.console}/topics/{TOPIC}", abandon_on_cancel=True
                )
        with view:
            result = await run_demo(cluster, directory, events, view, seconds)
        if watch:
            show_result(result)
            console.print(f"The cluster at {cluster.bootstrap} and the console run until Ctrl-C.", highlight=False)
            await trio.sleep_forever()
    show_result(result)
    return result.passed


def show(result: DemoResult, directory: Path, console: Console) -> None:
    """Print the result on one screen: the facts, PASS or FAIL with the first offending records, the next commands."""
    verdict = result.verdict
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_row("events, keys, moves of keys", f"{verdict.events:,}, {verdict.keys:,}, {result.keys_moved:,}")
    facts.add_row("partitions", " -> ".join(map(str, [PARTITIONS, *(done.partitions for done in result.steps)])))
    for done in result.steps:
        if done.killed is not None:
            facts.add_row("killed", f"broker {done.killed}, while {done.partitions_before} became {done.partitions}")
    facts.add_row("written in, delivered after", _stream_text(result))
    facts.add_row("hand-over at splits", hand_over_text(result.hand_over_growing))
    facts.add_row("hand-over at merges", hand_over_text(result.hand_over_shrinking))
    facts.add_row("hand-over, broker killed", hand_over_text(result.hand_over_killed))
    facts.add_row("marked partitions gone", "no" if result.drained_s is None else f"after {result.drained_s:.1f} s")
    facts.add_row("exported", f"{counted(result.exported.segments, 'segment file')}, {result.exported.bytes:,} bytes")
    facts.add_row("Spark, from these files", spark_text(result.audit))
    console.print(facts, highlight=False)
    console.print(verdicts(result), highlight=False)
    for line in verdict.examples:
        console.print(line, style="red", highlight=False)
    for check in result.audit.get("checks", []):
        for violation in check.get("violations", []):
            console.print(f"{check['name']}: {violation}", style="red", highlight=False)
    console.print("[bold green]PASS[/]" if result.passed else "[bold red]FAIL[/]")
    command = this_command()
    for line in (
        f"The audit again: {command} audit {directory / 'export'} --order-by tsv:0",
        f"Every split and merge: {directory / PAGE_NAME}; live, in the console: {command} demo --watch",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _stream_text(result: DemoResult) -> str:
    text = f"{result.produce_s:.1f} s, {result.deliver_s:.1f} s"
    return f"{text}; producers waited {result.paused_s:.1f} s for slow resizes" if result.paused_s >= 0.1 else text


def spark_text(audit: Mapping[str, Any]) -> str:
    """The number of decided checks of the audit, and their outcomes."""
    names: dict[str, list[str]] = {"passed": [], "violated": [], "unknown": []}
    for check in audit.get("checks", []):
        names[check["status"]].append(check["name"])
    decided = len(names["passed"]) + len(names["violated"])
    text = f"{decided} of {decided + len(names['unknown'])} checks decided, {len(names['passed'])} passed"
    return f"{text}, violated: {', '.join(names['violated'])}" if names["violated"] else text


def hand_over_text(took: Percentiles) -> str:
    """Format the time between the save of the source's last record and the delivery of the target's first record."""
    if took.p50_ms is None or took.p99_ms is None:
        return "no key waited"
    return f"p50 {took.p50_ms:.1f} ms, p99 {took.p99_ms:.1f} ms ({counted(took.count, 'key', form=',')} waited)"


def verdicts(result: DemoResult) -> Table:
    """A table of the ordered topic's results beside those of the control."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "ordered", "control: hash modulo count"):
        table.add_column(title, justify="right" if title else "left")
    rows: list[tuple[str, Callable[[RunVerdict], int]]] = [
        ("lost", lambda v: v.lost),
        ("out of order for their key", lambda v: v.out_of_order),
        ("delivered with a wrong state of their key", lambda v: v.wrong_states),
        ("keys with a wrong state at the end", lambda v: v.wrong_at_the_end),
        ("altered, or not where acknowledged", lambda v: v.altered + v.misplaced),
        ("violations", lambda v: v.violations),
        ("delivered again (no violation)", lambda v: v.delivered_again),
    ]
    for name, count in rows:
        table.add_row(name, f"{count(result.verdict):,}", f"{count(result.control):,}")
        if name.startswith("out of order"):
            table.add_row("  of them before the first shrink", "", f"{result.control_out_of_order_growing:,}")
    return table
