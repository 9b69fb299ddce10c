"""``anabranch export``: a topic's segment files, for the audit or for keeping."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import anyio
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from anabranch import Admin
from anabranch.cli.admin import absent_topic, existing_topics, with_admin
from anabranch.cli.logs import warnings_shown
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, JsonFlag
from anabranch.cli.own_command import this_command
from anabranch.command_error import CommandError, UsageError
from anabranch.export.live import export_topic
from anabranch.export.offline import export_offline
from anabranch.export.run import ExportProgress, ExportReport, NoProgress
from anabranch.protocol.plurals import counted


def export(
    *,
    topic: str,
    to: str,
    replicas: Literal["leader", "all"] = "leader",
    offline: Path | None = None,
    log_dir: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Copy a topic's segment files up to the high watermark, with a manifest for the audit.

    A second export into the same place adds the new records. It also continues an interrupted export.

    Parameters
    ----------
    topic
        The topic.
    to
        A directory, or a URI that fsspec can write, such as s3://bucket/prefix.
    replicas
        leader: the files of each partition's leader. all: the files of all replicas.
    offline
        Read this log directory of a stopped broker, and ask no broker.
    log_dir
        BROKER=PATH: the path of the broker's log directory on this machine, if it differs from the broker's own path;
        may be given many times.
    """
    if offline is not None and (log_dir or replicas == "all"):
        raise CommandError("--offline reads one log directory; --log-dir and --replicas are for a running cluster")
    if offline is not None:
        with progress_bar() as progress:
            report = export_offline(offline, topic, to, progress=progress)
    else:
        directories = _log_dirs(log_dir or [])
        every = replicas == "all"
        if with_admin(bootstrap_server, lambda admin: existing_topics(admin, [topic]))[1]:
            raise absent_topic(topic)

        async def run(progress: ExportProgress) -> ExportReport:
            async with Admin(bootstrap_servers=bootstrap_server) as admin:
                return await export_topic(admin, topic, to, directories, all_replicas=every, progress=progress)

        with progress_bar() as progress, warnings_shown():  # after with_admin, which has a display of its own
            report = anyio.run(run, progress)
    if json_:
        print(json.dumps(asdict(report), indent=2))
    else:
        _print(report)
    return 0


def _log_dirs(settings: list[str]) -> dict[int, Path]:
    found = {}
    for setting in settings:
        broker, separator, path = setting.partition("=")
        if not separator or not broker.isdigit():
            raise UsageError(f"--log-dir {setting}: expected BROKER=PATH, e.g. --log-dir 1=/mnt/broker-1")
        found[int(broker)] = Path(path)
    return found


def _print(report: ExportReport) -> None:
    beside = f" and {counted(report.replicas, 'other replica')}" if report.replicas else ""
    print(
        f"{counted(report.segments, 'segment file')} of {counted(report.partitions, 'partition')}{beside}, "
        f"{counted(report.bytes, 'byte', form=',')}, in {report.directory}"
    )
    resumed = f", {report.resumed_bytes:,} of them by an export that was interrupted" if report.resumed_bytes else ""
    print(
        f"added: {counted(report.added_segments, 'segment file')}, "
        f"{counted(report.added_bytes, 'byte', form=',')}{resumed}"
    )
    for copy, gaps in report.missing.items():
        ranges = ", ".join(f"{first}-{end - 1}" for first, end in gaps)
        print(f"{copy}: offsets {ranges} were removed from the log before they were exported")
    for broker in report.unread:
        print(f"replicas on broker {broker} were not exported: it names no log directory that has them")
    if "://" not in report.directory:  # the audit reads only directories
        print(f"{this_command()} audit {report.directory}")


class _Bar:
    """Progress on a terminal."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("copying", total=0)
        self._total = 0

    def expect(self, size_bytes: int) -> None:
        self._total += size_bytes
        self._bars.update(self._task, total=self._total)

    def advance(self, size_bytes: int) -> None:
        self._bars.advance(self._task, size_bytes)


@contextmanager
def progress_bar() -> Iterator[ExportProgress]:
    """A bar on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield NoProgress()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars)
