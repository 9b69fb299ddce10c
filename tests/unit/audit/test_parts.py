"""The parts of a large segment contain every record once. With bounds, the parts contain the selected records."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the audit needs the extra [audit]")

from anabranch.audit import parts
from anabranch.audit.bounds import PartitionBounds, WantedPartitions, wanted
from anabranch.audit.discovery import discover
from anabranch.audit.parts import MissingSegmentError, read_part, segment_parts
from anabranch.protocol.batch_builder import build_batch
from tests.support.audit.samples import T0, TopicWriter

BATCHES, RECORDS = 40, 5
ENTRY = struct.Struct(">ii")


def segment(root: Path, base: int = 1000) -> tuple[Path, list[tuple[int, int]]]:
    """Write a segment; return its index path and a correct index: each batch's relative last offset and position."""
    writer = TopicWriter(root, "events", 1)
    writer.partitions[0].offset = base
    entries = []
    for _ in range(BATCHES):
        at = writer.partitions[0].offset
        path = writer.partitions[0].segment
        entries.append((at + RECORDS - 1 - base, path.stat().st_size if path else 0))
        records = [(b"k", b"x" * 50, (), T0 + at + k) for k in range(RECORDS)]
        writer.partitions[0].write(build_batch(records, base_offset=at), RECORDS)
    writer.finish()
    path = writer.partitions[0].segments[0]
    return path.with_suffix(".index"), entries[1:]


def offsets(root: Path, split_bytes: int, selected: WantedPartitions = parts.ALL) -> tuple[list[int], int]:
    """Return the offsets in all parts, and how many bytes of the file the parts cover."""
    found, covered = [], 0
    for part in segment_parts(discover(root), split_bytes, selected):
        size = Path(part.directory, part.source.segment).stat().st_size
        covered += (size if part.end is None else part.end) - part.begin
        for rows in read_part(part):
            column = rows.arrow(["offset"], rows.within(part.bounds)).column(0)
            found += column.to_pylist()
    return found, covered


def test_the_parts_of_a_log_have_every_record_exactly_once(tmp_path: Path) -> None:
    index, entries = segment(tmp_path)
    index.write_bytes(b"".join(ENTRY.pack(*entry) for entry in entries))
    everything = list(range(1000, 1000 + BATCHES * RECORDS))
    assert len(list(segment_parts(discover(tmp_path), 2000))) > 3
    assert offsets(tmp_path, 2000)[0] == offsets(tmp_path, 1 << 30)[0] == everything


@pytest.mark.parametrize("kind", ["complete", "sparse", "missing", "wrong"])
def test_bounds_give_the_records_between_them_whatever_the_index_has(tmp_path: Path, kind: str) -> None:
    index, entries = segment(tmp_path)
    rng = random.Random(kind)
    if kind == "sparse":
        entries = entries[::7]
    if kind == "wrong":
        entries = sorted((rng.randrange(200), rng.choice(entries)[1] + rng.choice([0, 0, 1])) for _ in entries)
    if kind != "missing":
        index.write_bytes(b"".join(ENTRY.pack(*entry) for entry in entries) + b"\0\0\0")
    for _ in range(30):
        first = rng.randrange(990, 1210)
        end = rng.randrange(first, 1220)
        selected = WantedPartitions(starts={"events": {0: first}}, ends={"events": {0: end}})
        for split_bytes in (1500, 1 << 30):
            found, covered = offsets(tmp_path, split_bytes, selected)
            assert found == [offset for offset in range(1000, 1200) if first <= offset < end]
            if kind == "complete":
                batch_bytes = (tmp_path / "events-0" / f"{1000:020d}.log").stat().st_size // BATCHES
                assert covered <= (end - first) // RECORDS * batch_bytes + 3 * batch_bytes


def test_records_are_selected_by_time_and_partition(tmp_path: Path) -> None:
    segment(tmp_path)
    selected = wanted({"startingTimestamp": str(T0 + 1012), "endingTimestamp": str(T0 + 1019)})
    assert offsets(tmp_path, 1 << 30, selected)[0] == list(range(1012, 1019))
    assert offsets(tmp_path, 1 << 30, wanted({"assign": '{"events": [1]}'}))[0] == []
    for option, named in (("assign", '{"events": [1]}'), ("endingOffsets", '{"events": {"1": 7}}')):
        with pytest.raises(ValueError, match=f"option {option}: topic events has no partition 1"):
            wanted({option: named}).check({"events": {0}})
    with pytest.raises(ValueError, match="option startingOffsets: there is no topic 'event', only events"):
        wanted({"startingOffsets": '{"event": {"0": 7}}'}).check({"events": {0}})
    assert wanted({"startingOffsets": '{"events": {"0": 7}}'}).of("events", 0) == PartitionBounds(first_offset=7)
    with pytest.raises(ValueError, match=r"option startingOffsets is '7', but has to be like"):
        wanted({"startingOffsets": "7"})


def test_a_file_that_only_the_driver_has_is_an_error(tmp_path: Path) -> None:
    index, _ = segment(tmp_path)
    (part,) = segment_parts(discover(tmp_path))
    index.with_suffix(".log").unlink()
    with pytest.raises(MissingSegmentError, match="the same path on the driver and on every worker"):
        list(read_part(part))
    assert list(segment_parts(discover(tmp_path))) == [], "the check of segment files names the file"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_an_unreadable_file_is_an_error_or_a_row_with_the_error(tmp_path: Path, make: Callable[[Path], None]) -> None:
    index, _ = segment(tmp_path)
    (part,) = segment_parts(discover(tmp_path))
    index.with_suffix(".log").unlink()
    make(index.with_suffix(".log"))
    with pytest.raises(OSError, match="not a regular file"):
        list(read_part(part))
    (rows,) = read_part(part, report_unreadable=True)
    assert rows.run.errors == ["the file cannot be read: not a regular file"]
