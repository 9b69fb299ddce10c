"""Copying segments under a running broker: cut at the high watermark, indexes cut with the log."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from anabranch.segment_copy import SegmentCopy, copy_partition
from protocol.records import iter_batches, set_base_offset
from tests.batches import batch_of


def segment(directory: Path, base: int, batches: int, records: int = 2) -> list[int]:
    """Write a segment of equal batches with a full index; returns the end position of each batch."""
    data, ends, index = bytearray(), [], b""
    for number in range(batches):
        batch = bytearray(batch_of(records))
        set_base_offset(memoryview(batch), base + number * records, 0)
        index += struct.pack(">ii", (number + 1) * records - 1, len(data))
        data += batch
        ends.append(len(data))
    (directory / f"{base:020d}.log").write_bytes(data)
    (directory / f"{base:020d}.index").write_bytes(index)
    return ends


def offsets(path: Path) -> list[int]:
    return [record.offset for batch in iter_batches(path.read_bytes()) for record in batch]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    segment(path, 0, 3)
    segment(path, 6, 3)
    (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return path


def test_everything_below_the_high_watermark_is_copied(source: Path, tmp_path: Path) -> None:
    copies = copy_partition(source, tmp_path / "copy", 0, 12)
    assert [copy.name for copy in copies] == ["00000000000000000000.log", "00000000000000000006.log"]
    for copy in copies:
        assert (tmp_path / "copy" / copy.name).read_bytes() == (source / copy.name).read_bytes()
    assert (tmp_path / "copy" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_a_segment_is_cut_behind_the_last_whole_batch_below_the_high_watermark(source: Path, tmp_path: Path) -> None:
    copy_partition(source, tmp_path / "copy", 0, 9)
    assert offsets(tmp_path / "copy" / "00000000000000000006.log") == [6, 7]
    assert (tmp_path / "copy" / "00000000000000000006.index").read_bytes() == struct.pack(">ii", 1, 0)


def test_a_torn_batch_at_the_end_is_left_out(source: Path, tmp_path: Path) -> None:
    last = source / "00000000000000000006.log"
    last.write_bytes(last.read_bytes()[:-5])
    copy_partition(source, tmp_path / "copy", 0, 100)
    assert offsets(tmp_path / "copy" / last.name) == [6, 7, 8, 9]


def test_segments_wholly_below_the_log_start_are_left_out(source: Path, tmp_path: Path) -> None:
    size = (source / "00000000000000000006.log").stat().st_size
    assert copy_partition(source, tmp_path / "copy", 6, 12) == [SegmentCopy("00000000000000000006.log", size)]


def test_an_earlier_segment_is_cut_too_when_the_high_watermark_lies_in_it(source: Path, tmp_path: Path) -> None:
    copies = copy_partition(source, tmp_path / "copy", 0, 4)
    assert [copy.name for copy in copies] == ["00000000000000000000.log"]
    assert offsets(tmp_path / "copy" / copies[0].name) == [0, 1, 2, 3]
