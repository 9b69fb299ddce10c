"""Reads a segment file in runs of batches whose records are decoded together.

A run is a few megabytes of consecutive batches. ``segment_reader`` reads a batch with a fault again, record by record,
and describes the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
from fastcrc import crc32

from anabranch.audit.bounds import EVERYTHING, PartitionBounds
from anabranch.audit.segment_reader import MAX_DECOMPRESSED_BYTES, describe_damaged_length, read_batch
from anabranch.protocol.batch_layout import (
    CODEC_AT,
    CODEC_MASK,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAGIC_AT,
)
from anabranch.protocol.compression import CompressionType, CorruptRecordError, decompress
from anabranch.protocol.record_arrays import PADDING, Bools, Bytes, Columns, Ints, base_timestamps, decode

READ_BYTES = 16 * 1024 * 1024
RUN_BYTES = 16 * 1024 * 1024
"""A run ends at this many decompressed bytes of records, or at the end of one read from the file."""

FIELDS = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
"""The fields of ``batch_layout.HEADER``."""
Headers: TypeAlias = "np.ndarray[Any, np.dtype[np.void]]"
BASE_OFFSET, BATCH_LENGTH, LEADER_EPOCH, _MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA = range(7)
BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, COUNT = range(7, 13)
_NAMES = FIELDS.names or ()
_LAST_CODEC = max(CompressionType)


def _no_ints() -> Ints:
    return np.zeros(0, np.int64)


def _no_bools() -> Bools:
    return np.zeros(0, np.bool_)


@dataclass(slots=True)
class Run:
    """Consecutive batches and their records. Arrays and lists have one entry a batch.

    ``headers`` has the ``FIELDS`` of each header, and zeros for a batch without a plausible header (``has_header``).
    ``suspects`` has the offset of the record that a wrong CRC points to. Positions in ``columns`` are in ``body``.
    """

    positions: Ints = field(default_factory=_no_ints)
    headers: Headers = field(default_factory=lambda: np.zeros(0, FIELDS))
    has_header: Bools = field(default_factory=_no_bools)
    crc_ok: Bools = field(default_factory=_no_bools)
    errors: list[str | None] = field(default_factory=list)
    suspects: list[int | None] = field(default_factory=list)
    body: Bytes = field(default_factory=lambda: np.frombuffer(PADDING, np.uint8))
    columns: Columns = field(default_factory=lambda: Columns(*(_no_ints(),) * 9))

    def header_field(self, index: int) -> Ints:
        return self.headers[_NAMES[index]].astype(np.int64)


def scan(
    file: BinaryIO,
    size_bytes: int,
    begin: int = 0,
    end: int | None = None,
    bounds: PartitionBounds = EVERYTHING,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[Run]:
    """The batches of a segment of ``size_bytes`` that begin in ``[begin, end)``, up to the first damaged length.

    ``begin`` has to be the first byte of a batch. A batch is skipped if its header shows that no record is in
    ``bounds``.
    """
    has_bounds = bounds != EVERYTHING
    stop = size_bytes if end is None else min(end, size_bytes)
    position, wanted = begin, READ_BYTES
    while position < stop:
        asked = min(wanted, size_bytes - position)
        data = _read(file, position, asked)
        view, at, there, wanted = data.data, 0, len(data) - len(PADDING), READ_BYTES
        if there < asked:
            size_bytes = position + there  # the file was cut after its size was taken
        pending = _Pending(data, position, max_decompressed_bytes)
        while position + at < stop:
            left = size_bytes - position - at
            has_length = at + LENGTH_PREFIX_BYTES <= there
            length = LENGTH.unpack_from(view, at)[1] + LENGTH_PREFIX_BYTES if has_length else None
            if length is None or not HEADER_BYTES <= length <= left:
                if length is None and left >= LENGTH_PREFIX_BYTES:
                    break
                pending.add_damaged(at, describe_damaged_length(length, position + at, left))
                yield pending.run()
                return
            if at + length > there:
                wanted = max(wanted, length)
                break
            if not has_bounds or _may_be_in(bounds, HEADER.unpack_from(view, at)):
                pending.add(at, length)
            at += length
            if pending.bytes >= RUN_BYTES:
                yield pending.run()
                pending = _Pending(data, position, max_decompressed_bytes)
        if pending.at:
            yield pending.run()
        position += at


def unreadable(position: int, message: str) -> Run:
    """The run for a file that cannot be read: one damaged batch."""
    pending = _Pending(np.frombuffer(PADDING, np.uint8), position, 0)
    pending.add_damaged(0, message)
    return pending.run()


def _read(file: BinaryIO, position: int, count: int) -> Bytes:
    """At most ``count`` bytes of a file from ``position`` on, followed by ``PADDING``.

    Arrow reuses its memory for the next bytes; new memory from the system would have to be cleared first.
    """
    data: Bytes = np.frombuffer(pa.allocate_buffer(count + len(PADDING)), np.uint8)
    file.seek(position)
    view, there = data.data, 0
    while there < count and (more := file.readinto(view[there:count])):  # type: ignore[attr-defined]
        there += more
    data[there : there + len(PADDING)] = 0
    return data[: there + len(PADDING)]


def _may_be_in(bounds: PartitionBounds, header: tuple[int, ...]) -> bool:
    """Whether a batch may have records in these bounds; always True for a batch with another magic."""
    first = header[BASE_OFFSET]
    outside = first >= bounds.end_offset or first + header[LAST_OFFSET_DELTA] < bounds.first_offset
    return header[_MAGIC] != MAGIC or not (outside or header[MAX_TIMESTAMP] < bounds.first_timestamp)


class _Pending:
    """The batches of the next run. ``data`` has the bytes of a file from ``position`` on.

    Records are not copied as long as no batch is compressed.
    """

    def __init__(self, data: Bytes, position: int, max_decompressed_bytes: int) -> None:
        self._data, self._view, self._position = data, data.data, position
        self._max_decompressed_bytes = max_decompressed_bytes
        self._lengths: list[int] = []
        self._crcs: list[int] = []
        self._decompressed: dict[int, bytes | None] = {}
        self._damaged: str | None = None
        self.at: list[int] = []
        self.bytes = 0

    def add_damaged(self, at: int, message: str) -> None:
        """Add a damaged place: the bytes at ``at`` are no batch, and end the run."""
        self.at.append(at)
        self._lengths.append(0)
        self._crcs.append(0)
        self._damaged = message

    def add(self, at: int, length: int) -> None:
        view = self._view
        self._crcs.append(crc32.iscsi(view[at + CRC_START : at + length]))
        if view[at + CODEC_AT] & CODEC_MASK and view[at + MAGIC_AT] == MAGIC:
            body = _decompressed(view[at : at + length], self._max_decompressed_bytes)
            self._decompressed[len(self.at)] = body
            self.bytes += len(body or b"")
        else:
            self.bytes += length
        self.at.append(at)
        self._lengths.append(length)

    def run(self) -> Run:
        """The run with its records."""
        at, lengths = np.array(self.at, np.int64), np.array(self._lengths, np.int64)
        headers, has_header = self._headers(at, lengths)
        crc_ok = has_header & (headers["crc"] == np.array(self._crcs, np.uint32))
        nothing: list[Any] = [None] * len(at)
        run = Run(self._position + at, headers, has_header, crc_ok, nothing, list(nothing))
        good = has_header & _plausible(headers)
        good[[index for index, body in self._decompressed.items() if body is None]] = False
        run.body, starts, ends = self._bodies(at, lengths, good)
        counts = np.where(good, run.header_field(COUNT), 0)
        is_append_time = run.header_field(ATTRIBUTES) & LOG_APPEND_TIME_BIT != 0
        bases = base_timestamps(is_append_time, run.header_field(BASE_TIMESTAMP))
        run.columns, malformed = decode(run.body, starts, ends, counts, run.header_field(LAST_OFFSET_DELTA), bases)
        for index in np.flatnonzero(~crc_ok | ~good | malformed):
            if self._lengths[index]:
                self._explain(run, int(index))
            else:
                run.errors[index] = self._damaged
        return run

    def _headers(self, at: Ints, lengths: Ints) -> tuple[Headers, Bools]:
        """The headers of the batches, zeros for a batch of another magic, and a mask of the batches with a header."""
        rows = np.minimum(at[:, None] + np.arange(HEADER_BYTES), len(self._data) - 1)
        headers: Headers = self._data[rows].view(FIELDS).reshape(len(at))
        has_header = (lengths > 0) & (headers["magic"] == MAGIC)
        headers[~has_header] = np.zeros((), FIELDS)
        return headers, has_header

    def _bodies(self, at: Ints, lengths: Ints, good: Bools) -> tuple[Bytes, Ints, Ints]:
        """The record bytes of all batches, and the start and end of each batch within these bytes."""
        if not self._decompressed:
            begins = at + np.minimum(HEADER_BYTES, lengths)
            return self._data, begins, np.where(good, at + lengths, begins)
        view = self._view
        pieces: list[bytes | memoryview] = []
        for index, (begin, length) in enumerate(zip(self.at, self._lengths, strict=True)):
            if not good[index]:
                pieces.append(b"")
            elif index in self._decompressed:
                pieces.append(self._decompressed[index] or b"")
            else:
                pieces.append(view[begin + HEADER_BYTES : begin + length])
        ends = np.cumsum(np.fromiter((len(piece) for piece in pieces), np.int64, len(pieces)))
        body = np.frombuffer(b"".join([*pieces, PADDING]), np.uint8)
        return body, np.concatenate([np.zeros(1, np.int64), ends[:-1]]), ends

    def _explain(self, run: Run, index: int) -> None:
        """Let the reader of single records describe the fault of a batch."""
        at = self.at[index]
        batch = self._view[at : at + self._lengths[index]].tobytes()
        row = next(read_batch(batch, int(run.positions[index]), self._max_decompressed_bytes))
        if row.error is None:
            raise AssertionError(f"batch at byte {run.positions[index]} is malformed to one reader only")
        run.errors[index], run.suspects[index] = row.error, row.suspect_offset


def _plausible(headers: Any) -> Any:
    """Whether the fields of a header are valid. ``headers`` is one header as a dictionary, or an array of headers."""
    count, last_offset_delta = headers["count"], headers["last_offset_delta"]
    known = (headers["attributes"] & CODEC_MASK) <= _LAST_CODEC
    found = known & (headers["base_offset"] >= 0) & (last_offset_delta >= 0) & (count >= 0)
    return found & (count - 1 <= last_offset_delta)  # count - 1 overflows only if count < 0, which is invalid


def _decompressed(batch: memoryview, max_decompressed_bytes: int) -> bytes | None:
    """The decompressed bytes of a batch's records; None when its header or its compressed bytes are invalid."""
    header = HEADER.unpack_from(batch)
    if not _plausible(dict(zip(_NAMES, header, strict=True))):
        return None
    if header[COUNT] == 0 and len(batch) == HEADER_BYTES:
        return b""  # compaction keeps the bare header while the producer's state is needed
    codec = CompressionType(header[ATTRIBUTES] & CODEC_MASK)
    try:
        return decompress(codec, batch[HEADER_BYTES:], max_decompressed_bytes)
    except CorruptRecordError:
        return None
