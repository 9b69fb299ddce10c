"""Checks a segment's indexes against its batches, where the segment is read.

An offset index entry is correct under three conditions, so that no look-up misses a record. A batch begins at the
entry's position. The batch's base offset is not above the entry's offset. The batch with the entry's offset is before
the position of the next entry. A time index entry is correct when no record up to the entry's offset has a later time
than the entry. In a topic that is not compacted, the batch with the entry's offset must also have the entry's time.
Entries ascend. Zeros after the last entry are space that Kafka reserves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.audit.files import open_file
from anabranch.protocol.plurals import counted
from anabranch.protocol.record_arrays import Bools, Ints

SUFFIXES = (".index", ".timeindex")
_FIELDS = {
    ".index": np.dtype([("offset", ">i4"), ("at", ">i4")]),
    ".timeindex": np.dtype([("at", ">i8"), ("offset", ">i4")]),
}


class IndexFault(NamedTuple):
    """A fault of the entry at byte ``position`` of an index file; ``offset`` is the entry's."""

    position: int
    offset: int | None
    message: str


class Batches(NamedTuple):
    """The batches of a part of a segment, one entry per batch. ``ok``: the CRC is right.

    The part begins at byte ``begin`` of the file and ends at ``end``. ``is_last``: ``end`` is the end of the file.
    """

    positions: Ints
    base_offsets: Ints
    last_offsets: Ints
    max_timestamps: Ints
    ok: Bools
    begin: int
    end: int
    is_last: bool

    @property
    def ascend(self) -> bool:
        """Whether offsets can be looked up in these batches."""
        return bool(self.ok.all() and (self.last_offsets[1:] > self.last_offsets[:-1]).all())


class Index(NamedTuple):
    """The whole entries of an index file, without the zeros after the last one. ``offset`` is absolute."""

    offset: Ints
    at: Ints
    entry_bytes: int
    rest: int


def read_index(path: Path, base_offset: int) -> Index:
    """Read an index file; ``at`` of the entries is a position or a timestamp. Raises OSError."""
    kind = _FIELDS[path.suffix]
    with open_file(path) as file:
        data = file.read()
    entries: npt.NDArray[np.void] = np.frombuffer(data, kind, len(data) // kind.itemsize)
    real = np.flatnonzero((entries["offset"] != 0) | (entries["at"] != 0))
    entries = entries[: int(real[-1]) + 1 if real.size else 0]
    return Index(
        entries["offset"].astype(np.int64) + base_offset, entries["at"].astype(np.int64), kind.itemsize,
        len(data) % kind.itemsize,
    )  # fmt: skip


def file_faults(index: Index) -> Iterator[IndexFault]:
    """The faults of the file itself: a truncated entry, or entries that do not ascend."""
    count = len(index.offset)
    if index.rest:
        yield IndexFault(
            count * index.entry_bytes, None, f"the file ends with {counted(index.rest, 'byte')} of a cut entry"
        )
    back = (index.offset[1:] <= index.offset[:-1]) | (index.at[1:] <= index.at[:-1])
    for number in np.flatnonzero(back) + 1:
        yield _fault(index, number, f"it does not ascend from {_named(index, int(number) - 1)}, the entry before")


def offset_faults(index: Index, batches: Batches) -> Iterator[IndexFault]:
    """The wrong entries that point into these batches."""
    positions, count = batches.positions, len(batches.positions)
    inside = (index.at >= batches.begin) & (True if batches.is_last else index.at < batches.end)
    numbers = np.flatnonzero(inside)
    at, offset = index.at[numbers], index.offset[numbers]
    found = np.minimum(np.searchsorted(positions, at), max(count - 1, 0))
    hit = positions[found] == at if count else np.zeros(len(at), np.bool_)
    for entry in np.flatnonzero(~hit & ((at < batches.end) | batches.ok.all())):
        yield _fault(index, numbers[entry], "no batch begins there")
    if not count:
        return
    behind = hit & batches.ok[found] & (batches.base_offsets[found] > offset)
    for entry in np.flatnonzero(behind):
        yield _fault(index, numbers[entry], f"the batch there begins at offset {batches.base_offsets[found[entry]]}")
    if not batches.ascend:
        return
    holder = np.searchsorted(batches.last_offsets, offset)
    after = np.append(index.at[1:], np.iinfo(np.int64).max)[numbers]
    skips = hit & ~behind & (holder < count) & (positions[np.minimum(holder, count - 1)] >= after)
    for entry in np.flatnonzero(skips):
        yield _fault(index, numbers[entry], f"that offset is at byte {positions[holder[entry]]}")
    for entry in np.flatnonzero(hit & (holder == count) & batches.is_last):
        yield _fault(index, numbers[entry], f"the log ends at offset {batches.last_offsets[-1]}")


def time_faults(index: Index, batches: Batches, compacted: bool) -> Iterator[IndexFault]:
    """The wrong entries. The entries with an offset in these batches are checked, and the first entry after them."""
    if not len(batches.positions) or not batches.ascend:
        return
    first_last = np.searchsorted(index.offset, [batches.base_offsets[0], batches.last_offsets[-1] + 1])
    numbers = np.arange(first_last[0], min(first_last[1] + 1, len(index.offset)))
    offset, time = index.offset[numbers], index.at[numbers]
    before = np.searchsorted(batches.last_offsets, offset, "right")
    youngest = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(batches.max_timestamps))[before]
    late = youngest > time
    for entry in np.flatnonzero(late):
        message = f"a batch that ends at or before that offset has the timestamp {youngest[entry]}"
        yield _fault(index, numbers[entry], message)
    holder = np.searchsorted(batches.last_offsets, offset)
    beyond = holder == len(batches.positions)
    holder = np.minimum(holder, len(batches.positions) - 1)
    there = ~late & ~beyond & (batches.base_offsets[holder] <= offset)
    for entry in np.flatnonzero(there & (batches.max_timestamps[holder] != time) & (not compacted)):
        message = f"the batch with that offset has the timestamp {batches.max_timestamps[holder[entry]]}"
        yield _fault(index, numbers[entry], message)
    for entry in np.flatnonzero(~late & beyond & batches.is_last):
        yield _fault(index, numbers[entry], f"the log ends at offset {batches.last_offsets[-1]}")


def _fault(index: Index, number: np.int64, message: str) -> IndexFault:
    where = int(number) * index.entry_bytes
    return IndexFault(where, int(index.offset[number]), f"the entry names {_named(index, int(number))}: {message}")


def _named(index: Index, number: int) -> str:
    at, offset = int(index.at[number]), int(index.offset[number])
    return f"offset {offset} at byte {at}" if index.entry_bytes == 8 else f"timestamp {at} at offset {offset}"
