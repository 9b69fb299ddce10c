"""``anabranch audit``: Spark's verdict on exported segment files."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anabranch.cli.errors import CommandError, UsageError
from anabranch.cli.options import Int, JsonFile
from audit.report import AuditReport, Status


def audit(
    directory: Path,
    *,
    order_by: str | None = None,
    master: str = "local[2]",
    first: Int = 10,
    strict: bool = False,
    json_: JsonFile = None,
) -> int:
    """Check exported segment files. Exit status: 0 without a violation, 1 with one, 2 where nothing could be checked.

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
    strict
        Exit with 1 also when a check could not be decided.
    """
    try:
        from audit.manifest import ManifestError
        from audit.order_field import OrderFieldError
        from audit.run import run_audit
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'anabranch[audit]'") from error
    try:
        report = run_audit(directory, order_by=order_by, master=master, first=first)
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'anabranch[audit]'") from error
    except (ManifestError, OrderFieldError) as error:
        raise UsageError(str(error)) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{directory}: {error.strerror}") from error
    except (ValueError, RuntimeError) as error:
        raise CommandError(str(error)) from error
    if json_ is not None:
        json_.write_text(json.dumps(report.to_json(), indent=2) + "\n")
    console = Console(highlight=False)
    console.print(
        f"{report.segments:,} segment files, {report.bytes:,} bytes, {report.batches:,} batches, "
        f"{report.records:,} records"
    )
    console.print(_table(report))
    for check in report.checks:
        for violation in check.violations:
            console.print(f"{check.name}: {violation}", style="red", soft_wrap=True)
    verdict = "[bold green]PASS[/]" if report.exit_status(strict=strict) == 0 else "[bold red]FAIL[/]"
    console.print(f"{verdict}: {report.decided} of {len(report.checks)} checks could be decided")
    return report.exit_status(strict=strict)


def _table(report: AuditReport) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    for check in report.checks:
        outcome = {
            Status.PASSED: "[green]ok[/]",
            Status.VIOLATED: f"[red]{check.violation_count:,} violations[/]",
            Status.UNKNOWN: f"[yellow]unknown[/]: {escape(check.unknown or '')}",
        }[check.status]
        table.add_row(check.name, f"{check.counted:,}", outcome)
    return table
