"""``anabranch demo``: the main job, from an empty directory to a verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from anabranch.cli.errors import CommandError
from anabranch.cli.options import JsonFile
from anabranch.demo.run import DemoResult, run_demo
from anabranch.demo.view import LiveView
from anabranch.local.cluster import run_local_cluster
from anabranch.local.plan import LocalClusterConfig

BROKERS = 3
MARKER = ".anabranch-demo"


def demo(
    *,
    json_: JsonFile = None,
    events: int | None = None,
    dir: Path = Path("anabranch-demo"),
) -> int:
    """Stream real events through a local cluster and prove that every key kept its order.

    Starts ZooKeeper, a controller and three brokers; four producers write, a group of three reads; then the exported
    segment files are audited with Spark. Exit status 0 and PASS, or 1 and the first offending records.

    Parameters
    ----------
    events
        Only the first so many events.
    dir
        Where everything goes and stays: logs, the workers' files, the exported segments. What an earlier demo left
        there is replaced.
    """
    if events is not None and events < 1:
        raise CommandError(f"--events {events}: at least 1")
    console = Console()
    prepare(dir)
    result = trio.run(_run, dir, events, console)
    if json_ is not None:
        json_.write_text(json.dumps(result.to_json(), indent=2, default=str) + "\n")
    show(result, console)
    console.print(f"The exported files: anabranch audit {dir / 'export'} --order-by tsv:0", highlight=False)
    return 0 if result.passed else 1


def prepare(directory: Path) -> None:
    """An empty directory. Raises ``CommandError`` for one that holds something else than an earlier demo."""
    marker = directory / MARKER
    if directory.exists() and not marker.exists() and any(directory.iterdir()):
        raise CommandError(f"{directory} holds something else; give the demo a directory of its own with --dir")
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    marker.touch()


async def _run(directory: Path, events: int | None, console: Console) -> DemoResult:
    with LiveView(console) as view:
        config = LocalClusterConfig(str(directory / "cluster"), brokers=BROKERS)
        async with run_local_cluster(config, say=view.stage) as cluster:
            return await run_demo(cluster.bootstrap, directory, events, view)


def show(result: DemoResult, console: Console) -> None:
    """A short table, then PASS, or FAIL and the first offending records."""
    verdict = result.verdict
    table = Table(show_header=False, box=None, pad_edge=False)
    rate = verdict.events / result.produce_s if result.produce_s else 0.0
    table.add_row("events, keys", f"{verdict.events:,}, {verdict.keys:,}")
    table.add_row("written in", f"{result.produce_s:.2f} s ({rate:,.0f}/s)")
    table.add_row("all delivered after", f"{result.deliver_s:.2f} s")
    table.add_row("lost, twice", f"{verdict.lost}, {verdict.duplicated}")
    table.add_row("out of order per key", f"{verdict.out_of_order}")
    table.add_row("altered, misplaced", f"{verdict.altered}, {verdict.misplaced}")
    table.add_row("exported", f"{result.exported.segments} segment files, {result.exported.bytes:,} bytes")
    for check in result.audit.get("checks", []):
        outcome = "ok" if check["passed"] else f"{check['violation_count']:,} violations"
        table.add_row(f"Spark: {check['name']}", outcome)
    console.print(table)
    for line in verdict.examples:
        console.print(line, style="red", highlight=False)
    for check in result.audit.get("checks", []):
        for violation in check.get("violations", []):
            console.print(f"{check['name']}: {violation}", style="red", highlight=False)
    console.print("[bold green]PASS[/]" if result.passed else "[bold red]FAIL[/]")
