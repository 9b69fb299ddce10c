"""A deliberately naive row-by-row reader of segment files, which checks the vectorised reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from anabranch.audit.columns import SegmentSource
from anabranch.audit.manifest import LayoutLine, layouts_until
from anabranch.audit.order_field import Extract, OrderFieldError
from anabranch.audit.segment_reader import Row, read_batch
from anabranch.protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT, HEADER_BYTES, LENGTH_PREFIX_BYTES
from anabranch.protocol.compression import CompressionType, CorruptRecordError
from anabranch.protocol.control_records import read_control_record
from anabranch.protocol.key_placement import MOVED_HEADER, place, positive_hash
from anabranch.protocol.records import Record, increment_sequence

Values = dict[str, Any]


def read_segment(file: BinaryIO, size_bytes: int) -> Iterator[Row]:
    """The rows of a segment of ``size_bytes``, in file order, up to the first batch whose length is damaged."""
    position = 0
    while position < size_bytes:
        file.seek(position)
        prefix = file.read(LENGTH_PREFIX_BYTES)
        length = int.from_bytes(prefix[8:], "big", signed=True) + LENGTH_PREFIX_BYTES
        left = size_bytes - position
        if len(prefix) < LENGTH_PREFIX_BYTES or length > left or length < HEADER_BYTES:
            has_length = len(prefix) == LENGTH_PREFIX_BYTES
            claim = f"has the length {length}" if has_length else "is cut off before its length"
            rest = "1 byte is left" if left == 1 else f"{left} bytes are left"
            message = f"batch at byte {position} {claim}, and {rest} in the file, which cannot be read from here on"
            yield Row(None, position, True, None, False, message)
            return
        yield from read_batch(prefix + file.read(length - LENGTH_PREFIX_BYTES), position)
        position += length


def naive_rows(source: SegmentSource, rows: Iterator[Row], extract: Extract | None = None) -> list[Values]:
    """Every column of ``anabranch-segments`` for every row, including the columns for the checks."""
    derive = _Derivation(source, extract)
    return [{**_public_values(source, row), **derive.values(row)} for row in rows]


_OF_BATCH = (
    "base_offset", "leader_epoch", "timestamp_type", "producer_id", "producer_epoch", "is_control",
    "is_transactional", "codec", "layout_version", "last_offset", "record_count", "base_sequence", "last_sequence",
)  # fmt: skip
_OF_RECORD = (
    "offset", "timestamp", "key", "value", "headers", "sequence", "marker", "expected_partition", "moved",
    "while_closed", "order_value", "order_error",
)  # fmt: skip


def _public_values(source: SegmentSource, row: Row) -> Values:
    found: Values = dict.fromkeys(_OF_BATCH + _OF_RECORD)
    found |= {"topic": source.manifest.topic, "partition": source.partition.partition, "segment": source.segment}
    found |= {"position": row.position, "batch_start": row.batch_start, "batch_crc_ok": row.crc_ok}
    found |= {"error": row.error, "suspect_offset": row.suspect_offset, "replica": -1, "crc": None}
    batch, record = row.batch, row.record
    if batch is not None:
        codec = batch.attributes & 7
        found |= {
            "base_offset": batch.base_offset,
            "leader_epoch": batch.partition_leader_epoch,
            "timestamp_type": batch.timestamp_type,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "is_control": batch.is_control,
            "is_transactional": batch.is_transactional,
            "codec": CompressionType(codec).name.lower() if codec <= 4 else None,
            "last_offset": batch.last_offset,
            "record_count": batch.count,
            "base_sequence": batch.base_sequence,
            "last_sequence": batch.last_sequence,
            "crc": batch.crc,
        }
    if batch is not None and record is not None:
        found |= {"offset": record.offset, "timestamp": record.timestamp, "key": record.key, "value": record.value}
        found["headers"] = [{"key": name, "value": value} for name, value in record.headers]
        if batch.base_sequence >= 0:
            found["sequence"] = increment_sequence(batch.base_sequence, record.offset - batch.base_offset)
    return found


class _Derivation:
    """Computes the columns that depend on the layout and on ``order_by``."""

    def __init__(self, source: SegmentSource, extract: Extract | None) -> None:
        self._extract = extract
        self._source = source
        self._partition = source.partition.partition

    def values(self, row: Row) -> Values:
        batch, record = row.batch, row.record
        if batch is None:
            return {}
        layouts = layouts_until(self._source.manifest, self._source.partition, batch.partition_leader_epoch)
        found: Values = {"layout_version": layouts[-1].layout_version if layouts else None}
        if record is None:
            return found
        if batch.is_control:
            return {**found, "marker": _marker(record)}
        if self._source.is_internal:
            return found
        if layouts:
            found["while_closed"] = self._partition >= layouts[-1].undeleted_partition_count
            if record.key is not None:
                moved = _moved(record)
                places = [_place(record.key, x) for x in (layouts if moved else layouts[-1:])]
                found["moved"] = moved
                found["expected_partition"] = self._partition if self._partition in places else places[-1]
        return {**found, **self._order(record)}

    def _order(self, record: Record) -> Values:
        if self._extract is None or record.key is None or record.value is None:
            return {}
        try:
            return {"order_value": self._extract(record.value)}
        except OrderFieldError as error:
            return {"order_error": str(error)}


def _place(key: bytes, layout: LayoutLine) -> int:
    return place(positive_hash(key), layout.initial_partition_count, layout.undeleted_partition_count)


def _moved(record: Record) -> bool | None:
    if all(name != MOVED_HEADER for name, _ in record.headers):
        return None
    return record.value is None


def _marker(record: Record) -> int | None:
    try:
        kind, _ = read_control_record(record)
    except CorruptRecordError:
        return None
    return kind if kind in (CONTROL_ABORT, CONTROL_COMMIT) else None
