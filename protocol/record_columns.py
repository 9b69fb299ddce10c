"""The records of a batch as columns: lists of offsets, timestamps, keys and values, without an object for each record.

For readers that pass records on in columns. Headers are left out. It compiles with mypyc, as ``protocol.records``.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.batch_layout import HEADER_BYTES, LOG_APPEND_TIME, SMALLEST_RECORD_BYTES
from protocol.compression import CorruptRecordError
from protocol.records import RecordBatch, read_varint


class Columns(NamedTuple):
    """One list for each field, of equal length."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]

    def between(self, first: int, stop: int) -> Columns:
        """The records with these indices."""
        return Columns(
            self.offsets[first:stop], self.timestamps[first:stop], self.keys[first:stop], self.values[first:stop]
        )


def read_columns(batch: RecordBatch) -> Columns:
    """The records of a batch. Raises CorruptRecordError; the CRC is not checked here, and headers are not looked at."""
    found = Columns([], [], [], [])
    if batch.count == 0 and batch.length == HEADER_BYTES:
        return found
    fixed = batch.timestamp_type == LOG_APPEND_TIME
    body = batch.body()
    if batch.count < 0 or batch.count * SMALLEST_RECORD_BYTES > len(body):
        raise CorruptRecordError(f"batch claims {batch.count} records in {len(body)} bytes")
    timestamp = batch.max_timestamp if fixed else batch.base_timestamp
    end = _read(body, batch.count, batch.base_offset, timestamp, fixed, *found)
    if end != len(body):
        raise CorruptRecordError(f"{len(body) - end} bytes are left behind the last of {batch.count} records")
    offsets = found.offsets
    if offsets and (offsets[0] < batch.base_offset or offsets[-1] > batch.last_offset):
        raise CorruptRecordError(f"offsets {offsets[0]}-{offsets[-1]} in batch {batch.base_offset}-{batch.last_offset}")
    return found


def _read(
    data: bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    fixed: bool,
    offsets: list[int],
    timestamps: list[int],
    keys: list[bytes | None],
    values: list[bytes | None],
) -> int:
    """Read ``count`` records behind those in the lists; where they end."""
    size = len(data)
    pos = 0
    previous = base_offset - 1
    try:
        for _ in range(count):
            number = data[pos]
            pos += 1
            if number >= 0x80:
                number, pos = read_varint(data, pos - 1, 32)
            else:
                number = (number >> 1) ^ -(number & 1)
            end = pos + number
            if number < SMALLEST_RECORD_BYTES - 1 or end > size:
                raise CorruptRecordError(f"record at byte {pos} claims {number} bytes, {size - pos} are left")
            number = data[pos + 1]  # behind the attributes
            pos += 2
            if number >= 0x80:
                number, pos = read_varint(data, pos - 1, 64)
            else:
                number = (number >> 1) ^ -(number & 1)
            timestamps.append(base_timestamp if fixed else base_timestamp + number)
            number = data[pos]
            pos += 1
            if number >= 0x80:
                number, pos = read_varint(data, pos - 1, 32)
            else:
                number = (number >> 1) ^ -(number & 1)
            offset = base_offset + number
            if offset <= previous:
                raise CorruptRecordError(f"offset {offset} follows {previous}")
            previous = offset
            offsets.append(offset)
            number = data[pos]
            pos += 1
            if number >= 0x80:
                number, pos = read_varint(data, pos - 1, 32)
            else:
                number = (number >> 1) ^ -(number & 1)
            if number < 0:
                keys.append(None)
            else:
                if number > end - pos:
                    raise CorruptRecordError(f"key at byte {pos} runs past the record's end")
                keys.append(data[pos : pos + number])
                pos += number
            number = data[pos]
            pos += 1
            if number >= 0x80:
                number, pos = read_varint(data, pos - 1, 32)
            else:
                number = (number >> 1) ^ -(number & 1)
            if number < 0:
                values.append(None)
            else:
                if number > end - pos:
                    raise CorruptRecordError(f"value at byte {pos} runs past the record's end")
                values.append(data[pos : pos + number])
            pos = end
    except IndexError:
        raise CorruptRecordError(f"record after byte {pos} runs past the end of the batch") from None
    return pos
