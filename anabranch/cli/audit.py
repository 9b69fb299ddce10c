"""``anabranch audit``: Spark's verdict on exported segment files."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from anabranch.audit.files import refuse_unreadable, why
from anabranch.audit.report import AuditReport, Status
from anabranch.audit.segment_reader import MAX_DECOMPRESSED_BYTES
from anabranch.cli.options import Int, JsonFile, Natural
from anabranch.command_error import CommandError, UsageError
from anabranch.protocol.plurals import counted

_MOST_AHEAD = 20
"""The largest number of partitions with records ahead of the clock that are named."""
_MS_PER_DAY = 86_400_000


def audit(
    directory: Path,
    *,
    order_by: str | None = None,
    master: str = "local[2]",
    first: Natural = 10,
    consumer_log: Path | None = None,
    max_decompressed_bytes: Int = MAX_DECOMPRESSED_BYTES,
    strict: bool = False,
    json_: JsonFile = None,
    html: Path | None = None,
    html_rows: Int = 100,
    html_lanes: Int = 16,
    class_archive: bool = True,
) -> int:
    """Check exported segment files. Exit status: 0 without a violation, 1 with one, 2 if nothing could be checked.

    Parameters
    ----------
    directory
        A directory that `anabranch export` wrote, or a log directory of Anabranch or Kafka.
    order_by
        The field of a value that orders the records of a key: tsv:COLUMN (from 0) or json:FIELD.
    master
        A Spark master; by default two threads of this machine.
    first
        For each check, name at most this many offending records.
    consumer_log
        The delivered records as JSON lines: group, member, topic, partition, offset, time (docs/audit.md).
    max_decompressed_bytes
        A batch that decompresses to more bytes than this is not read, and counts as unreadable.
    strict
        Exit with 1 also when a check could not be decided.
    html
        Write a page to this file, with every split and merge, and the place of each violation.
    html_rows
        The largest number of rows in a table of the page.
    html_lanes
        The largest number of boxes side by side in the page's tree; with more partitions, a box stands for several.
    class_archive
        Keep the classes of Spark's JVM in ~/.cache/anabranch (170 MB), so that the next audit starts sooner.
    """
    _refuse_limits(max_decompressed_bytes, html_rows, html_lanes)
    _refuse_paths(directory, html, json_)
    if consumer_log is not None:
        _refuse_unreadable(consumer_log)
    try:
        from anabranch.audit.class_archive import NO_ARCHIVE, archive_of_user
        from anabranch.audit.manifest import ManifestError
        from anabranch.audit.order_field import OrderFieldError
        from anabranch.audit.run import run_audit

        classes = archive_of_user() if class_archive and master.startswith("local") else NO_ARCHIVE
        with _shown() as progress:
            report = run_audit(
                directory,
                order_by=order_by,
                master=master,
                first=first,
                consumer_log=consumer_log,
                max_decompressed_bytes=max_decompressed_bytes,
                progress=progress,
                classes=classes,
            )
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'anabranch[audit]'") from error
    except (ManifestError, OrderFieldError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{error.filename or directory}: {error.strerror or error}") from error
    except (ValueError, RuntimeError) as error:
        raise CommandError(str(error)) from error
    if json_ is not None:
        json_.write_text(json.dumps(report.to_json(), indent=2) + "\n")
    if html is not None:
        _write_page(html, directory, report, html_lanes, html_rows)
    _print(report, strict)
    if classes.will_be_written and (terminal := Console(stderr=True)).is_terminal:
        terminal.print("keeping the classes of Spark's JVM, so that the next audit starts sooner", style="dim")
    return report.exit_status(strict=strict)


def _refuse_limits(max_decompressed_bytes: int, html_rows: int, html_lanes: int) -> None:
    if max_decompressed_bytes < 1:
        raise UsageError(f"--max-decompressed-bytes {max_decompressed_bytes}: must be at least 1")
    if html_rows < 1 or html_lanes < 1:
        raise UsageError(f"--html-rows {html_rows} and --html-lanes {html_lanes}: must be at least 1")


def _refuse_paths(directory: Path, html: Path | None, json_: Path | None) -> None:
    for option, file in (("--html", html), ("--json", json_)):
        if file is not None and not file.parent.is_dir():
            raise UsageError(f"{option} {file}: {file.parent} is no directory")
    if directory.parts[:1] and directory.parts[0].endswith(":") and not directory.exists():
        uri = str(directory).replace(":/", "://", 1)
        raise UsageError(f"{uri}: the audit reads a directory, not a URI: mount or copy it")


def _refuse_unreadable(consumer_log: Path) -> None:
    try:
        refuse_unreadable(consumer_log)
    except FileNotFoundError:
        raise UsageError(f"--consumer-log {consumer_log}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"--consumer-log {error.filename or consumer_log}: {why(error)}") from None


def _write_page(path: Path, directory: Path, report: AuditReport, lanes: int, rows: int) -> None:
    from anabranch.audit.discovery import discover
    from anabranch.audit.history import PageLimits
    from anabranch.audit.page import render_page

    manifests = [topic.manifest for topic in discover(directory)]
    path.write_text(render_page(report, manifests, PageLimits(lanes, rows)), encoding="utf-8")


def _print(report: AuditReport, strict: bool) -> None:
    """Print the table of checks, the named violations, and the verdict."""
    console = Console(highlight=False)
    console.print(
        f"{counted(report.segments, 'segment file', form=',')}, {counted(report.bytes, 'byte', form=',')}, "
        f"{counted(report.batches, 'batch', 'batches', form=',')}, {counted(report.records, 'record', form=',')}"
    )
    console.print(_table(report, headings=console.is_terminal))
    if console.is_terminal and any(check.violations for check in report.checks):
        console.print("\nViolations, the first of each check", style="bold")
    for check in report.checks:
        for violation in check.violations:
            console.print(f"{check.name}: {violation}", style="red", soft_wrap=True)
    ahead = report.ahead_of(time.time_ns() // 1_000_000)
    for topic, partition, by_ms in ahead[:_MOST_AHEAD]:
        days = f"{by_ms / _MS_PER_DAY:,.1f} days"
        console.print(f"{topic}-{partition}: a record is {days} ahead of this clock, and retention.ms keeps it")
    if len(ahead) > _MOST_AHEAD:
        console.print(f"{len(ahead) - _MOST_AHEAD:,} more partitions have records ahead of the clock")
    verdict = "[bold green]PASS[/]" if report.exit_status(strict=strict) == 0 else "[bold red]FAIL[/]"
    console.print(f"{verdict}: {report.decided} of {len(report.checks)} checks could be decided")


class _Parts:
    """A line for each part of the audit. The line stays, with the time that the part took."""

    def __init__(self, lines: Progress) -> None:
        self._lines = lines
        self._current: TaskID | None = None

    def begin(self, part: str) -> None:
        self.end()
        self._current = self._lines.add_task(part, total=None, tasks="")

    def tasks(self, done: int, total: int) -> None:
        if self._current is not None:
            self._lines.update(self._current, completed=done, total=total, tasks=f"{done:,}/{total:,}", refresh=True)

    def end(self) -> None:
        if self._current is not None:
            self._lines.update(self._current, completed=1, total=1, tasks="")
            self._lines.stop_task(self._current)


@contextlib.contextmanager
def _shown() -> Iterator[_Parts | None]:
    """Yield progress lines on a terminal, None elsewhere. A line's clock runs even when Spark has no task.

    The lines use a descriptor of their own: output to stderr's descriptor is captured while Spark starts.
    """
    if not Console(stderr=True).is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"), TimeElapsedColumn())
    with (
        os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal,
        Progress(*columns, console=Console(file=terminal)) as lines,
    ):
        parts = _Parts(lines)
        yield parts
        parts.end()


def _table(report: AuditReport, *, headings: bool) -> Table:
    table = Table("check", "looked at", "outcome", show_header=headings, box=None, pad_edge=False)
    for check in report.checks:
        outcome = {
            Status.PASSED: "[green]ok[/]",
            Status.VIOLATED: f"[red]{counted(check.violation_count, 'violation', form=',')}[/]",
            Status.UNKNOWN: f"[yellow]unknown[/]: {escape(check.unknown or '')}",
        }[check.status]
        table.add_row(check.name, f"{check.counted:,}", outcome)
    return table
