"""Reads a range of offsets from one replica's directory while the broker continues to write it.

``list_segments`` lists the directory, ``wanted_segments`` selects, ``open_piece`` opens the wanted part of a segment. A
piece is whole batches, with the index entries that point into it. When retention or compaction removes a file
meanwhile, ``SourceChangedError`` is raised: list the segments again, and continue at the reached offset.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct

from anabranch.broker.log.paths import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_of,
)
from anabranch.protocol.batch_layout import HEADER, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC
from anabranch.runtime.regular_files import open_regular, read_regular

CHUNK_BYTES = 1 << 20
_INDEX_ENTRY = Struct(">ii")  # last offset of a batch - base offset, position of the batch
_TIME_INDEX_ENTRY = Struct(">qi")  # largest timestamp so far, offset - base offset
_TXN_INDEX_ENTRY = Struct(">hqqqq")  # 0, producer id, first, last and last stable offset
_MAGIC, _LAST_OFFSET_DELTA = 3, 6  # of HEADER's fields


class SourceChangedError(Exception):
    """The broker has replaced or removed listed files."""


class HistoryChangedError(Exception):
    """The offset at which an export continues is within a batch of the replica, so the replica has another history."""


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """A ``.log`` file with offsets from ``base_offset`` on, up to ``end_offset`` (None: the last segment)."""

    base_offset: int
    end_offset: int | None
    size_bytes: int
    inode: int

    @property
    def name(self) -> str:
        return f"{self.base_offset:020d}{LOG_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes [begin, end) of an open segment: whole batches with offsets in [base_offset, end_offset)."""

    descriptor: int
    source: str
    begin: int
    end: int
    base_offset: int
    end_offset: int
    files: dict[str, bytes]
    """The contents of the files beside the piece, by suffix."""

    @property
    def name(self) -> str:
        return f"{self.base_offset:020d}{LOG_SUFFIX}"

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin

    def chunks(self) -> Iterator[bytes]:
        """The piece's bytes. Raises SourceChangedError when the file has become shorter."""
        position = self.begin
        while position < self.end:
            chunk = os.pread(self.descriptor, min(CHUNK_BYTES, self.end - position), position)
            if not chunk:
                raise SourceChangedError(f"{self.source} ends at byte {position} now, not at byte {self.end}")
            position += len(chunk)
            yield chunk


def list_segments(directory: Path) -> list[SourceSegment]:
    """The segments of a replica, ascending. Raises SourceChangedError while they are being replaced.

    The directory is read twice, so that segments removed by a compaction do not look like a gap. If a compaction ends
    between the two reads, the reads differ. A compaction that has not ended shows a ``.swap`` file in both reads.
    """
    first, second = scan_segments(directory), scan_segments(directory)
    if {base: inode for base, (inode, _) in first.items()} != {base: inode for base, (inode, _) in second.items()}:
        raise SourceChangedError(f"the segments of {directory} are changing")
    bases = sorted(second)
    following = dict(pairwise(bases))
    return [SourceSegment(base, following.get(base), second[base][1], second[base][0]) for base in bases]


def scan_segments(directory: Path) -> dict[int, tuple[int, int]]:
    """The inode and size of each segment by base offset. Raises SourceChangedError."""
    found = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            base = offset_of(entry.name)
            if base is None:
                continue
            if entry.name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                raise SourceChangedError(f"{directory}/{entry.name} is about to replace other segments")
            if entry.name == f"{base:020d}{LOG_SUFFIX}":
                try:
                    state = entry.stat()
                except FileNotFoundError:
                    raise SourceChangedError(f"{directory}/{entry.name} was removed") from None
                found[base] = (state.st_ino, state.st_size)
    return found


def wanted_segments(
    segments: Iterable[SourceSegment], start_offset: int, log_start_offset: int, limit: int
) -> list[SourceSegment]:
    """The segments that may have offsets in [start_offset, limit) and are not below the log start."""
    lowest = max(start_offset, log_start_offset)
    return [
        segment
        for segment in segments
        if segment.base_offset < limit and (segment.end_offset is None or segment.end_offset > lowest)
    ]


@contextlib.contextmanager
def open_piece(directory: Path, segment: SourceSegment, start_offset: int, limit: int) -> Iterator[Piece]:
    """The batches of a segment in [start_offset, limit); a piece may be empty.

    Raises SourceChangedError when the file is not the listed one, HistoryChangedError when ``start_offset`` is within a
    batch, and other OSErrors.
    """
    path = directory / segment.name
    try:
        descriptor = open_regular(os.fspath(path), os.O_RDONLY)
    except FileNotFoundError:
        raise SourceChangedError(f"{path} was removed") from None
    try:
        yield _piece(path, segment, descriptor, start_offset, limit)
    finally:
        os.close(descriptor)


def _piece(path: Path, segment: SourceSegment, descriptor: int, start_offset: int, limit: int) -> Piece:
    raw = {suffix: _read(path.with_suffix(suffix)) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)}
    snapshot = _read(path.with_suffix(SNAPSHOT_SUFFIX))
    # The files beside the log are read before the check that a compaction has not replaced the log.
    now = _inode(path)
    if not segment.inode == os.fstat(descriptor).st_ino == now:
        raise SourceChangedError(f"{path} was {'removed' if now is None else 'replaced'}")
    index = _entries(_INDEX_ENTRY, raw[INDEX_SUFFIX])
    begin = 0
    if start_offset > segment.base_offset:
        begin, _ = _boundary(descriptor, segment.base_offset, index or [], start_offset)
    if segment.end_offset is not None and segment.end_offset <= limit:
        end, end_offset = os.fstat(descriptor).st_size, segment.end_offset
    else:
        end, end_offset = _boundary(descriptor, segment.base_offset, index or [], limit, at_most=True)
    base_offset = max(start_offset, segment.base_offset)
    end_offset = max(end_offset, base_offset)
    files = {
        INDEX_SUFFIX: _index_of_piece(index, segment.base_offset - base_offset, begin, max(begin, end)),
        TIME_INDEX_SUFFIX: _time_index_of_piece(
            _entries(_TIME_INDEX_ENTRY, raw[TIME_INDEX_SUFFIX]), segment.base_offset, base_offset, end_offset
        ),
        TXN_INDEX_SUFFIX: _txn_index_of_piece(raw[TXN_INDEX_SUFFIX], base_offset, end_offset),
        SNAPSHOT_SUFFIX: snapshot if begin == 0 and base_offset == segment.base_offset else None,
    }
    kept = {suffix: data for suffix, data in files.items() if data is not None}
    return Piece(descriptor, segment.name, begin, max(begin, end), base_offset, end_offset, kept)


def _boundary(
    descriptor: int, base_offset: int, index: Sequence[tuple[int, int]], offset: int, *, at_most: bool = False
) -> tuple[int, int]:
    """The position of the first batch that reaches ``offset``, and the first offset after the previous batch.

    The search begins at the last index entry below ``offset``, or at the beginning when the index is wrong. Without
    ``at_most``, raises HistoryChangedError if that batch begins below ``offset``. With ``at_most`` such a batch is left
    out.
    """
    size = os.fstat(descriptor).st_size
    position, reached = 0, base_offset
    below = [(relative, at) for relative, at in index if base_offset + relative < offset and 0 <= at < size]
    for relative, at in below[:-5:-1]:
        batch = next(_batches(descriptor, at, size), None)
        if batch is not None and base_offset <= batch[1] <= min(base_offset + relative, offset):
            position, reached = at, batch[1]
            break
    for at, first, last, end in _batches(descriptor, position, size):
        if last >= offset:
            if first < offset and not at_most:
                raise HistoryChangedError(f"a batch has the offsets {first}-{last}")
            return at, reached
        position, reached = end, last + 1
    return position, reached


def _batches(descriptor: int, position: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Position, first and last offset, and end of the whole batches from ``position`` on."""
    chunk, chunk_at = b"", position
    while position + HEADER_BYTES <= size:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = os.pread(descriptor, 1 << 16, position), position
            if len(chunk) < HEADER_BYTES:
                return
        fields = HEADER.unpack_from(chunk, position - chunk_at)
        base_offset, length = fields[0], fields[1]
        end = position + LENGTH_PREFIX_BYTES + length
        if length < HEADER_BYTES - LENGTH_PREFIX_BYTES or end > size or fields[_MAGIC] != MAGIC:
            return
        yield position, base_offset, base_offset + fields[_LAST_OFFSET_DELTA], end
        position = end


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None


def _entries(entry: Struct, data: bytes | None) -> list[tuple[int, int]] | None:
    """The entries of an index file; a preallocated file ends in zeros."""
    if data is None:
        return None
    found = list(entry.iter_unpack(data[: len(data) // entry.size * entry.size]))
    return found[:1] + [fields for fields in found[1:] if any(fields)]


def _index_of_piece(entries: Sequence[tuple[int, int]] | None, shift: int, begin: int, end: int) -> bytes | None:
    if entries is None:
        return None
    return b"".join(_INDEX_ENTRY.pack(rel + shift, at - begin) for rel, at in entries if begin <= at < end)


def _time_index_of_piece(
    entries: Sequence[tuple[int, int]] | None, source_base: int, base_offset: int, end_offset: int
) -> bytes | None:
    if entries is None:
        return None
    shift = source_base - base_offset
    return b"".join(
        _TIME_INDEX_ENTRY.pack(timestamp, relative + shift)
        for timestamp, relative in entries
        if base_offset <= source_base + relative < end_offset
    )


def _txn_index_of_piece(data: bytes | None, base_offset: int, end_offset: int) -> bytes | None:
    """The index entries of aborted transactions whose last offset is in the piece."""
    if data is None:
        return None
    entries = _TXN_INDEX_ENTRY.iter_unpack(data[: len(data) // _TXN_INDEX_ENTRY.size * _TXN_INDEX_ENTRY.size])
    return b"".join(_TXN_INDEX_ENTRY.pack(*fields) for fields in entries if base_offset <= fields[3] < end_offset)
