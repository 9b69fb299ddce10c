"""Files that cannot be opened or are not regular: each is reported, no FIFO blocks, and the other files are read."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the audit needs the extra [audit]")

from anabranch.audit.discovery import discover
from anabranch.audit.file_checks import wrong_files
from anabranch.audit.manifest import MANIFEST_NAME, ManifestError
from anabranch.audit.parts import read_part, segment_parts
from anabranch.audit.summary import summaries
from anabranch.cli.audit import audit
from anabranch.command_error import UsageError
from tests.support.audit.samples import write_sample

NOBODY = 65534
CHECKPOINTS = ["log-start-offset-checkpoint", "cleaner-offset-checkpoint", "events-1/partition-count-checkpoint"]


@pytest.fixture
def export() -> Iterator[Path]:
    """A sample in a directory that every user may search."""
    with tempfile.TemporaryDirectory(prefix="anabranch-") as directory:
        os.chmod(directory, 0o755)
        write_sample(Path(directory))
        yield Path(directory)


@contextlib.contextmanager
def denied(path: Path) -> Iterator[None]:
    """Make a path that only root may open, and run the block as another user."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


def found_in(export: Path) -> list[dict[str, object]]:
    """Return the summary rows of the first segment of the first partition."""
    part = next(segment_parts(discover(export)))
    return [
        row
        for batch in summaries(read_part(part, report_unreadable=True), part)
        for row in batch.select(["kind", "segment", "error"]).to_pylist()
    ]


def without_manifest(export: Path) -> None:
    (export / MANIFEST_NAME).unlink()
    for name in CHECKPOINTS:
        (export / name).write_text("0\n0\n")
    discover(export)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", [MANIFEST_NAME, *CHECKPOINTS])
def test_a_manifest_or_checkpoint_that_is_no_regular_file_is_refused(
    export: Path, name: str, make: Callable[[Path], None]
) -> None:
    if name != MANIFEST_NAME:
        without_manifest(export)
    (export / name).unlink()
    make(export / name)
    with pytest.raises(ManifestError, match=f"{name} cannot be read: not a regular file"):
        discover(export)


@pytest.mark.parametrize("name", [MANIFEST_NAME, *CHECKPOINTS])
def test_a_manifest_or_checkpoint_that_may_not_be_opened_is_refused(export: Path, name: str) -> None:
    if name != MANIFEST_NAME:
        without_manifest(export)
    with denied(export / name), pytest.raises(ManifestError, match=f"{name} cannot be read: Permission denied"):
        discover(export)


def test_a_checkpoint_that_is_no_text_is_named(export: Path) -> None:
    without_manifest(export)
    (export / CHECKPOINTS[0]).write_bytes(b"\xff")
    with pytest.raises(ManifestError, match=f"{CHECKPOINTS[0]}: 'utf-8' codec"):
        discover(export)


def test_a_segment_and_an_index_that_may_not_be_opened_are_named(export: Path) -> None:
    log = min(export.glob("events-0/*.log"))
    index = log.with_suffix(".index")
    index.touch()
    assert [row for row in found_in(export) if row["error"]] == []
    with denied(log):
        (row,) = [row for row in found_in(export) if row["error"]]
    assert (row["segment"], row["error"]) == (f"events-0/{log.name}", "the file cannot be read: Permission denied")
    with denied(index):
        (row,) = [row for row in found_in(export) if row["error"]]
    assert (row["segment"], row["error"]) == (f"events-0/{index.name}", "the index cannot be read: Permission denied")


def test_a_partition_that_may_not_be_searched_is_named_and_the_rest_is_read(export: Path) -> None:
    (topic,) = discover(export)
    with denied(export / "events-0"):
        found = [(violation.segment, violation.message) for violation in wrong_files(topic)]
        parts = list(segment_parts([topic]))
    names = [segment.name for segment in topic.manifest.partitions[0].segments]
    assert found == [
        *((f"events-0/{name}", "the file cannot be read: Permission denied") for name in names),
        ("events-0/", "the directory cannot be read: Permission denied"),
    ]
    assert [part.source.partition.partition for part in parts] == [1, 1, 2, 2]
    (export / MANIFEST_NAME).unlink()
    with denied(export / "events-0"), pytest.raises(PermissionError, match="events-0"):
        discover(export)


def test_a_file_in_place_of_a_partitions_directory_is_named(export: Path) -> None:
    (topic,) = discover(export)
    (export / "events-0").rename(export / "elsewhere")
    (export / "events-0").touch()
    assert [x.message for x in wrong_files(topic)] == ["the file cannot be read: Not a directory"] * 2


def test_unreadable_arguments_are_wrong_usage_before_spark_starts(export: Path) -> None:
    log, directory = export / "deliveries.jsonl", export / "deliveries"
    with pytest.raises(UsageError, match=rf"--consumer-log {log}: there is no such file"):
        audit(export, consumer_log=log)
    os.mkfifo(log)
    with pytest.raises(UsageError, match=rf"--consumer-log {log}: not a regular file"):
        audit(export, consumer_log=log)
    directory.mkdir()
    log.rename(directory / "m1.jsonl")
    with pytest.raises(UsageError, match=rf"--consumer-log {directory / 'm1.jsonl'}: not a regular file"):
        audit(export, consumer_log=directory)
    (export / MANIFEST_NAME).unlink()
    with denied(export / "events-0"), pytest.raises(UsageError, match=rf"{export / 'events-0'}: Permission denied"):
        audit(export)
