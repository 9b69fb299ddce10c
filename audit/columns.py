"""The columns of ``anabranch-segments`` and how rows become Arrow batches of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from audit.manifest import Layout, Manifest, PartitionEntry, layouts_until
from audit.order_field import Extract, OrderFieldError
from audit.segment_reader import Row
from protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT
from protocol.compression import CorruptRecordError
from protocol.key_placement import MOVED_HEADER, place, positive_hash
from protocol.records import Record, increment_sequence, read_control_record

ROWS_PER_ARROW_BATCH = 8192
BYTES_PER_ARROW_BATCH = 16 * 1024 * 1024

PUBLIC_SCHEMA = (
    "topic string, partition int, segment string, base_offset bigint, offset bigint, leader_epoch int, "
    "timestamp bigint, key binary, value binary, headers array<struct<key:string,value:binary>>, "
    "producer_id bigint, producer_epoch int, sequence int, is_control boolean, is_transactional boolean, "
    "batch_crc_ok boolean, error string"
)
# What the checks need besides: where the batch sits, what its header says, and what is worked out from key and value.
# ``moved``: of a record with the header MOVED_HEADER, whether it is a tombstone; null without the header.
CHECK_SCHEMA = (
    "position bigint, batch_start boolean, suspect_offset bigint, last_offset bigint, record_count int, "
    "base_sequence int, last_sequence int, marker int, expected_partition int, moved boolean, while_closed boolean, "
    "layout_version int, order_value bigint, order_error string"
)

Values: TypeAlias = tuple[Any, ...]
_KEY, _VALUE = 7, 8

_ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "array<struct<key:string,value:binary>>": pa.list_(
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    ),
}


def arrow_schema(spark_schema: str) -> pa.Schema:
    """The Arrow schema of one of the schemas above."""
    fields = [column.split(" ", 1) for column in spark_schema.split(", ")]
    return pa.schema([pa.field(name, _ARROW_TYPES[type_name]) for name, type_name in fields])


@dataclass(frozen=True, slots=True)
class SegmentSource:
    """Where rows come from: a partition of a topic, and the segment's path below the audited directory."""

    manifest: Manifest
    partition: PartitionEntry
    segment: str


def arrow_batches(
    source: SegmentSource, rows: Iterable[Row], *, checks: bool, extract: Extract | None = None
) -> Iterator[pa.RecordBatch]:
    """``rows`` as Arrow batches of a bounded number of rows and bytes; ``checks`` adds the columns of CHECK_SCHEMA."""
    schema = arrow_schema(f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}" if checks else PUBLIC_SCHEMA)
    derive = _Derivation(source, extract) if checks else None
    pending: list[Values] = []
    pending_bytes = 0
    for row in rows:
        values = _public_values(source, row)
        pending.append(values + derive.values(row) if derive else values)
        pending_bytes += len(values[_KEY] or b"") + len(values[_VALUE] or b"")
        if len(pending) >= ROWS_PER_ARROW_BATCH or pending_bytes >= BYTES_PER_ARROW_BATCH:
            yield _to_arrow(pending, schema)
            pending = []
            pending_bytes = 0
    if pending:
        yield _to_arrow(pending, schema)


def _to_arrow(rows: list[Values], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _public_values(source: SegmentSource, row: Row) -> Values:
    place_in_file = (source.manifest.topic, source.partition.partition, source.segment)
    batch, record = row.batch, row.record
    if batch is None:
        return (*place_in_file, *(None,) * 12, row.crc_ok, row.error)
    sequence = None
    if record is not None and batch.base_sequence >= 0:
        sequence = increment_sequence(batch.base_sequence, record.offset - batch.base_offset)
    return (
        *place_in_file,
        batch.base_offset,
        record.offset if record else None,
        batch.partition_leader_epoch,
        record.timestamp if record else None,
        record.key if record else None,
        record.value if record else None,
        record.headers if record else None,
        batch.producer_id,
        batch.producer_epoch,
        sequence,
        batch.is_control,
        batch.is_transactional,
        row.crc_ok,
        row.error,
    )


class _Derivation:
    """Works out CHECK_SCHEMA's columns for the rows of one segment."""

    def __init__(self, source: SegmentSource, extract: Extract | None) -> None:
        self._extract = extract
        self._source = source
        self._partition = source.partition.partition
        self._layouts_of_epoch: dict[int, list[Layout]] = {}
        # Internal topics have their own placement and formats.
        self._is_internal = source.manifest.topic.startswith("__")

    def values(self, row: Row) -> Values:
        batch, record = row.batch, row.record
        if batch is None:
            return (row.position, row.batch_start, *(None,) * 12)
        header = (
            row.position,
            row.batch_start,
            row.suspect_offset,
            batch.last_offset,
            batch.count,
            batch.base_sequence,
            batch.last_sequence,
        )
        layouts = self._layouts(batch.partition_leader_epoch)
        layout = layouts[-1] if layouts else None
        version = layout.layout_version if layout else None
        if record is None:
            return (*header, None, None, None, None, version, None, None)
        if batch.is_control:
            return (*header, _marker(record), None, None, None, version, None, None)
        expected = moved = while_closed = None
        if layout is not None and not self._is_internal:
            while_closed = self._partition >= layout.undeleted_partition_count
            if record.key is not None:
                moved = _moved(record)
                places = [_place(record.key, x) for x in (layouts if moved else layouts[-1:])]
                expected = self._partition if self._partition in places else places[-1]
        return (*header, None, expected, moved, while_closed, version, *self._order(record))

    def _layouts(self, leader_epoch: int) -> list[Layout]:
        if leader_epoch not in self._layouts_of_epoch:
            source = self._source
            self._layouts_of_epoch[leader_epoch] = layouts_until(source.manifest, source.partition, leader_epoch)
        return self._layouts_of_epoch[leader_epoch]

    def _order(self, record: Record) -> tuple[int | None, str | None]:
        value = record.value
        if self._extract is None or self._is_internal or record.key is None or value is None:
            return None, None
        try:
            return self._extract(value), None
        except OrderFieldError as error:
            return None, str(error)


def _place(key: bytes, layout: Layout) -> int:
    return place(positive_hash(key), layout.initial_partition_count, layout.undeleted_partition_count)


def _moved(record: Record) -> bool | None:
    if all(name != MOVED_HEADER for name, _ in record.headers):
        return None
    return record.value is None


def _marker(record: Record) -> int | None:
    """CONTROL_ABORT or CONTROL_COMMIT for a transaction marker that can be read."""
    try:
        kind, _ = read_control_record(record)
    except CorruptRecordError:
        return None
    return kind if kind in (CONTROL_ABORT, CONTROL_COMMIT) else None
