"""Reads the batches of a segment file into rows. A fault in the file becomes a row with an error, not an exception.

There are two kinds of rows: a record (``offset`` set), and a batch without records (``offset`` None). A batch without
records is unreadable, or is the bare header that compaction leaves. ``batch_start`` marks the first row of every batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from anabranch.audit.crc_locate import locate_changed_byte
from anabranch.protocol.batch_layout import HEADER_BYTES
from anabranch.protocol.compression import CompressionType, CorruptRecordError
from anabranch.protocol.plurals import counted, one_or_many
from anabranch.protocol.records import Record, RecordBatch, iter_batches, read_varint

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""The default of ``--max-decompressed-bytes``: a batch that decompresses to more counts as unreadable."""
_CRC_COVERS_FROM = 21
_CODEC_MASK = 0x07
_MAGIC_AT = 16
_MAGIC = 2


class Row(NamedTuple):
    """A record, or a batch without records. ``batch`` is None when the bytes do not look like a batch header.

    ``position`` is the batch's first byte in the file. ``error`` describes the fault of the batch. ``suspect_offset``
    is the offset of the record that a wrong CRC points to, if it points to one.
    """

    batch: RecordBatch | None
    position: int
    batch_start: bool
    record: Record | None
    crc_ok: bool
    error: str | None = None
    suspect_offset: int | None = None


def describe_damaged_length(length: int | None, position: int, left: int) -> str:
    """The error of a batch with a length of ``length`` (None when it is cut off), with ``left`` bytes left."""
    claim = "is cut off before its length" if length is None else f"has the length {length}"
    rest = f"{counted(left, 'byte')} {one_or_many(left, 'is', 'are')} left"
    return f"batch at byte {position} {claim}, and {rest} in the file, which cannot be read from here on"


def read_batch(data: bytes, position: int, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Row]:
    """The rows of the batch ``data``, which is at byte ``position`` of its file."""
    records, fault = _read_records(data, max_decompressed_bytes)
    if data[_MAGIC_AT] != _MAGIC:
        yield Row(None, position, True, None, False, f"batch at byte {position}: {fault}")
        return
    batch = RecordBatch(data, max_decompressed_bytes)
    message = f"batch with offsets {batch.base_offset}-{batch.last_offset}: {fault}" if fault else None
    computed = batch.compute_crc()
    crc_ok = computed == batch.crc
    suspect: int | None = None
    if not crc_ok:
        message, suspect = _describe_crc(batch, computed, position, records)
    if not records:
        yield Row(batch, position, True, None, crc_ok, message, suspect)
    start = True
    for record in records:
        yield Row(batch, position, start, record, crc_ok, message, suspect)
        start = False


def _read_records(data: bytes, max_decompressed_bytes: int) -> tuple[list[Record], str | None]:
    """The records of a batch, or the reason why they cannot be read. The CRC is not checked."""
    try:
        (batch,) = iter_batches(data, max_decompressed_bytes=max_decompressed_bytes)
        return batch.records(), None
    except CorruptRecordError as error:
        return [], error.message


def _describe_crc(batch: RecordBatch, computed: int, position: int, records: list[Record]) -> tuple[str, int | None]:
    """The error of a wrong CRC, and the offset of the damaged record if one changed byte explains the CRC."""
    text = (
        f"CRC32C of the batch with offsets {batch.base_offset}-{batch.last_offset} is {computed:#010x}, "
        f"its header says {batch.crc:#010x}"
    )
    index = locate_changed_byte(batch.crc, computed, batch.length - _CRC_COVERS_FROM)
    if index is None:
        return text, None
    at = _CRC_COVERS_FROM + index
    text += f"; explained by one changed byte at {position + at} of the file"
    if at < HEADER_BYTES:
        return f"{text}, in the batch's header", None
    if batch.attributes & _CODEC_MASK == CompressionType.NONE and records:
        suspect = _record_at(batch, records, at - HEADER_BYTES)
        return f"{text}, in the record with offset {suspect}", suspect
    return text, None


def _record_at(batch: RecordBatch, records: list[Record], body_position: int) -> int:
    """The offset of the record with the byte ``body_position`` of an uncompressed body."""
    body = batch.body()
    end = 0
    for record in records:
        length, start = read_varint(body, end, 32)
        end = start + length
        if body_position < end:
            return record.offset
    return batch.last_offset
