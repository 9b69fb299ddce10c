"""The layout of a record batch v2 (Kafka's ``DefaultRecordBatch``, KIP-98): offsets, bits, structs."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
Header: TypeAlias = tuple[str, bytes | None]

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
MAX_RECORD_OVERHEAD_BYTES: Final = 21
DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024
MAX_BATCH_ELEMENTS: Final = 1_000_000
"""The largest number of records, and of their headers, that are read from one batch. A few kilobytes may claim more."""
MAX_CONTROL_BYTES: Final = 64 * 1024
"""The largest size of the decompressed record of a control batch."""
SMALL_BODY_BYTES: Final = 256 * 1024
"""Records of at most this many bytes in all are compressed or decompressed on the event loop, not in a thread."""
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
CONTROL_ABORT: Final = 0
CONTROL_COMMIT: Final = 1

MAGIC: Final = 2
MAGIC_AT: Final = 16
CODEC_AT: Final = 22
"""The low byte of the attributes."""
COUNT_AT: Final = 57
"""The number of records, int32."""
CRC_AT: Final = 17
CRC_START: Final = 21
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
SMALLEST_RECORD_BYTES: Final = 7
MAX_SEQUENCE: Final = 0x7FFFFFFF
MIN_LONG: Final = -(2**63)
MAX_LONG: Final = 2**63 - 1

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base and max timestamp, producer id and
# epoch, base sequence, count
HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH = struct.Struct(">qi")
CONTROL_KEY = struct.Struct(">hh")
CONTROL_VALUE = struct.Struct(">hi")
