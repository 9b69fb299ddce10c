"""How batches of the log become Arrow batches of the columns of ``format("anabranch")``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from anabranch.spark.offsets import Range
from protocol.key_placement import MOVED_HEADER
from protocol.record_columns import Columns, read_columns
from protocol.records import RecordBatch

ROWS_PER_ARROW_BATCH = 10_000
BYTES_PER_ARROW_BATCH = 8 * 1024 * 1024
_MOVED = MOVED_HEADER.encode()


class ArrowBuilder:
    """Collects the records of one range and gives them out in Arrow batches of a bounded size.

    ``schema`` is Spark's Arrow schema of the columns.
    """

    def __init__(self, wanted: Range, schema: pa.Schema, *, include_headers: bool) -> None:
        self._wanted = wanted
        self._schema = schema
        self._include_headers = include_headers
        self._reset()

    def _reset(self) -> None:
        self._columns = Columns([], [], [], [])
        self._headers: list[list[tuple[str, bytes | None]]] = []
        self._kinds: list[int] = []
        self._epochs: list[int] = []
        self._bytes = 0

    def add(self, batches: Iterable[tuple[RecordBatch, bool]]) -> Iterator[pa.RecordBatch]:
        """Take batches, each with whether its records are for readers."""
        for batch, is_visible in batches:
            if is_visible:
                self._add(batch)
            if len(self._kinds) >= ROWS_PER_ARROW_BATCH or self._bytes >= BYTES_PER_ARROW_BATCH:
                yield from self.rest()

    def _add(self, batch: RecordBatch) -> None:
        if self._include_headers or _may_hold_moved(batch):
            columns = self._decode(batch)
        else:
            columns = read_columns(batch)
        offsets = columns.offsets
        first, stop = bisect_left(offsets, self._wanted.start), bisect_left(offsets, self._wanted.end)
        if stop - first < len(offsets):
            columns = columns.between(first, stop)
        self._columns.offsets.extend(columns.offsets)
        self._columns.timestamps.extend(columns.timestamps)
        self._columns.keys.extend(columns.keys)
        self._columns.values.extend(columns.values)
        if self._include_headers:
            del self._headers[len(self._kinds) + stop :]
            del self._headers[len(self._kinds) : len(self._kinds) + first]
        self._kinds += [batch.timestamp_type] * (stop - first)
        self._epochs += [batch.partition_leader_epoch] * (stop - first)
        self._bytes += batch.length

    def _decode(self, batch: RecordBatch) -> Columns:
        """With the headers, and without tombstones of keys that moved to another partition."""
        records = [r for r in batch.records() if r.value is not None or MOVED_HEADER not in (h[0] for h in r.headers)]
        if self._include_headers:
            self._headers += [record.headers for record in records]
        return Columns(
            [r.offset for r in records],
            [r.timestamp for r in records],
            [r.key for r in records],
            [r.value for r in records],
        )

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What is collected, if anything is."""
        count = len(self._kinds)
        if not count:
            return
        types = {field.name: field.type for field in self._schema}
        millis = pa.array(self._columns.timestamps, pa.timestamp("ms", types["timestamp"].tz))
        arrays: dict[str, Any] = {
            "key": pa.array(self._columns.keys, types["key"]),
            "value": pa.array(self._columns.values, types["value"]),
            "topic": pa.repeat(pa.scalar(self._wanted.topic, types["topic"]), count),
            "partition": pa.repeat(pa.scalar(self._wanted.partition, types["partition"]), count),
            "offset": pa.array(self._columns.offsets, types["offset"]),
            "timestamp": millis.cast(types["timestamp"]),
            "timestampType": pa.array(self._kinds, types["timestampType"]),
            "leader_epoch": pa.array(self._epochs, types["leader_epoch"]),
        }
        if self._include_headers:
            arrays["headers"] = pa.array(
                [[{"key": name, "value": value} for name, value in headers] for headers in self._headers],
                types["headers"],
            )
        self._reset()
        yield pa.RecordBatch.from_arrays([arrays[field.name] for field in self._schema], schema=self._schema)


def _may_hold_moved(batch: RecordBatch) -> bool:
    batch.unpack()  # once: the columns are read from it too
    return _MOVED in batch.body()
