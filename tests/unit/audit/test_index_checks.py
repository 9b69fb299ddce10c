"""Contradictions between a segment's indexes and the segment's batches, in whole files and in parts of large files."""

import struct
from pathlib import Path

import numpy as np
import pytest

from anabranch.audit.index_checks import Batches, Index, IndexFault, file_faults, offset_faults, read_index, time_faults

# Five batches of ten records and 100 bytes each; the fourth has an earlier time than the third.
TIMES = [50, 60, 90, 80, 95]


def batches(first: int = 0, end: int = 5, ok: bool = True) -> Batches:
    """Return the batches [first, end) of the segment."""
    numbers = np.arange(first, end)
    trusted = np.full(end - first, ok)
    times = np.array(TIMES[first:end])
    begin, stop = first * 100, end * 100
    return Batches(numbers * 100, numbers * 10 + 1000, numbers * 10 + 1009, times, trusted, begin, stop, end == 5)


def index(*entries: tuple[int, int], size: int = 8, rest: int = 0) -> Index:
    return Index(np.array([x for x, _ in entries]), np.array([y for _, y in entries]), size, rest)


def whole(found: Index, compacted: bool = False) -> list[str]:
    faults = offset_faults(found, batches()) if found.entry_bytes == 8 else time_faults(found, batches(), compacted)
    return [message.split(": ")[1] for _, _, message in faults]


OFFSETS = ((1009, 0), (1029, 200), (1039, 300))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (OFFSETS, []),
        (((1015, 100),), []),  # Kafka's followers write this: an offset within the batch, or of a later batch
        (((1029, 100), (1039, 300)), []),
        (((1009, 1),), ["no batch begins there"]),
        (((1009, 600),), ["no batch begins there"]),
        (((1009, 100),), ["the batch there begins at offset 1010"]),
        (((1049, 100), (1039, 300)), ["that offset is at byte 400"]),
        (((1050, 400),), ["the log ends at offset 1049"]),
    ],
)
def test_faults_of_an_offset_index_are_described(entries: tuple[tuple[int, int], ...], expected: list[str]) -> None:
    assert whole(index(*entries)) == expected


@pytest.mark.parametrize(
    ("entries", "compacted", "expected"),
    [
        (((1009, 50), (1029, 90), (1049, 95)), False, []),
        (((1005, 50),), False, []),  # Kafka's leaders write this: the offset of the record itself
        (((1029, 89),), False, ["a batch that ends at or before that offset has the timestamp 90"]),
        (((1039, 80),), False, ["a batch that ends at or before that offset has the timestamp 90"]),
        (((1019, 61),), False, ["the batch with that offset has the timestamp 60"]),
        (((1019, 61),), True, []),
        (((1050, 95),), False, ["the log ends at offset 1049"]),
    ],
)
def test_faults_of_a_time_index_are_described(
    entries: tuple[tuple[int, int], ...], compacted: bool, expected: list[str]
) -> None:
    assert whole(index(*entries, size=12), compacted) == expected


def test_each_entry_is_judged_by_the_part_of_the_segment_it_points_into() -> None:
    wrong = index((1009, 1), (1029, 201), (1039, 300))
    assert [x.offset for part in ((0, 2), (2, 5)) for x in offset_faults(wrong, batches(*part))] == [1009, 1029]
    late = index((1009, 50), (1039, 80), size=12)
    assert [x.offset for part in ((0, 3), (3, 5)) for x in time_faults(late, batches(*part), False)] == [1039]


def test_damaged_batches_prove_no_fault_of_an_index() -> None:
    assert list(offset_faults(index((1009, 100)), batches(ok=False))) == []
    assert list(time_faults(index((1029, 1), size=12), batches(ok=False), False)) == []


def test_an_entry_that_is_cut_or_does_not_ascend_is_a_fault() -> None:
    assert list(file_faults(index(*OFFSETS))) == []
    back = index((1009, 0), (1029, 200), (1019, 300), rest=3)
    assert [(x.position, x.offset) for x in file_faults(back)] == [(24, None), (16, 1019)]
    assert "from offset 1029 at byte 200, the entry before" in list(file_faults(back))[1].message


def test_an_index_file_is_read_up_to_the_zeros_that_were_reserved(tmp_path: Path) -> None:
    path = tmp_path / f"{1000:020d}.index"
    path.write_bytes(struct.pack(">iiii", 9, 0, 29, 200) + bytes(80))
    found = read_index(path, 1000)
    assert (found.offset.tolist(), found.at.tolist(), found.rest) == ([1009, 1029], [0, 200], 0)
    path.write_bytes(bytes(80))
    assert len(read_index(path, 1000).offset) == 0


def test_a_fault_names_the_byte_of_its_entry() -> None:
    (fault,) = offset_faults(index((1009, 0), (1019, 99)), batches())
    assert fault == IndexFault(8, 1019, "the entry names offset 1019 at byte 99: no batch begins there")
