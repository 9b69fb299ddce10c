"""Reading a record batch v2: header view, CRC32C, iteration (KIP-98).

A batch is 61 bytes of header and ``count`` records, compressed as one block. The CRC32C covers byte 21 to the end, so a
broker may rewrite base offset and partition leader epoch in place. Views share the caller's buffer; nothing is copied
until records are read. This file has no module state and no dynamic code, so mypyc compiles it unchanged.
``batch_builder`` writes these batches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from typing import TypeAlias

from fastcrc import crc32

from anabranch.protocol.batch_layout import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    CREATE_TIME,
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAGIC_AT,
    MAX_BATCH_ELEMENTS,
    MAX_CONTROL_BYTES,
    MAX_LONG,
    MAX_SEQUENCE,
    MIN_LONG,
    SMALL_BODY_BYTES,
    SMALLEST_RECORD_BYTES,
    TRANSACTIONAL_BIT,
    Buffer,
    Header,
)
from anabranch.protocol.compression import MOST_GROWTH, CompressionType, CorruptRecordError, decompress
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.sentinels import NO_PRODUCER_ID, NO_SEQUENCE

Fields: TypeAlias = tuple[list[int], list[int], list[bytes | None], list[bytes | None], list[list[Header]]]
"""Offsets, timestamps, keys, values and headers."""


def read_varint(data: bytes, pos: int, bits: int) -> tuple[int, int]:
    """Read a zigzag number of at most ``bits`` bits. Returns it and the position after it. IndexError if data ends."""
    byte = data[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    z = byte & 0x7F
    shift = 7
    while True:
        byte = data[pos]
        pos += 1
        z |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits + 6:
            raise CorruptRecordError(f"varint before byte {pos} has more than {bits} bits")
    if z >> bits:
        raise CorruptRecordError(f"varint before byte {pos} has more than {bits} bits")
    return (z >> 1) ^ -(z & 1), pos


# ---------------------------------------------------------------- records


class Record:
    """One record of a batch. Key, value and headers are cut out of the batch's bytes when read."""

    __slots__ = (
        "_data",
        "_header_count",
        "_headers_at",
        "_key_at",
        "_key_end",
        "_value_at",
        "_value_end",
        "offset",
        "timestamp",
    )

    def __init__(
        self,
        data: bytes,
        offset: int,
        timestamp: int,
        key_at: int,
        key_end: int,
        value_at: int,
        value_end: int,
        headers_at: int,
        header_count: int,
    ) -> None:
        self._data = data
        self.offset = offset
        self.timestamp = timestamp
        self._key_at = key_at
        self._key_end = key_end
        self._value_at = value_at
        self._value_end = value_end
        self._headers_at = headers_at
        self._header_count = header_count

    @property
    def key(self) -> bytes | None:
        return self._data[self._key_at : self._key_end] if self._key_end >= 0 else None

    @property
    def value(self) -> bytes | None:
        return self._data[self._value_at : self._value_end] if self._value_end >= 0 else None

    @property
    def headers(self) -> list[Header]:
        if self._header_count == 0:
            return []
        return _read_headers(self._data, self._headers_at, self._header_count)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (
            self.offset == other.offset
            and self.timestamp == other.timestamp
            and self.key == other.key
            and self.value == other.value
            and self.headers == other.headers
        )

    def __hash__(self) -> int:
        return hash((self.offset, self.timestamp, self.key, self.value))

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, "
            f"headers={self.headers!r})"
        )


def _read_headers(data: bytes, pos: int, count: int) -> list[Header]:
    """Headers already checked by ``skip_headers``."""
    headers: list[Header] = []
    for _ in range(count):
        length, pos = read_varint(data, pos, 32)
        name = data[pos : pos + length].decode("utf-8", "replace")
        length, pos = read_varint(data, pos + length, 32)
        if length < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[pos : pos + length]))
            pos += length
    return headers


def skip_headers(data: bytes, pos: int, count: int, end: int) -> int:
    """The position after ``count`` headers, every length checked against ``end``."""
    for _ in range(count):
        length, pos = read_varint(data, pos, 32)
        if length < 0:
            raise CorruptRecordError(f"header key before byte {pos} is null")
        if length > end - pos:
            raise CorruptRecordError(f"header key at byte {pos} runs past the record's end")
        length, pos = read_varint(data, pos + length, 32)
        if length > end - pos or length < -1:
            raise CorruptRecordError(f"header value at byte {pos} has length {length}")
        if length > 0:
            pos += length
    return pos


def read_record(data: bytes, pos: int, end: int, base_offset: int, base_timestamp: int, fixed: bool) -> Record:
    """The record in ``data[pos:end]``, without its length. ``fixed``: every record has ``base_timestamp``."""
    delta, pos = read_varint(data, pos + 1, 64)
    timestamp = base_timestamp if fixed else base_timestamp + delta
    if not MIN_LONG <= timestamp <= MAX_LONG:
        raise CorruptRecordError(
            f"record before byte {pos} has the timestamp {timestamp}, which does not fit into 64 bits",
            ErrorCode.INVALID_TIMESTAMP,
        )
    delta, pos = read_varint(data, pos, 32)
    if delta < 0:
        raise CorruptRecordError(f"record before byte {pos} has offset delta {delta}")
    length, key_at = read_varint(data, pos, 32)
    if length > end - key_at or length < -1:
        raise CorruptRecordError(f"key at byte {key_at} has length {length}, the record ends at byte {end}")
    key_end = key_at + length if length >= 0 else -1
    length, value_at = read_varint(data, key_at if length < 0 else key_end, 32)
    if length > end - value_at or length < -1:
        raise CorruptRecordError(f"value at byte {value_at} has length {length}, the record ends at byte {end}")
    value_end = value_at + length if length >= 0 else -1
    count, pos = read_varint(data, value_at if length < 0 else value_end, 32)
    headers_at = pos
    if count:
        if not 0 <= count <= min((end - pos) >> 1, MAX_BATCH_ELEMENTS):
            raise CorruptRecordError(f"record before byte {pos} claims {count} headers")
        pos = skip_headers(data, pos, count, end)
    if pos != end:
        raise CorruptRecordError(f"record should end at byte {end}, its fields end at byte {pos}")
    return Record(data, base_offset + delta, timestamp, key_at, key_end, value_at, value_end, headers_at, count)


def _read_records(
    data: bytes, count: int, base_offset: int, last_offset: int, base_timestamp: int, fixed: bool
) -> list[Record]:
    """All ``count`` records of a decompressed batch body. The body must end with the last record."""
    _check_count(data, count)
    records: list[Record] = []
    pos, _ = _read_some(data, 0, 0, count, len(data), records, base_offset, last_offset, base_timestamp, fixed)
    _check_used_up(data, pos, count)
    return records


def _check_count(data: bytes, count: int) -> None:
    if count < 0 or count * SMALLEST_RECORD_BYTES > len(data):
        raise CorruptRecordError(f"batch claims {count} records, which do not fit into {len(data)} bytes")
    if count > MAX_BATCH_ELEMENTS:
        raise CorruptRecordError(f"batch has {count} records, {MAX_BATCH_ELEMENTS} are allowed")


def _check_used_up(data: bytes, pos: int, count: int) -> None:
    if pos != len(data):
        raise CorruptRecordError(f"{len(data) - pos} bytes are left over after the last of {count} records")


def _read_some(
    data: bytes,
    pos: int,
    headers: int,
    count: int,
    at_most_bytes: int,
    records: list[Record],
    base_offset: int,
    last_offset: int,
    base_timestamp: int,
    fixed: bool,
) -> tuple[int, int]:
    """Append the ``count`` records that begin at ``pos`` to ``records``, or fewer if they have ``at_most_bytes``.

    Returns the position after them, and the number of headers: ``headers`` and those of these records.
    """
    size = len(data)
    stop = pos + at_most_bytes
    previous = records[-1].offset if records else base_offset - 1
    try:
        for _ in range(count):
            length, pos = read_varint(data, pos, 32)
            end = pos + length
            if length < SMALLEST_RECORD_BYTES - 1 or end > size:
                raise CorruptRecordError(f"record at byte {pos} claims {length} bytes, {size - pos} are left")
            record = read_record(data, pos, end, base_offset, base_timestamp, fixed)
            if record.offset <= previous or record.offset > last_offset:
                raise CorruptRecordError(f"offset {record.offset} is out of order in batch {base_offset}-{last_offset}")
            previous = record.offset
            records.append(record)
            pos = end
            if record._header_count:
                headers += record._header_count
                if headers > MAX_BATCH_ELEMENTS:
                    raise CorruptRecordError(f"batch has {headers} headers or more, {MAX_BATCH_ELEMENTS} are allowed")
            if pos >= stop:
                break
    except IndexError:
        raise CorruptRecordError(f"record after byte {pos} runs past the end of the batch") from None
    return pos, headers


def fields(records: list[Record]) -> Fields:
    """The fields of ``records``, as one list for each field."""
    return (
        [record.offset for record in records],
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [record.headers for record in records],
    )


def _keyless(records: list[Record], first: int) -> list[int]:
    """Indices of the records without a key, from index ``first`` on."""
    return [index for index in range(first, len(records)) if records[index]._key_end < 0]


def _read_keys(data: bytes, count: int) -> list[bytes | None]:
    """The keys of ``count`` records of a decompressed batch body; the rest of a record is not checked."""
    size = len(data)
    _check_count(data, count)
    keys: list[bytes | None] = []
    pos = 0
    try:
        for _ in range(count):
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                length = (byte >> 1) ^ -(byte & 1)
            elif data[pos + 1] < 0x80:
                byte = byte & 0x7F | data[pos + 1] << 7
                length = (byte >> 1) ^ -(byte & 1)
                pos += 2
            else:
                length, pos = read_varint(data, pos, 32)
            end = pos + length
            if length < SMALLEST_RECORD_BYTES - 1 or end > size:
                raise CorruptRecordError(f"record at byte {pos} claims {length} bytes, {size - pos} are left")
            pos += 1  # attributes
            while data[pos] >= 0x80:  # timestamp delta
                pos += 1
            pos += 1
            while data[pos] >= 0x80:  # offset delta
                pos += 1
            pos += 1
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, pos = read_varint(data, pos, 32)
            if length < 0:
                keys.append(None)
            elif length > end - pos:
                raise CorruptRecordError(f"key at byte {pos} runs past the record's end")
            else:
                keys.append(data[pos : pos + length])
            pos = end
    except IndexError:
        raise CorruptRecordError(f"record after byte {pos} runs past the end of the batch") from None
    _check_used_up(data, pos, count)
    return keys


# ---------------------------------------------------------------- batches


class RecordBatch:
    """A view of one batch, magic 2. ``buffer`` is exactly the batch; the header is unpacked once, records on iteration.

    ``length`` is the whole batch in bytes, header included. ``max_decompressed_bytes`` bounds the bytes that iteration
    allocates.
    """

    __slots__ = (
        "_body",
        "_failure",
        "_fits",
        "_keyless",
        "_records",
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "buffer",
        "count",
        "crc",
        "last_offset_delta",
        "length",
        "magic",
        "max_decompressed_bytes",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
    )

    base_offset: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    def __init__(self, buffer: Buffer, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> None:
        self.buffer = memoryview(buffer)
        self.max_decompressed_bytes = max_decompressed_bytes
        (
            self.base_offset,
            length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = HEADER.unpack_from(self.buffer)
        self.length: int = length + LENGTH_PREFIX_BYTES
        self._body: bytes | None = None
        self._records: list[Record] | None = None
        self._failure: CorruptRecordError | None = None
        self._fits = False
        self._keyless: list[int] = []

    @property
    def compression(self) -> CompressionType:
        codec = self.attributes & CODEC_MASK
        if codec > 4:
            raise CorruptRecordError(f"unknown compression type {codec}", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return CompressionType(codec)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is the time from which compaction may remove tombstones (KIP-534)."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def timestamp_type(self) -> int:
        """CREATE_TIME or LOG_APPEND_TIME."""
        return LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else CREATE_TIME

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapping from 2**31 - 1 to 0; NO_SEQUENCE when the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    def compute_crc(self) -> int:
        return crc32.iscsi(self.buffer[CRC_START:])

    def verify_crc(self) -> bool:
        """Whether the CRC matches the bytes that it covers."""
        return self.compute_crc() == self.crc

    def ensure_valid(self) -> None:
        """Raise CorruptRecordError when the CRC does not match."""
        computed = crc32.iscsi(self.buffer[CRC_START:])
        if computed != self.crc:
            raise CorruptRecordError(
                f"batch at offset {self.base_offset}: CRC32C is {computed:#010x}, the header says {self.crc:#010x}"
            )

    def body(self) -> bytes:
        """The records' bytes, decompressed."""
        if self._body is not None:
            return self._body
        return decompress(self.compression, self.buffer[HEADER_BYTES:], self.max_decompressed_bytes)

    def ensure_size(self) -> None:
        """Raise CorruptRecordError for records of more than ``max_decompressed_bytes``.

        Decompresses only if needed, and once. The bytes are kept if they are few.
        """
        if self._fits or self._records is not None:
            return
        if self.length * MOST_GROWTH[self.compression] > self.max_decompressed_bytes:
            if self._body is None and self._failure is None:
                try:
                    body = self.body()
                except CorruptRecordError as error:
                    self._failure = error
                else:
                    self._body = body if len(body) <= SMALL_BODY_BYTES else None
            if self._failure is not None:
                raise self._failure
        self._fits = True

    def records(self) -> list[Record]:
        """All records. Raises CorruptRecordError for a fault of the structure; the CRC is not checked here."""
        if self._failure is not None:
            raise self._failure
        if self._records is not None:
            return self._records
        if self.count == 0 and self.length == HEADER_BYTES:
            return []  # compaction keeps the bare header while the producer's state is needed
        fixed = self.timestamp_type == LOG_APPEND_TIME
        timestamp = self.max_timestamp if fixed else self.base_timestamp
        return _read_records(self.body(), self.count, self.base_offset, self.last_offset, timestamp, fixed)

    def control_record(self) -> Record | None:
        """The first record of a control batch; None if compaction has left the bare header.

        Its timestamp is the batch's largest. Raises as ``records``.
        """
        if self._failure is not None or self._records is not None:
            return next(iter(self.records()), None)
        if self.count <= 0:
            return None
        body = decompress(self.compression, self.buffer[HEADER_BYTES:], MAX_CONTROL_BYTES)
        found: list[Record] = []
        _read_some(body, 0, 0, 1, len(body), found, self.base_offset, self.last_offset, self.max_timestamp, True)
        return found[0]

    def sent_records(self) -> list[Record]:
        """All records with the timestamps that the producer gave, whatever the timestamp type. Raises as ``records``.

        Records that were read in steps have these timestamps only if the type was CreateTime when they were read.
        """
        if self._failure is not None or self._records is not None or self.count == 0:
            return self.records()
        return _read_records(self.body(), self.count, self.base_offset, self.last_offset, self.base_timestamp, False)

    def keys(self) -> list[bytes | None]:
        """The records' keys, at a third of the cost of ``records``.

        The CRC is not checked here. The structure is checked only as far as the keys need it. Raises
        CorruptRecordError.
        """
        if self._failure is not None or self._records is not None:
            return [record.key for record in self.records()]
        if self.count == 0 and self.length == HEADER_BYTES:
            return []
        return _read_keys(self.body(), self.count)

    @property
    def may_be_large(self) -> bool:
        """Whether the records may have more than ``SMALL_BODY_BYTES`` in all once decompressed."""
        return self.attributes & CODEC_MASK != 0 or self.length > SMALL_BODY_BYTES

    def unpack(self) -> None:
        """Decompress the records, and keep the bytes or the error. May be called in a thread."""
        self._unpack(self.max_decompressed_bytes)

    def _unpack(self, max_bytes: int) -> bool:
        """``unpack`` for records of at most ``max_bytes``; False for larger ones, which stay compressed."""
        if self._body is not None or self._failure is not None:
            return True
        at_most = min(max_bytes, self.max_decompressed_bytes)
        try:
            self._body = decompress(self.compression, self.buffer[HEADER_BYTES:], at_most)
        except CorruptRecordError as error:
            if error.code == ErrorCode.MESSAGE_TOO_LARGE and at_most < self.max_decompressed_bytes:
                return False
            self._failure = error
        return True

    def read_in_steps(self, at_once: int) -> Generator[Callable[[], None] | None, None, None]:
        """Read the records, or the error, for ``records`` and ``keys``.

        Yields None after each ``at_once`` records, or fewer if they have ``SMALL_BODY_BYTES``.

        If the records are large, a function that decompresses them is yielded first. The caller may call this function
        in a thread before the next step. Otherwise the next step calls it.
        """
        if not self._unpack(SMALL_BODY_BYTES):
            yield self.unpack
            self.unpack()
        if self._failure is not None:
            return
        base, last = self.base_offset, self.last_offset
        fixed = self.timestamp_type == LOG_APPEND_TIME
        timestamp = self.max_timestamp if fixed else self.base_timestamp
        records: list[Record] = []
        self._keyless = []
        try:
            data = self.body()
            _check_count(data, self.count)
            pos = headers = 0
            while len(records) < self.count:
                first = len(records)
                some = min(at_once, self.count - first)
                pos, headers = _read_some(
                    data, pos, headers, some, SMALL_BODY_BYTES, records, base, last, timestamp, fixed
                )
                self._keyless += _keyless(records, first)
                yield None
            _check_used_up(data, pos, self.count)
        except CorruptRecordError as error:
            self._failure = error
        else:
            self._records = records
        self._body = None

    def keyless(self) -> list[int]:
        """Indices of the records without a key. Raises the errors of ``records``."""
        return self._keyless if self.is_read else _keyless(self.records(), 0)

    @property
    def is_read(self) -> bool:
        """Whether the records are kept already."""
        return self._records is not None

    def take_over(self, other: RecordBatch) -> None:
        """Take over the records or the error from ``other``, a batch of the same records that was read in steps."""
        self._records, self._failure, self._keyless = other._records, other._failure, other._keyless

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __repr__(self) -> str:
        return (
            f"RecordBatch(offsets {self.base_offset}-{self.last_offset}, {self.count} records, {self.length} bytes, "
            f"leader epoch {self.partition_leader_epoch}, attributes {self.attributes:#x}, "
            f"producer {self.producer_id}/{self.producer_epoch}, base sequence {self.base_sequence})"
        )


def increment_sequence(sequence: int, by: int) -> int:
    """The sequence ``by`` records later; 0 follows 2**31 - 1."""
    return sequence + by & MAX_SEQUENCE


def frame_length(view: memoryview, pos: int) -> int:
    """The byte length of the v2 batch at ``pos``; 0 if it is cut short. Raises CorruptRecordError for other data."""
    left = len(view) - pos
    if left < MAGIC_AT + 1:
        return 0
    base_offset, length = LENGTH.unpack_from(view, pos)
    magic: int = view[pos + MAGIC_AT]
    if magic < MAGIC:
        raise CorruptRecordError(
            f"message format v{magic} (magic {magic}) at byte {pos} is not supported, only record batch v2",
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    if magic != MAGIC:
        raise CorruptRecordError(f"invalid magic {magic} at byte {pos}")
    if length < HEADER_BYTES - LENGTH_PREFIX_BYTES or base_offset < 0:
        raise CorruptRecordError(f"batch at byte {pos} has base offset {base_offset} and length {length}")
    total: int = length + LENGTH_PREFIX_BYTES
    return total if total <= left else 0


def iter_batches(
    buf: Buffer,
    *,
    allow_partial_tail: bool = False,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[RecordBatch]:
    """Yield the batches of ``buf``, which follow each other without a gap. Only their headers are read.

    A fetch response may end with a batch cut short. With ``allow_partial_tail`` that batch ends the iteration;
    otherwise CorruptRecordError is raised. Anything that is not a v2 batch raises CorruptRecordError too. CRCs are
    checked by ``RecordBatch.ensure_valid``, not here.
    """
    view = memoryview(buf)
    pos = 0
    end = len(view)
    while pos < end:
        length = frame_length(view, pos)
        if length == 0:
            if allow_partial_tail:
                return
            raise CorruptRecordError(f"batch at byte {pos} is cut short: {end - pos} bytes are left")
        batch = RecordBatch(view[pos : pos + length], max_decompressed_bytes)
        if batch.last_offset_delta < 0 or batch.count < 0 or batch.count > batch.last_offset_delta + 1:
            raise CorruptRecordError(
                f"batch at byte {pos} claims {batch.count} records, which do not fit last offset delta"
                f" {batch.last_offset_delta}"
            )
        yield batch
        pos += length


_BASE_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")


def set_base_offset(buf: bytearray | memoryview, offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into the batch at the start of a buffer; the CRC covers neither field."""
    _BASE_OFFSET.pack_into(buf, 0, offset)
    _EPOCH.pack_into(buf, LENGTH_PREFIX_BYTES, leader_epoch)


def set_log_append_time(buf: bytearray | memoryview, timestamp_ms: int) -> None:
    """Write the broker's time into the batch, which fills ``buf`` exactly, and compute its CRC again."""
    (attributes,) = struct.unpack_from(">h", buf, 21)
    struct.pack_into(">h", buf, 21, attributes | LOG_APPEND_TIME_BIT)
    struct.pack_into(">q", buf, 35, timestamp_ms)
    struct.pack_into(">I", buf, CRC_AT, crc32.iscsi(memoryview(buf)[CRC_START:]))
