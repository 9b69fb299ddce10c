"""``anabranch audit``: Spark's verdict on exported segment files."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anabranch.cli.errors import CommandError
from anabranch.cli.options import Int, JsonFile


def audit(
    directory: Path,
    *,
    order_by: str | None = None,
    master: str = "local[2]",
    first: Int = 10,
    json_: JsonFile = None,
) -> int:
    """Check exported segment files: CRC, offsets, order per key, placement, duplicates. Exit status 1 when one fails.

    Parameters
    ----------
    directory
        What `anabranch export` wrote, or a log directory of Anabranch or Kafka.
    order_by
        Where a value holds its place in its key's order: tsv:COLUMN (from 0) or json:FIELD.
    master
        A Spark master; by default two threads of this machine.
    first
        How many offending records of each check to name.
    """
    try:
        from audit.run import run_audit

        report = run_audit(directory, order_by=order_by, master=master, first=first)
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'anabranch[audit]'") from error
    except (ValueError, RuntimeError) as error:
        raise CommandError(str(error)) from error
    if json_ is not None:
        json_.write_text(json.dumps(report.to_json(), indent=2) + "\n")
    console = Console(highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    for check in report.checks:
        outcome = check.skipped or ("ok" if check.passed else f"{check.violation_count:,} violations")
        table.add_row(check.name, f"{check.counted:,}", outcome)
    console.print(f"{report.segments} segment files, {report.batches:,} batches, {report.records:,} records")
    console.print(table)
    for check in report.checks:
        for violation in check.violations:
            console.print(f"{check.name}: {violation}", style="red", soft_wrap=True)
    console.print("[bold green]PASS[/]" if report.passed else "[bold red]FAIL[/]")
    return 0 if report.passed else 1
