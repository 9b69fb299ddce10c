"""Segments are copied under a running broker. Segments and indexes end at the high watermark; changes are noticed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anabranch.export import segment_pieces
from anabranch.export.segment_pieces import (
    HistoryChangedError,
    Piece,
    SourceChangedError,
    list_segments,
    open_piece,
    wanted_segments,
)
from anabranch.protocol.records import iter_batches
from tests.support.audit.exported_cluster import Replica, batches

BATCH = len(batches(0, 1))


@pytest.fixture
def source(tmp_path: Path) -> Replica:
    replica = Replica(tmp_path)
    replica.segment(0, batches(0, 3))
    replica.segment(6, batches(6, 3))
    return replica


@contextmanager
def piece(source: Replica, number: int, start: int, limit: int) -> Iterator[Piece]:
    with open_piece(source.directory, list_segments(source.directory)[number], start, limit) as opened:
        yield opened


def offsets(opened: Piece) -> list[int]:
    return [record.offset for batch in iter_batches(b"".join(opened.chunks())) for record in batch]


@pytest.mark.parametrize(
    ("start", "log_start", "limit", "bases"),
    [(0, 0, 12, [0, 6]), (0, 0, 6, [0]), (6, 0, 12, [6]), (3, 0, 12, [0, 6]), (0, 7, 12, [6]), (12, 0, 12, [6])],
)
def test_only_segments_with_wanted_offsets_are_chosen(
    source: Replica, start: int, log_start: int, limit: int, bases: list[int]
) -> None:
    found = wanted_segments(list_segments(source.directory), start, log_start, limit)
    assert [segment.base_offset for segment in found] == bases


def test_a_closed_segment_is_taken_whole(source: Replica) -> None:
    with piece(source, 0, 0, 12) as opened:
        assert (opened.begin, opened.end, opened.base_offset, opened.end_offset) == (0, 3 * BATCH, 0, 6)
        assert offsets(opened) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("number", "limit", "found"), [(1, 9, [6, 7]), (1, 10, [6, 7, 8, 9]), (0, 4, [0, 1, 2, 3])])
def test_a_segment_is_cut_behind_the_last_whole_batch_below_the_high_watermark(
    source: Replica, number: int, limit: int, found: list[int]
) -> None:
    with piece(source, number, 0, limit) as opened:
        assert (offsets(opened), opened.end_offset) == (found, found[-1] + 1)
        assert len(opened.files[".index"]) == 8 * len(found) // 2


def test_a_piece_from_the_middle_has_indexes_relative_to_itself(source: Replica) -> None:
    log = source.directory / f"{6:020d}.log"
    log.with_suffix(".timeindex").write_bytes(b"".join(struct.pack(">qi", 100 + at, at) for at in (1, 3, 5)))
    entries = [struct.pack(">hqqqq", 0, 9, 6, last, last) for last in (7, 9, 11)]
    log.with_suffix(".txnindex").write_bytes(b"".join(entries))
    with piece(source, 1, 8, 10) as opened:
        assert (opened.begin, opened.end, opened.base_offset, opened.end_offset) == (BATCH, 2 * BATCH, 8, 10)
        assert offsets(opened) == [8, 9]
        assert opened.name == f"{8:020d}.log"
        assert opened.files == {
            ".index": struct.pack(">ii", 1, 0),
            ".timeindex": struct.pack(">qi", 103, 1),
            ".txnindex": entries[1],
        }


def test_a_preallocated_index_ends_in_zeros(source: Replica) -> None:
    index = source.directory / f"{6:020d}.index"
    entries = index.read_bytes()
    index.write_bytes(entries + bytes(80))
    with piece(source, 1, 0, 12) as opened:
        assert opened.files[".index"] == entries


@pytest.mark.parametrize("entry", [(1, 7), (1, 2 * BATCH), (5, BATCH + 3), (1, 10**6)])
def test_a_wrong_index_does_not_change_the_copied_records(source: Replica, entry: tuple[int, int]) -> None:
    (source.directory / f"{6:020d}.index").write_bytes(struct.pack(">ii", *entry))
    with piece(source, 1, 8, 10) as opened:
        assert offsets(opened) == [8, 9]


def test_without_an_index_batches_are_counted_from_the_beginning(source: Replica) -> None:
    (source.directory / f"{6:020d}.index").unlink()
    with piece(source, 1, 8, 12) as opened:
        assert offsets(opened) == [8, 9, 10, 11]
        assert opened.files == {}


def test_a_torn_batch_at_the_end_is_left_out(source: Replica) -> None:
    source.append(6, batches(12, 1)[:-5])
    with piece(source, 1, 0, 100) as opened:
        assert offsets(opened) == [6, 7, 8, 9, 10, 11]


def test_a_start_within_a_batch_is_refused_as_a_changed_history(source: Replica) -> None:
    with pytest.raises(HistoryChangedError, match="offsets 8-9"), piece(source, 1, 9, 12):
        pass


def test_a_snapshot_is_copied_only_with_the_beginning_of_its_segment(source: Replica) -> None:
    (source.directory / f"{6:020d}.snapshot").write_bytes(b"producers")
    with piece(source, 1, 0, 12) as opened:
        assert opened.files[".snapshot"] == b"producers"
    with piece(source, 1, 8, 12) as opened:
        assert ".snapshot" not in opened.files


# ---------------------------------------------------------------- changes meanwhile


def test_a_removed_segment_is_noticed(source: Replica) -> None:
    listed = list_segments(source.directory)
    source.remove(0)
    with pytest.raises(SourceChangedError, match="was removed"), open_piece(source.directory, listed[0], 0, 12):
        pass


def test_a_replaced_segment_is_noticed(source: Replica) -> None:
    listed = list_segments(source.directory)
    other = source.directory / "new"
    other.write_bytes(batches(0, 1))
    other.rename(source.directory / f"{0:020d}.log")
    with pytest.raises(SourceChangedError, match="was replaced"), open_piece(source.directory, listed[0], 0, 12):
        pass


def test_a_compaction_about_to_replace_segments_is_noticed(source: Replica) -> None:
    (source.directory / f"{0:020d}.log.swap").touch()
    with pytest.raises(SourceChangedError, match="about to replace"):
        list_segments(source.directory)


def test_a_compaction_that_ends_while_segments_are_listed_is_noticed(
    source: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, scans = segment_pieces.scan_segments, []

    def compacted_after_the_first(directory: Path) -> dict[int, tuple[int, int]]:
        scans.append(scan(directory))
        if len(scans) == 1:
            source.segment(0, batches(0, 1) + batches(8, 2))
            source.remove(6)
        return scans[-1]

    monkeypatch.setattr(segment_pieces, "scan_segments", compacted_after_the_first)
    with pytest.raises(SourceChangedError, match="are changing"):
        list_segments(source.directory)


def test_an_open_segment_that_was_removed_is_read_to_its_end(source: Replica) -> None:
    with piece(source, 0, 0, 12) as opened:
        source.remove(0)
        assert offsets(opened) == [0, 1, 2, 3, 4, 5]


def test_an_open_segment_that_becomes_shorter_is_noticed(source: Replica) -> None:
    with piece(source, 1, 0, 12) as opened:
        with open(source.directory / f"{6:020d}.log", "r+b") as file:
            file.truncate(BATCH)
        with pytest.raises(SourceChangedError, match="ends at byte"):
            list(opened.chunks())
