"""Converts batches of the log to Arrow batches with the columns of ``format("anabranch")``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from anabranch.protocol.batch_layout import LOG_APPEND_TIME, MAX_LONG
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.record_arrays import (
    PADDING,
    Ints,
    base_timestamps,
    decode,
    gather,
    having_header,
    header_lists,
    timestamps,
)
from anabranch.protocol.records import RecordBatch
from anabranch.spark.offsets import Range

_log = logging.getLogger(__name__)
ROWS_PER_ARROW_BATCH = 10_000
LATEST_MS, EARLIEST_MS = MAX_LONG // 1000, -(MAX_LONG // 1000)
"""The bounds of a timestamp in Spark, which has microseconds in 64 bits."""
DECODED_BYTES = 4 * 1024 * 1024
"""Batches are decoded together once their records have this many bytes."""


class ArrowBuilder:
    """Collects the batches of one range, and returns their records in Arrow batches of a bounded size.

    ``schema`` is Spark's Arrow schema of the columns.
    """

    def __init__(self, wanted: Range, schema: pa.Schema) -> None:
        self._wanted = wanted
        self._schema = schema
        self._batches: list[RecordBatch] = []
        self._bodies: list[bytes] = []
        self._bytes = 0

    def add(self, batches: Iterable[tuple[RecordBatch, bool]]) -> Iterator[pa.RecordBatch]:
        """Add batches. A batch's flag is True if readers get its records. Raises CorruptRecordError."""
        for batch, is_visible in batches:
            if not is_visible or not batch.count:
                continue
            self._batches.append(batch)
            self._bodies.append(batch.body())
            self._bytes += len(self._bodies[-1])
            if self._bytes >= DECODED_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The records that were not returned yet."""
        batches, bodies = self._batches, self._bodies
        self._batches, self._bodies, self._bytes = [], [], 0
        if not batches:
            return
        kinds = np.array([batch.timestamp_type for batch in batches], np.int32)
        base = np.array([batch.base_timestamp for batch in batches])
        ends = np.cumsum([len(body) for body in bodies])
        body = np.frombuffer(b"".join([*bodies, PADDING]), np.uint8)
        columns, malformed = decode(
            body,
            ends - [len(body) for body in bodies],
            ends,
            np.array([batch.count for batch in batches]),
            np.array([batch.last_offset_delta for batch in batches]),
            base_timestamps(kinds == LOG_APPEND_TIME, base),
        )
        for index in np.flatnonzero(malformed):
            batches[index].records()
            raise CorruptRecordError(f"{batches[index]!r} cannot be read")
        offsets = np.array([batch.base_offset for batch in batches])[columns.batch] + columns.offset_delta
        moved = having_header(body, columns, MOVED_HEADER) & (columns.value_length < 0)
        wanted = (offsets >= self._wanted.start) & (offsets < self._wanted.end) & ~moved
        columns, offsets = columns.where(wanted), offsets[wanted]
        largest = np.array([batch.max_timestamp for batch in batches])
        times = timestamps(columns, kinds == LOG_APPEND_TIME, base, largest)
        epochs = np.array([batch.partition_leader_epoch for batch in batches], np.int32)
        types = {field.name: field.type for field in self._schema}
        arrays = {
            "key": gather(body, columns.key_at, columns.key_length),
            "value": gather(body, columns.value_at, columns.value_length),
            "topic": pa.repeat(self._wanted.topic, len(offsets)),
            "partition": pa.repeat(pa.scalar(self._wanted.partition, pa.int32()), len(offsets)),
            "offset": pa.array(offsets),
            "timestamp": self._timestamps(times, offsets).cast(pa.timestamp("ms", types["timestamp"].tz)),
            "timestampType": pa.array(kinds[columns.batch]),
            "leader_epoch": pa.array(epochs[columns.batch]),
        }
        if "headers" in types:
            arrays["headers"] = header_lists(body, columns)
        found = pa.RecordBatch.from_arrays([arrays[name].cast(types[name]) for name in types], schema=self._schema)
        for at in range(0, len(found), ROWS_PER_ARROW_BATCH):
            yield found.slice(at, ROWS_PER_ARROW_BATCH)

    def _timestamps(self, times: Ints, offsets: Ints) -> pa.Array:
        """The timestamps in milliseconds; null, with a warning, for one that Spark's microseconds cannot hold."""
        unfit = (times > LATEST_MS) | (times < EARLIEST_MS)
        if unfit.any():
            first = int(np.flatnonzero(unfit)[0])
            _log.warning(
                "%s-%d: the timestamp %d of the record at offset %d does not fit into Spark's timestamps. It is null "
                "in this row and in %d further rows. Are these micro- or nanoseconds?",
                self._wanted.topic,
                self._wanted.partition,
                times[first],
                offsets[first],
                int(unfit.sum()) - 1,
            )
        return pa.array(times, mask=unfit)
