"""Record batch v2: header view, CRC32C, iterate, build (Kafka's ``DefaultRecordBatch``, KIP-98).

A batch is 61 bytes of header and ``count`` records, compressed as one block. The CRC32C covers byte 21 to the end, so a
broker may rewrite base offset and partition leader epoch in place. Views share the caller's buffer; nothing is copied
until records are read. This file holds no module state and uses no dynamic tricks, so mypyc compiles it unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from fastcrc import crc32

from protocol.compression import CompressionType, CorruptRecordError, compress, decompress
from protocol.errors import ErrorCode, KafkaError

Buffer: TypeAlias = bytes | bytearray | memoryview
Header: TypeAlias = tuple[str, bytes | None]

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
MAX_RECORD_OVERHEAD_BYTES: Final = 21
DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
CONTROL_ABORT: Final = 0
CONTROL_COMMIT: Final = 1

_MAGIC: Final = 2
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_CRC_START: Final = 21
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20
_DELETE_HORIZON_BIT: Final = 0x40
_SMALLEST_RECORD_BYTES: Final = 7
_MAX_SEQUENCE: Final = 0x7FFFFFFF

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base and max timestamp, producer id and
# epoch, base sequence, count
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">qi")
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")


# ---------------------------------------------------------------- varints


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
    """``zigzag_varint`` with the small numbers ready made."""
    return _SMALL[value] if 0 <= value < _SMALL_LIMIT else zigzag_varint(value)


def read_varint(data: bytes, pos: int, bits: int) -> tuple[int, int]:
    """A zigzag number of at most ``bits`` bits at ``pos`` and the position behind it. IndexError at the end of data."""
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
    """Headers already checked by ``_skip_headers``."""
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


def _skip_headers(data: bytes, pos: int, count: int, end: int) -> int:
    """The position behind ``count`` headers, every length checked against ``end``."""
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


def _read_record(data: bytes, pos: int, end: int, base_offset: int, base_timestamp: int, fixed: bool) -> Record:
    """The record in ``data[pos:end]``, behind its length; ``fixed`` means ``base_timestamp`` is every record's."""
    delta, pos = read_varint(data, pos + 1, 64)
    timestamp = base_timestamp if fixed else base_timestamp + delta
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
        if count < 0 or count > (end - pos) >> 1:
            raise CorruptRecordError(f"record before byte {pos} claims {count} headers")
        pos = _skip_headers(data, pos, count, end)
    if pos != end:
        raise CorruptRecordError(f"record should end at byte {end}, its fields end at byte {pos}")
    return Record(data, base_offset + delta, timestamp, key_at, key_end, value_at, value_end, headers_at, count)


def _read_records(
    data: bytes, count: int, base_offset: int, last_offset: int, base_timestamp: int, fixed: bool
) -> list[Record]:
    """All ``count`` records of a decompressed batch body, which must be used up exactly."""
    size = len(data)
    if count < 0 or count * _SMALLEST_RECORD_BYTES > size:
        raise CorruptRecordError(f"batch claims {count} records in {size} bytes")
    records: list[Record] = []
    pos = 0
    previous = base_offset - 1
    try:
        for _ in range(count):
            length, pos = read_varint(data, pos, 32)
            end = pos + length
            if length < _SMALLEST_RECORD_BYTES - 1 or end > size:
                raise CorruptRecordError(f"record at byte {pos} claims {length} bytes, {size - pos} are left")
            record = _read_record(data, pos, end, base_offset, base_timestamp, fixed)
            if record.offset <= previous or record.offset > last_offset:
                raise CorruptRecordError(f"offset {record.offset} is out of order in batch {base_offset}-{last_offset}")
            previous = record.offset
            records.append(record)
            pos = end
    except IndexError:
        raise CorruptRecordError(f"record after byte {pos} runs past the end of the batch") from None
    if pos != size:
        raise CorruptRecordError(f"{size - pos} bytes are left behind the last of {count} records")
    return records


# ---------------------------------------------------------------- batches


class RecordBatch:
    """A view of one batch, magic 2. ``buffer`` is exactly the batch; the header is unpacked once, records on iteration.

    ``length`` is the whole batch in bytes, header included. ``max_decompressed_bytes`` bounds what iteration allocates.
    """

    __slots__ = (
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
        ) = _HEADER.unpack_from(self.buffer)
        self.length: int = length + LENGTH_PREFIX_BYTES

    @property
    def compression(self) -> CompressionType:
        codec = self.attributes & _CODEC_MASK
        if codec > 4:
            raise CorruptRecordError(f"unknown compression type {codec}", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return CompressionType(codec)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """The base timestamp is the time from which tombstones may go (KIP-534)."""
        return self.attributes & _DELETE_HORIZON_BIT != 0

    @property
    def timestamp_type(self) -> int:
        """CREATE_TIME or LOG_APPEND_TIME."""
        return LOG_APPEND_TIME if self.attributes & _LOG_APPEND_TIME_BIT else CREATE_TIME

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
        return crc32.iscsi(self.buffer[_CRC_START:])

    def verify_crc(self) -> bool:
        """Whether the bytes the CRC covers are the ones it was computed over."""
        return self.compute_crc() == self.crc

    def ensure_valid(self) -> None:
        """Raise CorruptRecordError when the CRC does not match."""
        computed = self.compute_crc()
        if computed != self.crc:
            raise CorruptRecordError(
                f"batch at offset {self.base_offset}: CRC32C is {computed:#010x}, the header says {self.crc:#010x}"
            )

    def body(self) -> bytes:
        """The records' bytes, decompressed."""
        return decompress(self.compression, self.buffer[HEADER_BYTES:], self.max_decompressed_bytes)

    def records(self) -> list[Record]:
        """All records. The CRC is not checked here; the structure is, and CorruptRecordError raised for any fault."""
        if self.count == 0 and self.length == HEADER_BYTES:
            return []  # what compaction leaves of a batch whose producer state still matters
        fixed = self.timestamp_type == LOG_APPEND_TIME
        timestamp = self.max_timestamp if fixed else self.base_timestamp
        return _read_records(self.body(), self.count, self.base_offset, self.last_offset, timestamp, fixed)

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
    return sequence + by & _MAX_SEQUENCE


def _check_frame(view: memoryview, pos: int) -> int:
    """The length in bytes of the v2 batch at ``pos``, 0 when it is not there whole; CorruptRecordError for others."""
    left = len(view) - pos
    if left < _MAGIC_AT + 1:
        return 0
    base_offset, length = _LENGTH.unpack_from(view, pos)
    magic: int = view[pos + _MAGIC_AT]
    if magic < _MAGIC:
        raise CorruptRecordError(
            f"message format v{magic} (magic {magic}) at byte {pos} is not supported, only record batch v2",
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    if magic != _MAGIC:
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
    """The batches that ``buf`` holds back to back, headers only.

    A batch cut short at the end, as fetch responses have it, ends the iteration when ``allow_partial_tail``, else it is
    a CorruptRecordError, as is anything that is not a v2 batch. CRCs are left to ``RecordBatch.ensure_valid``.
    """
    view = memoryview(buf)
    pos = 0
    end = len(view)
    while pos < end:
        length = _check_frame(view, pos)
        if length == 0:
            if allow_partial_tail:
                return
            raise CorruptRecordError(f"batch at byte {pos} is cut short: {end - pos} bytes are left")
        batch = RecordBatch(view[pos : pos + length], max_decompressed_bytes)
        if batch.last_offset_delta < 0 or batch.count < 0 or batch.count > batch.last_offset_delta + 1:
            raise CorruptRecordError(
                f"batch at byte {pos} claims {batch.count} records and last offset delta {batch.last_offset_delta}"
            )
        yield batch
        pos += length


def validate_produce_batch(buf: Buffer, max_bytes: int) -> RecordBatch:
    """The one batch a client may send per partition, checked by its header and CRC alone.

    Raises CorruptRecordError with Kafka's code: CORRUPT_MESSAGE (length, magic above 2, CRC), INVALID_RECORD (magic 0
    and 1, no or several batches, wrong count, control batch, sequence missing), MESSAGE_TOO_LARGE (over ``max_bytes``),
    UNSUPPORTED_COMPRESSION_TYPE.
    """
    view = memoryview(buf)
    invalid = ErrorCode.INVALID_RECORD
    if len(view) == 0:
        raise CorruptRecordError("a produce request must hold exactly one record batch per partition", invalid)
    try:
        length = _check_frame(view, 0)
    except KafkaError as error:
        if error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            raise CorruptRecordError(f"produce v3 and above takes record batch v2 only: {error}", invalid) from None
        raise
    if length == 0:
        raise CorruptRecordError(f"record batch is cut short at {len(view)} bytes")
    if length > max_bytes:
        raise CorruptRecordError(
            f"record batch has {length} bytes, {max_bytes} are allowed", ErrorCode.MESSAGE_TOO_LARGE
        )
    if length < len(view):
        raise CorruptRecordError("a produce request must hold exactly one record batch per partition", invalid)
    batch = RecordBatch(view)
    batch.ensure_valid()
    if batch.count < 1 or batch.count != batch.last_offset_delta + 1:
        raise CorruptRecordError(
            f"record batch claims {batch.count} records and last offset delta {batch.last_offset_delta}", invalid
        )
    if batch.is_control:
        raise CorruptRecordError("clients may not write control records", invalid)
    if batch.has_producer_id and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        raise CorruptRecordError(
            f"producer {batch.producer_id} sent epoch {batch.producer_epoch} and sequence {batch.base_sequence}",
            invalid,
        )
    if batch.is_transactional and not batch.has_producer_id:
        raise CorruptRecordError("a transactional batch needs a producer id", invalid)
    batch.compression  # noqa: B018 - raises for an unknown codec
    return batch


def set_base_offset(buf: bytearray | memoryview, offset: int, leader_epoch: int) -> None:
    """Give the batch at the start of a writable buffer its place in the log; neither field is under the CRC."""
    struct.pack_into(">q", buf, 0, offset)
    struct.pack_into(">i", buf, LENGTH_PREFIX_BYTES, leader_epoch)


def set_log_append_time(buf: bytearray | memoryview, timestamp_ms: int) -> None:
    """Stamp the batch that ``buf`` exactly holds with the broker's time, and compute its CRC again."""
    (attributes,) = struct.unpack_from(">h", buf, 21)
    struct.pack_into(">h", buf, 21, attributes | _LOG_APPEND_TIME_BIT)
    struct.pack_into(">q", buf, 35, timestamp_ms)
    struct.pack_into(">I", buf, _CRC_AT, crc32.iscsi(memoryview(buf)[_CRC_START:]))


# ---------------------------------------------------------------- building


def estimate_record_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """At least as many bytes as a record of these fields takes in any batch."""
    size = MAX_RECORD_OVERHEAD_BYTES + 15
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        size += 10 + len(name.encode()) + (len(content) if content is not None else 0)
    return size


def estimate_batch_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """At least as many bytes as a batch of this one record takes uncompressed."""
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


class BatchBuilder:
    """Builds one batch by appending; used once.

    ``max_bytes`` bounds the batch, its first record excepted, which always fits. With compression the bound holds for
    ``compression_ratio`` (expected compressed size / plain size): 1.0 keeps it in any case, a lower figure is the
    caller's estimate from earlier batches. A codec that makes the batch larger is left out.
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
        self._base_timestamp = -1
        self._has_base = False
        self._max_timestamp = -1
        self._last_delta = -1

    def start_at(self, base_timestamp: int, max_timestamp: int) -> None:
        """Set the timestamps of a batch that is written again; without this the first record sets the base."""
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
        """Add a record and return its offset relative to the batch's first, or None when it does not fit any more."""
        return self.append_at(self._last_delta + 1, key, value, headers, timestamp)

    def append_at(
        self, delta: int, key: bytes | None, value: bytes | None, headers: Sequence[Header], timestamp: int
    ) -> int | None:
        """``append`` at a given offset delta, above the last: compaction keeps offsets and leaves gaps."""
        timestamp_delta = timestamp - self._base_timestamp if self._has_base else 0
        if key is None:
            key = b""
            key_length = b"\x01"
        else:
            key_length = _varint(len(key))
        if value is None:
            value = b""
            value_length = b"\x01"
        else:
            value_length = _varint(len(value))
        body = b"".join(
            (
                b"\x00",
                _varint(timestamp_delta),
                _varint(delta),
                key_length,
                key,
                value_length,
                value,
                _encode_headers(headers) if headers else b"\x00",
            )
        )
        size = len(body)
        prefix = _varint(size)
        buffer = self._buffer
        if self._count and len(buffer) + len(prefix) + size > self._limit:
            return None
        if delta <= self._last_delta:
            raise ValueError(f"offset delta {delta} after {self._last_delta}")
        buffer += prefix
        buffer += body
        if not self._has_base:
            self._base_timestamp = timestamp
            self._has_base = True
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self._count += 1
        self._last_delta = delta
        return delta

    def build(
        self,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = -1,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
        is_control: bool = False,
        *,
        timestamp_type: int = CREATE_TIME,
        last_offset_delta: int = -1,
        has_delete_horizon: bool = False,
    ) -> bytes:
        """The finished batch. ``last_offset_delta`` beyond the last record's leaves a gap, as compaction does."""
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
            attributes |= _LOG_APPEND_TIME_BIT
        if is_transactional:
            attributes |= _TRANSACTIONAL_BIT
        if is_control:
            attributes |= _CONTROL_BIT
        if has_delete_horizon:
            attributes |= _DELETE_HORIZON_BIT
        _HEADER.pack_into(
            buffer,
            0,
            base_offset,
            len(buffer) - LENGTH_PREFIX_BYTES,
            leader_epoch,
            _MAGIC,
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
        struct.pack_into(">I", buffer, _CRC_AT, crc32.iscsi(memoryview(buffer)[_CRC_START:]))
        return bytes(buffer)


def build_batch(
    records: Iterable[tuple[bytes | None, bytes | None, Sequence[Header], int]],
    *,
    compression: CompressionType = CompressionType.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """One batch of all ``records`` (key, value, headers, timestamp), however large."""
    builder = BatchBuilder(compression, max_bytes=_MAX_SEQUENCE)
    for key, value, headers, timestamp in records:
        builder.append(key, value, headers, timestamp)
    return builder.build(
        base_offset, leader_epoch, producer_id, producer_epoch, base_sequence, is_transactional, is_control
    )


def retain_records(batch: RecordBatch, records: Sequence[Record], delete_horizon_ms: int | None = None) -> bytes:
    """``batch`` with only ``records`` of it left, as compaction writes it: offsets, sequences and last offset stay.

    With no record left the result is a bare header, kept for the producer's last sequence. ``delete_horizon_ms``
    replaces the base timestamp and sets its attribute bit (KIP-534).
    """
    builder = BatchBuilder(batch.compression, max_bytes=_MAX_SEQUENCE)
    horizon = delete_horizon_ms
    if horizon is None and batch.has_delete_horizon:
        horizon = batch.base_timestamp
    keeps_max = batch.timestamp_type == LOG_APPEND_TIME or not records
    base = records[0].timestamp if records else batch.max_timestamp
    builder.start_at(base if horizon is None else horizon, batch.max_timestamp if keeps_max else -1)
    for record in records:
        builder.append_at(record.offset - batch.base_offset, record.key, record.value, record.headers, record.timestamp)
    return builder.build(
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


# ---------------------------------------------------------------- control batches


def build_control_batch(
    kind: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The transaction marker CONTROL_ABORT or CONTROL_COMMIT: a control batch of one record."""
    return build_batch(
        [(_CONTROL_KEY.pack(0, kind), _CONTROL_VALUE.pack(0, coordinator_epoch), (), timestamp)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_control_record(record: Record) -> tuple[int, int]:
    """(kind, coordinator epoch) of the record of a control batch; kinds besides 0 and 1 are for others to know."""
    key = record.key
    value = record.value
    if key is None or len(key) < _CONTROL_KEY.size:
        raise CorruptRecordError(f"control record at offset {record.offset} has no type")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecordError(f"control record at offset {record.offset} has version {version}")
    if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
        return kind, -1
    if value is None or len(value) < _CONTROL_VALUE.size:
        raise CorruptRecordError(f"transaction marker at offset {record.offset} has no coordinator epoch")
    _, coordinator_epoch = _CONTROL_VALUE.unpack_from(value)
    return kind, coordinator_epoch
