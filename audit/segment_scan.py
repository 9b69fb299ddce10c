"""Read a segment file in runs of batches whose records are decoded together.

A run is a few megabytes of consecutive batches. ``segment_reader`` reads a batch with a fault once more, record by
record, and says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, TypeAlias

import numpy as np
from fastcrc import crc32

from anabranch.audit.bounds import EVERYTHING, Bounds
from anabranch.audit.segment_reader import MAX_DECOMPRESSED_BYTES, describe_damaged_length, read_batch
from anabranch.protocol.batch_layout import (
    CODEC_MASK,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH,
    LENGTH_PREFIX_BYTES,
    MAGIC,
)
from anabranch.protocol.compression import CompressionType, CorruptRecordError, decompress
from anabranch.protocol.record_arrays import PADDING, Bytes, Columns, Ints, decode

Fields: TypeAlias = tuple[int, ...]
READ_BYTES = 8 * 1024 * 1024
RUN_BYTES = 16 * 1024 * 1024
"""A run ends behind the batch whose records reach so many bytes, decompressed."""

NO_BATCH: Fields = (0,) * 13
"""In place of a header that cannot be trusted to be one."""
BASE_OFFSET, BATCH_LENGTH, LEADER_EPOCH, _MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA = range(7)
BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, COUNT = range(7, 13)


@dataclass(slots=True)
class Run:
    """Consecutive batches and their records. Lists have one entry a batch.

    ``headers`` holds the fields of ``batch_layout.HEADER``, or ``NO_BATCH``. ``suspects`` is the offset of the one
    record that a wrong CRC points to. Positions in ``columns`` are those in ``body``.
    """

    positions: list[int] = field(default_factory=list)
    headers: list[Fields] = field(default_factory=list)
    crc_ok: list[bool] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)
    suspects: list[int | None] = field(default_factory=list)
    body: Bytes = field(default_factory=lambda: np.frombuffer(PADDING, np.uint8))
    columns: Columns = field(default_factory=lambda: Columns(*(np.zeros(0, np.int64),) * 9))

    def header_field(self, index: int) -> Ints:
        return np.fromiter((header[index] for header in self.headers), np.int64, len(self.headers))


def scan(
    file: BinaryIO,
    size_bytes: int,
    begin: int = 0,
    end: int | None = None,
    bounds: Bounds = EVERYTHING,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[Run]:
    """The batches of a segment of ``size_bytes`` that begin in ``[begin, end)``, up to the first damaged length.

    ``begin`` has to be the first byte of a batch. Batches whose headers show that no record is in ``bounds`` are
    skipped.
    """
    has_bounds = bounds != EVERYTHING
    stop = size_bytes if end is None else min(end, size_bytes)
    position, pending = begin, _Pending(max_decompressed_bytes)
    while position < stop:
        file.seek(position)
        data = file.read(min(READ_BYTES, size_bytes - position))
        at, view = 0, memoryview(data)
        while position + at < stop:
            length = _length(data, at)
            left = size_bytes - position - at
            if length is None or not HEADER_BYTES <= length <= left:
                if length is None and left >= LENGTH_PREFIX_BYTES:
                    break
                pending.add_damaged(position + at, describe_damaged_length(length, position + at, left))
                yield pending.run()
                return
            if at + length > len(data):
                if at == 0:
                    data += file.read(length - len(data))
                    view = memoryview(data)
                    continue
                break
            if not has_bounds or _may_be_in(bounds, HEADER.unpack_from(data, at)):
                pending.add(view[at : at + length], position + at)
            at += length
            if pending.bytes >= RUN_BYTES:
                yield pending.run()
                pending = _Pending(max_decompressed_bytes)
        position += at
    if pending.positions:
        yield pending.run()


def _may_be_in(bounds: Bounds, header: Fields) -> bool:
    """Whether a batch may have records in these bounds, or may be damaged."""
    first = header[BASE_OFFSET]
    outside = first >= bounds.end_offset or first + header[LAST_OFFSET_DELTA] < bounds.first_offset
    return header[_MAGIC] != MAGIC or not (outside or header[MAX_TIMESTAMP] < bounds.first_timestamp)


def _length(data: bytes, at: int) -> int | None:
    """The length of the batch at ``at``, its prefix included; None when that is cut off."""
    if at + LENGTH_PREFIX_BYTES > len(data):
        return None
    length: int = LENGTH.unpack_from(data, at)[1]
    return length + LENGTH_PREFIX_BYTES


class _Pending:
    """Batches that are to become a run."""

    def __init__(self, max_decompressed_bytes: int) -> None:
        self._max_decompressed_bytes = max_decompressed_bytes
        self._run = Run()
        self._batches: list[memoryview] = []
        self._bodies: list[bytes | memoryview] = []
        self._decoded: list[bool] = []
        self.bytes = 0

    @property
    def positions(self) -> list[int]:
        return self._run.positions

    def add_damaged(self, position: int, message: str) -> None:
        self._add(memoryview(b""), position, NO_BATCH, False, message, None, None)

    def add(self, batch: memoryview, position: int) -> None:
        header = HEADER.unpack_from(batch)
        if header[_MAGIC] != MAGIC:
            (row,) = read_batch(bytes(batch), position)
            self._add(batch, position, NO_BATCH, False, row.error, None, None)
            return
        crc_ok = crc32.iscsi(batch[CRC_START:]) == header[CRC]
        body = _body(batch, header, self._max_decompressed_bytes)
        error, suspect = None, None
        if not crc_ok or body is None:
            row = next(read_batch(bytes(batch), position, self._max_decompressed_bytes))
            error, suspect = row.error, row.suspect_offset
        self._add(batch, position, header, crc_ok, error, suspect, body)

    def _add(
        self,
        batch: memoryview,
        position: int,
        header: Fields,
        crc_ok: bool,
        error: str | None,
        suspect: int | None,
        body: bytes | memoryview | None,
    ) -> None:
        run = self._run
        run.positions.append(position)
        run.headers.append(header)
        run.crc_ok.append(crc_ok)
        run.errors.append(error)
        run.suspects.append(suspect)
        self._batches.append(batch)
        self._decoded.append(body is not None)
        self._bodies.append(body or b"")
        self.bytes += len(body or b"")

    def run(self) -> Run:
        """The run with its records."""
        run = self._run
        ends = np.cumsum(np.fromiter((len(body) for body in self._bodies), np.int64, len(self._bodies)))
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        counts = np.where(np.array(self._decoded), run.header_field(COUNT), 0)
        run.body = np.frombuffer(b"".join([*self._bodies, PADDING]), np.uint8)
        run.columns, malformed = decode(run.body, starts, ends, counts, run.header_field(LAST_OFFSET_DELTA))
        for index in np.flatnonzero(malformed):
            if run.errors[index] is None:
                batch = bytes(self._batches[index])
                row = next(read_batch(batch, run.positions[index], self._max_decompressed_bytes))
                if row.error is None:
                    raise AssertionError(f"batch at byte {run.positions[index]} is malformed to one reader only")
                run.errors[index] = row.error
        return run


def _body(batch: memoryview, header: Fields, max_decompressed_bytes: int) -> bytes | memoryview | None:
    """The records' bytes, decompressed; None when the header or the compressed bytes cannot be right."""
    codec, count, last_offset_delta = header[ATTRIBUTES] & CODEC_MASK, header[COUNT], header[LAST_OFFSET_DELTA]
    if header[BASE_OFFSET] < 0 or last_offset_delta < 0 or not 0 <= count <= last_offset_delta + 1:
        return None
    if count == 0 and len(batch) == HEADER_BYTES:
        return b""  # what compaction leaves of a batch whose producer state still matters
    if codec == CompressionType.NONE:
        return batch[HEADER_BYTES:]
    if codec > max(CompressionType):
        return None
    try:
        return decompress(CompressionType(codec), batch[HEADER_BYTES:], max_decompressed_bytes)
    except CorruptRecordError:
        return None
