"""The columns of ``anabranch-segments``: their types, and the functions that build them from a run of batches.

A row is a record (``offset`` set), or a batch without records: an unreadable batch, or the bare header that compaction
leaves. A column is built only when it is requested, for all rows of a run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.audit import segment_scan as scan
from anabranch.audit.bounds import EVERYTHING, PartitionBounds
from anabranch.audit.manifest import LayoutLine, Manifest, PartitionEntry, layouts_until
from anabranch.audit.order_field import OrderField
from anabranch.audit.segment_scan import Run
from anabranch.protocol.batch_layout import (
    CODEC_MASK,
    CONTROL_ABORT,
    CONTROL_BIT,
    CONTROL_COMMIT,
    CONTROL_KEY,
    CONTROL_VALUE,
    LOG_APPEND_TIME_BIT,
    MAX_SEQUENCE,
    TRANSACTIONAL_BIT,
)
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import MOVED_HEADER, place, positive_hash
from anabranch.protocol.record_arrays import (
    HEADERS,
    Arrays,
    Bools,
    Ints,
    gather,
    having_header,
    header_lists,
    place_all,
    positive_hashes,
    timestamps,
)

PUBLIC_SCHEMA = (
    "topic string, partition int, segment string, position bigint, base_offset bigint, offset bigint, "
    "leader_epoch int, timestamp bigint, timestamp_type int, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, producer_id bigint, producer_epoch int, sequence int, "
    "is_control boolean, is_transactional boolean, codec string, layout_version int, batch_crc_ok boolean, error string"
)
# Further columns for the checks: fields of the batch's header, and values computed from key and value.
# ``replica`` is the broker of the copy, -1 for the leader's copy and for files that were read without an export.
# ``moved`` is whether a record with the header MOVED_HEADER is a tombstone; null without the header.
CHECK_SCHEMA = (
    "batch_start boolean, suspect_offset bigint, last_offset bigint, record_count int, base_sequence int, "
    "last_sequence int, marker int, expected_partition int, moved boolean, while_closed boolean, "
    "order_value bigint, order_error string, replica int, crc bigint"
)

_ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "array<struct<key:string,value:binary>>": HEADERS,
}
_CODECS = [codec.name.lower() for codec in CompressionType]


def arrow_schema(columns: Sequence[str], spark_schema: str = f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}") -> pa.Schema:
    """The Arrow schema of these columns of a Spark schema like those above."""
    types = dict(column.split(" ", 1) for column in spark_schema.split(", "))
    return pa.schema([pa.field(name, _ARROW_TYPES[types[name]]) for name in columns])


def names_of(spark_schema: str) -> list[str]:
    return [column.split(" ", 1)[0] for column in spark_schema.split(", ")]


@dataclass(frozen=True, slots=True)
class SegmentSource:
    """The source of rows: a partition of a topic, and the segment's path below the audited directory.

    ``broker`` is set for the copy of another replica than the leader.
    """

    manifest: Manifest
    partition: PartitionEntry
    segment: str
    broker: int = -1

    @property
    def is_internal(self) -> bool:
        """Whether the topic is internal: such topics have their own placement and formats."""
        return self.manifest.topic.startswith("__")


class Rows:
    """The rows of a run, column by column.

    ``batch`` is the index of a row's batch. ``record`` is the index of its record; it has no meaning when ``is_record``
    is False.
    """

    def __init__(self, source: SegmentSource, run: Run, order_by: OrderField | None = None) -> None:
        self.source = source
        self.run = run
        self._order_by = order_by
        counts = np.bincount(run.columns.batch, minlength=len(run.positions))
        rows = np.maximum(counts, 1)
        self.batch: Ints = np.repeat(np.arange(len(rows)), rows)
        self.is_record: Bools = (counts > 0)[self.batch]
        self.record: Ints = np.cumsum(self.is_record) - 1
        self._has_header = run.has_header
        self._all_records = bool(self.is_record.all())

    def __len__(self) -> int:
        return len(self.batch)

    def within(self, bounds: PartitionBounds) -> Bools | None:
        """A mask of the rows in these bounds; rows without a record are always in the mask. None means all rows."""
        if bounds == EVERYTHING:
            return None
        offsets, times = self.offsets, self.record_timestamps
        inside = (offsets >= bounds.first_offset) & (offsets < bounds.end_offset)
        inside &= (times >= bounds.first_timestamp) & (times < bounds.end_timestamp)
        keep = ~self.is_record
        keep[self.is_record] = inside
        return keep

    def only(self, keep: Bools) -> Rows:
        """The rows of a mask. Values that were computed for all records are shared with the result."""
        found = copy(self)
        found.batch, found.is_record, found.record = self.batch[keep], self.is_record[keep], self.record[keep]
        found._all_records = False
        found.__dict__.pop("keys", None)
        found.__dict__.pop("values", None)
        return found

    def arrow(self, columns: Sequence[str], keep: Bools | None = None) -> pa.RecordBatch:
        """These columns of all rows, or of the rows in ``keep``."""
        arrays = [self.column(name) for name in columns]
        found = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
        return found if keep is None else found.filter(pa.array(keep))

    def column(self, name: str) -> Arrays:
        return _COLUMNS[name](self)

    # ------------------------------------------------------------ helpers

    def field(self, index: int) -> Ints:
        """A field of the batch header, for each batch."""
        return self.run.header_field(index)

    def of_batch(self, values: Ints, kind: pa.DataType, where: Bools | None = None) -> Arrays:
        """A number or boolean of each batch; null without a header, and where ``where`` is False."""
        there = self._has_header if where is None else self._has_header & where
        if there.all():
            return pa.array(values[self.batch].astype(kind.to_pandas_dtype()), kind)
        return pa.array(values[self.batch].astype(kind.to_pandas_dtype()), kind, mask=~there[self.batch])

    def of_record(self, values: Ints, kind: pa.DataType) -> Arrays:
        """A number of each record; null for a batch without records."""
        if self._all_records:
            return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), kind)
        if not len(values):
            return pa.nulls(len(self), kind)
        return pa.array(values[self.record].astype(kind.to_pandas_dtype()), kind, mask=~self.is_record)

    def _bytes(self, at: Ints, lengths: Ints) -> Arrays:
        """The bytes at these positions of the body, one entry per record; null where the length is negative."""
        if self._all_records:
            return gather(self.run.body, at, lengths)
        chosen = self.record[self.is_record]
        found = gather(self.run.body, at[chosen], lengths[chosen])
        return found.take(pa.array(np.cumsum(self.is_record) - 1, mask=~self.is_record))

    # ------------------------------------------------------------ computed values

    @cached_property
    def keys(self) -> Arrays:
        return self._bytes(self.run.columns.key_at, self.run.columns.key_length)

    @cached_property
    def values(self) -> Arrays:
        return self._bytes(self.run.columns.value_at, self.run.columns.value_length)

    @property
    def offsets(self) -> Ints:
        """The offset of each record."""
        return self.field(scan.BASE_OFFSET)[self.run.columns.batch] + self.run.columns.offset_delta

    @cached_property
    def record_timestamps(self) -> Ints:
        appended = self.field(scan.ATTRIBUTES) & LOG_APPEND_TIME_BIT != 0
        return timestamps(self.run.columns, appended, self.field(scan.BASE_TIMESTAMP), self.field(scan.MAX_TIMESTAMP))

    @cached_property
    def last_sequences(self) -> Ints:
        """The sequence of each batch's last record; -1 without sequences."""
        base = self.field(scan.BASE_SEQUENCE)
        return np.where(base == -1, -1, base + self.field(scan.LAST_OFFSET_DELTA) & MAX_SEQUENCE)

    @cached_property
    def layouts(self) -> tuple[list[list[LayoutLine]], Ints]:
        """Return a list of layouts for each leader epoch of the run, and for each batch the index of its list.

        The list has the partition's layouts up to the epoch, oldest first.
        """
        epochs, index = np.unique(self.field(scan.LEADER_EPOCH), return_inverse=True)
        source = self.source
        return [layouts_until(source.manifest, source.partition, epoch) for epoch in epochs.tolist()], index

    @cached_property
    def layout_versions(self) -> Ints:
        """The version of each batch's layout; -1 where it is not known."""
        layouts, index = self.layouts
        return np.array([x[-1].layout_version if x else -1 for x in layouts], np.int64)[index]

    @cached_property
    def is_of_client(self) -> Bools:
        """A mask of the records that clients have written; empty for internal topics."""
        if self.source.is_internal:
            return np.zeros(len(self.run.columns.batch), np.bool_)
        by_client: Bools = self.field(scan.ATTRIBUTES) & CONTROL_BIT == 0
        return by_client[self.run.columns.batch]

    @cached_property
    def placements(self) -> tuple[Ints, Bools]:
        """The expected partition of each record, and a mask of the records with a known expected partition."""
        columns = self.run.columns
        known = self.is_of_client & (columns.key_length >= 0) & (self.layout_versions >= 0)[columns.batch]
        expected = np.full(len(known), -1, np.int64)
        rows = np.flatnonzero(known)
        if rows.size:
            hashes = positive_hashes(self.run.body, columns.key_at[rows], columns.key_length[rows])
            layouts, index = self.layouts
            newest = [x[-1] if x else LayoutLine(-1, 1, 1, -1) for x in layouts]
            initial = np.array([layout.initial_partition_count for layout in newest], np.int64)
            undeleted = np.array([layout.undeleted_partition_count for layout in newest], np.int64)
            expected[rows] = place_all(hashes, initial, undeleted, index[columns.batch[rows]])
            for row in rows[self.moved[rows] == 1]:
                self._place_moved(int(row), expected)
        return expected, known

    def _place_moved(self, row: int, expected: Ints) -> None:
        """Accept the tombstone of a moved key in every partition that the key has had up to the record's layout."""
        at, length = int(self.run.columns.key_at[row]), int(self.run.columns.key_length[row])
        key_hash = positive_hash(self.run.body[at : at + length].tobytes())
        of_epochs, index = self.layouts
        layouts = of_epochs[int(index[self.run.columns.batch[row]])]
        places = [place(key_hash, x.initial_partition_count, x.undeleted_partition_count) for x in layouts]
        if self.source.partition.partition in places:
            expected[row] = self.source.partition.partition

    @cached_property
    def moved(self) -> Ints:
        """For each record with the header MOVED_HEADER, 1 if it is a tombstone, else 0. For other records, -1."""
        columns = self.run.columns
        has_it = having_header(self.run.body, columns, MOVED_HEADER)
        return np.where(has_it, columns.value_length < 0, -1)

    @cached_property
    def misplaced(self) -> Bools:
        expected, known = self.placements
        wrong: Bools = known & (expected != self.source.partition.partition)
        return wrong

    @cached_property
    def closed(self) -> tuple[Bools, Bools]:
        """Two masks: records whose layout does not count their partition, and records whose layout is known."""
        partition = self.source.partition.partition
        layouts, index = self.layouts
        shut = [bool(x) and partition >= x[-1].undeleted_partition_count for x in layouts]
        batch = self.run.columns.batch
        known = self.is_of_client & (self.layout_versions >= 0)[batch]
        return np.array(shut, np.bool_)[index[batch]] & known, known

    @cached_property
    def order(self) -> tuple[Arrays, Arrays]:
        """The order value of each record, and an error for each record that lacks the value."""
        columns = self.run.columns
        count = len(columns.batch)
        if self._order_by is None:
            return pa.nulls(count, pa.int64()), pa.nulls(count, pa.string())
        wanted = self.is_of_client & (columns.key_length >= 0) & (columns.value_length >= 0)
        values = gather(self.run.body, columns.value_at, np.where(wanted, columns.value_length, -1))
        return self._order_by.read(values)


def _headers(rows: Rows) -> Arrays:
    return _of_records(rows, header_lists(rows.run.body, rows.run.columns))


def _sequences(rows: Rows) -> Arrays:
    columns = rows.run.columns
    base = rows.field(scan.BASE_SEQUENCE)
    found = pa.array((base[columns.batch] + columns.offset_delta & MAX_SEQUENCE).astype(np.int32), pa.int32())
    known = (base >= 0)[rows.batch] & rows.is_record
    if rows._all_records and known.all():
        return found
    return found.take(pa.array(np.where(known, rows.record, 0), mask=~known))


def _codecs(rows: Rows) -> Arrays:
    codecs = rows.field(scan.ATTRIBUTES) & CODEC_MASK
    known = codecs < len(_CODECS)
    names = pa.array(_CODECS).take(pa.array(np.where(known, codecs, 0), mask=~(known & rows._has_header)))
    return names.take(pa.array(rows.batch))


def _markers(rows: Rows) -> Arrays:
    """CONTROL_ABORT or CONTROL_COMMIT for a readable transaction marker; null for other rows."""
    columns, body = rows.run.columns, rows.run.body.data
    found: Ints = np.full(len(columns.batch), -1, np.int64)
    for row in np.flatnonzero((rows.field(scan.ATTRIBUTES) & CONTROL_BIT != 0)[columns.batch]):
        if columns.key_length[row] < CONTROL_KEY.size or columns.value_length[row] < CONTROL_VALUE.size:
            continue
        version, kind = CONTROL_KEY.unpack_from(body, int(columns.key_at[row]))
        if version >= 0 and kind in (CONTROL_ABORT, CONTROL_COMMIT):
            found[row] = kind
    return _known(rows, found, found >= 0, pa.int32())


def _known(rows: Rows, values: Ints, known: Bools, kind: pa.DataType) -> Arrays:
    """The value of each record with a known value; null for all other rows."""
    if rows._all_records:
        return pa.array(values.astype(kind.to_pandas_dtype()), kind, mask=~known)
    if not len(values):
        return pa.nulls(len(rows), kind)
    there = known[rows.record] & rows.is_record
    return pa.array(values[rows.record].astype(kind.to_pandas_dtype()), kind, mask=~there)


def _of_records(rows: Rows, values: Arrays) -> Arrays:
    return values if rows._all_records else values.take(pa.array(rows.record, mask=~rows.is_record))


def _of_batches(rows: Rows, values: Sequence[Any], kind: pa.DataType) -> Arrays:
    if all(value is None for value in values):
        return pa.nulls(len(rows), kind)
    return pa.array(values, kind).take(pa.array(rows.batch))


def _batch_starts(rows: Rows) -> Bools:
    return np.concatenate([np.ones(1, np.bool_), rows.batch[1:] != rows.batch[:-1]])


def _bit(index: int) -> Callable[[Rows], Arrays]:
    return lambda rows: rows.of_batch(rows.field(scan.ATTRIBUTES) & index != 0, pa.bool_())


def _field(index: int, kind: pa.DataType) -> Callable[[Rows], Arrays]:
    return lambda rows: rows.of_batch(rows.field(index), kind)


_COLUMNS: Mapping[str, Callable[[Rows], Arrays]] = {
    "topic": lambda rows: pa.repeat(rows.source.manifest.topic, len(rows)),
    "partition": lambda rows: pa.repeat(pa.scalar(rows.source.partition.partition, pa.int32()), len(rows)),
    "segment": lambda rows: pa.repeat(rows.source.segment, len(rows)),
    "position": lambda rows: pa.array(rows.run.positions[rows.batch]),
    "base_offset": _field(scan.BASE_OFFSET, pa.int64()),
    "offset": lambda rows: rows.of_record(rows.offsets, pa.int64()),
    "leader_epoch": _field(scan.LEADER_EPOCH, pa.int32()),
    "timestamp": lambda rows: rows.of_record(rows.record_timestamps, pa.int64()),
    "timestamp_type": lambda rows: rows.of_batch(
        (rows.field(scan.ATTRIBUTES) & LOG_APPEND_TIME_BIT != 0).astype(np.int64), pa.int32()
    ),
    "key": lambda rows: rows.keys,
    "value": lambda rows: rows.values,
    "headers": _headers,
    "producer_id": _field(scan.PRODUCER_ID, pa.int64()),
    "producer_epoch": _field(scan.PRODUCER_EPOCH, pa.int32()),
    "sequence": _sequences,
    "is_control": _bit(CONTROL_BIT),
    "is_transactional": _bit(TRANSACTIONAL_BIT),
    "codec": _codecs,
    "layout_version": lambda rows: rows.of_batch(rows.layout_versions, pa.int32(), rows.layout_versions >= 0),
    "batch_crc_ok": lambda rows: pa.array(rows.run.crc_ok[rows.batch]),
    "error": lambda rows: _of_batches(rows, rows.run.errors, pa.string()),
    "batch_start": lambda rows: pa.array(_batch_starts(rows)),
    "suspect_offset": lambda rows: _of_batches(rows, rows.run.suspects, pa.int64()),
    "last_offset": lambda rows: rows.of_batch(
        rows.field(scan.BASE_OFFSET) + rows.field(scan.LAST_OFFSET_DELTA), pa.int64()
    ),
    "record_count": _field(scan.COUNT, pa.int32()),
    "base_sequence": _field(scan.BASE_SEQUENCE, pa.int32()),
    "last_sequence": lambda rows: rows.of_batch(rows.last_sequences, pa.int32()),
    "marker": _markers,
    "expected_partition": lambda rows: _known(rows, *rows.placements, pa.int32()),
    "moved": lambda rows: _known(rows, rows.moved, (rows.moved >= 0) & rows.placements[1], pa.bool_()),
    "while_closed": lambda rows: _known(rows, rows.closed[0].astype(np.int64), rows.closed[1], pa.bool_()),
    "order_value": lambda rows: _of_records(rows, rows.order[0]),
    "order_error": lambda rows: _of_records(rows, rows.order[1]),
    "replica": lambda rows: pa.repeat(pa.scalar(rows.source.broker, pa.int32()), len(rows)),
    "crc": _field(scan.CRC, pa.int64()),
}
