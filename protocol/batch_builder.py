"""Writing a record batch v2: append records, compress, checksum; compacted batches.

mypyc compiles this file unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Final, cast

from fastcrc import crc32

from anabranch.protocol.batch_layout import (
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    CREATE_TIME,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAX_BATCH_ELEMENTS,
    MAX_LONG,
    MAX_RECORD_OVERHEAD_BYTES,
    MAX_SEQUENCE,
    MIN_LONG,
    SMALL_BODY_BYTES,
    TRANSACTIONAL_BIT,
    Header,
)
from anabranch.protocol.compression import CompressionType, compress, copied
from anabranch.protocol.records import Record, RecordBatch
from anabranch.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP


def zigzag_varint(value: int) -> bytes:
    """A signed number of at most 64 bits as Kafka's varint or varlong."""
    z = value << 1 if value >= 0 else (-value << 1) - 1
    if z < 0x80:
        return bytes((z,))
    out = bytearray()
    while z >= 0x80:
        out.append(z & 0x7F | 0x80)
        z >>= 7
    out.append(z)
    return bytes(out)


_SMALL_LIMIT: Final = 2048
_SMALL: Final = [zigzag_varint(n) for n in range(_SMALL_LIMIT)]


def _varint(value: int) -> bytes:
    """``zigzag_varint`` with a table for small numbers."""
    return _SMALL[value] if 0 <= value < _SMALL_LIMIT else zigzag_varint(value)


def estimate_record_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """At most this many bytes are needed for a record with these fields, in any batch."""
    size = MAX_RECORD_OVERHEAD_BYTES + 15
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        size += 10 + len(name.encode()) + (len(content) if content is not None else 0)
    return size


def estimate_batch_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """At most this many bytes are needed for an uncompressed batch with only this record."""
    return HEADER_BYTES + estimate_record_bytes(key, value, headers)


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [_varint(len(headers))]
    for name, content in headers:
        raw = name.encode()
        parts.append(_varint(len(raw)))
        parts.append(raw)
        if content is None:
            parts.append(b"\x01")
        else:
            parts.append(_varint(len(content)))
            parts.append(content)
    return b"".join(parts)


RECORDS_AT_ONCE: Final = 2_000
"""The number of records that are processed between two yields to other tasks."""


class BatchBuilder:
    """Builds one batch by appending; used once.

    ``max_bytes`` bounds the batch; the first record always fits. With compression, ``compression_ratio`` is the
    expected compressed size divided by the plain size. With a ratio of 1.0 the batch never exceeds the bound. A lower
    ratio is the caller's estimate from earlier batches. The batch stays uncompressed when the codec would make it
    larger.
    """

    __slots__ = (
        "_base_timestamp",
        "_buffer",
        "_count",
        "_has_base",
        "_last_delta",
        "_limit",
        "_max_timestamp",
        "compression",
        "level",
    )

    def __init__(
        self,
        compression: CompressionType = CompressionType.NONE,
        max_bytes: int = 16384,
        *,
        compression_ratio: float = 1.0,
        level: int | None = None,
    ) -> None:
        self.compression = compression
        self.level = level
        plain = compression == CompressionType.NONE or compression_ratio >= 1.0
        self._limit = (
            max_bytes if plain else HEADER_BYTES + int((max_bytes - HEADER_BYTES) / max(compression_ratio, 0.01))
        )
        self._buffer = bytearray(HEADER_BYTES)
        self._count = 0
        self._base_timestamp = NO_TIMESTAMP
        self._has_base = False
        self._max_timestamp = NO_TIMESTAMP
        self._last_delta = -1

    def start_at(self, base_timestamp: int, max_timestamp: int) -> None:
        """Set the timestamps of a rewritten batch; without this call the first record sets the base timestamp."""
        self._base_timestamp = base_timestamp
        self._max_timestamp = max_timestamp
        self._has_base = True

    @property
    def count(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of the batch so far, uncompressed, header included."""
        return len(self._buffer)

    def append(self, key: bytes | None, value: bytes | None, headers: Sequence[Header], timestamp: int) -> int | None:
        """Add a record and return its offset relative to the batch's first offset; None if the record does not fit."""
        delta = self._last_delta + 1
        timestamp_delta = timestamp - self._base_timestamp if self._has_base else 0
        # The table is looked up here: in pure Python a call takes longer.
        if key is None:
            key = b""
            key_length = b"\x01"
        else:
            size = len(key)
            key_length = _SMALL[size] if size < _SMALL_LIMIT else zigzag_varint(size)
        if value is None:
            value = b""
            value_length = b"\x01"
        else:
            size = len(value)
            value_length = _SMALL[size] if size < _SMALL_LIMIT else zigzag_varint(size)
        body = b"".join(
            (
                b"\x00",
                _SMALL[timestamp_delta] if 0 <= timestamp_delta < _SMALL_LIMIT else zigzag_varint(timestamp_delta),
                _SMALL[delta] if delta < _SMALL_LIMIT else zigzag_varint(delta),
                key_length,
                key,
                value_length,
                value,
                _encode_headers(headers) if headers else b"\x00",
            )
        )
        size = len(body)
        prefix = _SMALL[size] if size < _SMALL_LIMIT else zigzag_varint(size)
        buffer = self._buffer
        count = self._count
        if count and (len(buffer) + len(prefix) + size > self._limit or count == MAX_BATCH_ELEMENTS):
            return None
        buffer += prefix
        buffer += body
        if not self._has_base:
            self._base_timestamp = timestamp
            self._has_base = True
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self._count = count + 1
        self._last_delta = delta
        return delta

    def append_at(
        self, delta: int, key: bytes | None, value: bytes | None, headers: Sequence[Header], timestamp: int
    ) -> int | None:
        """``append`` with an offset delta above that of the last record: compaction keeps offsets and leaves gaps."""
        last = self._last_delta
        if delta <= last:
            raise ValueError(f"offset delta {delta} is not above the last one, {last}")
        self._last_delta = delta - 1
        appended: int | None = None
        try:
            appended = self.append(key, value, headers, timestamp)
        finally:
            if appended is None:
                self._last_delta = last
        return appended

    def build(
        self,
        base_offset: int = 0,
        leader_epoch: int = NO_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
        is_control: bool = False,
        *,
        timestamp_type: int = CREATE_TIME,
        last_offset_delta: int = -1,
        has_delete_horizon: bool = False,
    ) -> bytes:
        """Finish the batch. A ``last_offset_delta`` above that of the last record leaves a gap, as compaction does.

        May be called in a thread.
        """
        codec = self.compression
        buffer = self._buffer
        if codec != CompressionType.NONE and self._count:
            packed = compress(codec, memoryview(buffer)[HEADER_BYTES:], self.level)
            if len(packed) < len(buffer) - HEADER_BYTES:
                out = bytearray(HEADER_BYTES)
                out += packed
                buffer = out
            else:
                codec = CompressionType.NONE
        attributes = int(codec)
        if timestamp_type == LOG_APPEND_TIME:
            attributes |= LOG_APPEND_TIME_BIT
        if is_transactional:
            attributes |= TRANSACTIONAL_BIT
        if is_control:
            attributes |= CONTROL_BIT
        if has_delete_horizon:
            attributes |= DELETE_HORIZON_BIT
        HEADER.pack_into(
            buffer,
            0,
            base_offset,
            len(buffer) - LENGTH_PREFIX_BYTES,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            max(self._last_delta, last_offset_delta),
            self._base_timestamp,
            self._max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self._count,
        )
        struct.pack_into(">I", buffer, CRC_AT, crc32.iscsi(memoryview(buffer)[CRC_START:]))
        return copied(memoryview(buffer))


def build_batch(
    records: Iterable[tuple[bytes | None, bytes | None, Sequence[Header], int]],
    *,
    compression: CompressionType = CompressionType.NONE,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """One batch of all ``records`` (key, value, headers, timestamp), without a bound on its size."""
    builder = BatchBuilder(compression, max_bytes=MAX_SEQUENCE)
    for key, value, headers, timestamp in records:
        builder.append(key, value, headers, timestamp)
    return builder.build(
        base_offset, leader_epoch, producer_id, producer_epoch, base_sequence, is_transactional, is_control
    )


def retain_records(batch: RecordBatch, records: Sequence[Record], delete_horizon_ms: int | None = None) -> bytes:
    """Like ``retain_in_steps``, but in one call."""
    steps = retain_in_steps(batch, records, delete_horizon_ms)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return cast(bytes, stop.value)


def retain_in_steps(
    batch: RecordBatch, records: Sequence[Record], delete_horizon_ms: int | None = None
) -> Generator[Callable[[], None] | None, None, bytes]:
    """Reduce ``batch`` to ``records``, as compaction does: offsets, sequences and last offset stay.

    Without records the result is a bare header, which keeps the producer's last sequence. ``delete_horizon_ms``
    replaces the base timestamp and sets its attribute bit (KIP-534). Yields after every ``RECORDS_AT_ONCE`` records,
    and may yield a function for a thread, as ``RecordBatch.read_in_steps`` does.
    """
    builder = BatchBuilder(batch.compression, max_bytes=MAX_SEQUENCE)
    horizon = delete_horizon_ms
    if horizon is None and batch.has_delete_horizon:
        horizon = batch.base_timestamp
    keeps_max = batch.timestamp_type == LOG_APPEND_TIME or not records
    base = batch.max_timestamp if horizon is None else horizon
    if records and horizon is None:
        base = yield from _base_timestamp(records, batch.base_timestamp)
    builder.start_at(base, batch.max_timestamp if keeps_max else NO_TIMESTAMP)
    yield from _append_all(builder, records, batch.base_offset)

    build = partial(
        builder.build,
        batch.base_offset,
        batch.partition_leader_epoch,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.is_transactional,
        batch.is_control,
        timestamp_type=batch.timestamp_type,
        last_offset_delta=batch.last_offset_delta,
        has_delete_horizon=horizon is not None,
    )
    return (yield from _built(builder, build))


def _base_timestamp(records: Sequence[Record], known: int) -> Generator[None, None, int]:
    """The first record's timestamp, or the base ``known``, which suits all records, if one is 2**63 ms from the first.

    Yields after every ``RECORDS_AT_ONCE`` records.
    """
    first = records[0].timestamp
    for start in range(0, len(records), RECORDS_AT_ONCE):
        if start:
            yield None
        some = records[start : start + RECORDS_AT_ONCE]
        if not all(MIN_LONG <= record.timestamp - first <= MAX_LONG for record in some):
            return known
    return first


def recode_in_steps(batch: RecordBatch, codec: CompressionType) -> Generator[Callable[[], None] | None, None, bytes]:
    """Encode a non-empty ``batch`` again, with another compression. Yields as ``retain_in_steps`` does."""
    builder = BatchBuilder(codec, max_bytes=MAX_SEQUENCE)
    records = batch.records()
    base = yield from _base_timestamp(records, batch.base_timestamp)
    builder.start_at(base, batch.max_timestamp)
    yield from _append_all(builder, records, batch.base_offset)

    build = partial(
        builder.build,
        batch.base_offset,
        batch.partition_leader_epoch,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.is_transactional,
        batch.is_control,
    )
    return (yield from _built(builder, build))


def _append_all(
    builder: BatchBuilder, records: Sequence[Record], base_offset: int
) -> Generator[Callable[[], None] | None, None, None]:
    """Append the records; yields after every ``RECORDS_AT_ONCE`` records, and earlier for large records."""
    count, size = 0, 0
    for record in records:
        builder.append_at(record.offset - base_offset, record.key, record.value, record.headers, record.timestamp)
        count += 1
        if count == RECORDS_AT_ONCE or builder.size_bytes - size > SMALL_BODY_BYTES:
            count, size = 0, builder.size_bytes
            yield None


class _LargeBuild:
    """The last step of a large batch: its compression takes long. ``run`` may be called in a thread."""

    __slots__ = ("_build", "_built")

    def __init__(self, build: Callable[[], bytes]) -> None:
        self._build = build
        self._built: bytes | None = None

    def run(self) -> None:
        """Build the batch, unless it is built already."""
        if self._built is None:
            self._built = self._build()

    def result(self) -> bytes:
        """The built batch."""
        self.run()
        return cast(bytes, self._built)


def _built(builder: BatchBuilder, build: Callable[[], bytes]) -> Generator[Callable[[], None] | None, None, bytes]:
    if builder.size_bytes <= SMALL_BODY_BYTES:
        return build()
    large = _LargeBuild(build)
    yield large.run
    return large.result()
