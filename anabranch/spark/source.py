"""``format("anabranch")`` for Spark: readers and writers, thin wrappers around the modules with the logic."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from anabranch.spark.columns import ArrowBuilder
from anabranch.spark.looks import Looks
from anabranch.spark.offsets import Range, ranges, split
from anabranch.spark.options import ReadOptions, Use, read_options, wants_headers, write_options
from anabranch.spark.running import RunningReader, kept_reader
from anabranch.spark.sink import LogStreamWriter, LogWriter
from anabranch.spark.stream import QueryStream

FORMAT_NAME = "anabranch"
_log = logging.getLogger(__name__)


def spark_schema(include_headers: bool) -> StructType:
    """The columns of Spark's Kafka source, and a column with the leader epoch in which a record was written."""
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        *([StructField("headers", ArrayType(header))] if include_headers else []),
        StructField("leader_epoch", IntegerType()),
    ]
    return StructType(fields)


class RangePartition(InputPartition):  # type: ignore[misc]
    """One range of offsets, in the form that is sent to an executor."""

    def __init__(self, wanted: Range) -> None:
        self.wanted = wanted


def _read(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a range, on an executor."""
    wanted = getattr(partition, "wanted", None)
    if wanted is None:  # Spark passes another object when there is no partition
        return
    builder = ArrowBuilder(wanted, to_arrow_schema(schema, timezone="UTC"))
    reader = kept_reader(options.client)
    for batches in reader.batches(wanted, fail_on_data_loss=options.fail_on_data_loss):
        yield from builder.add(batches)
    yield from builder.rest()


class LogBatchReader(DataSourceReader):  # type: ignore[misc]
    """``spark.read``: the ranges are determined once, when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        reader = RunningReader(self._options.client)
        try:
            found = reader.call(self._ranges, reader)
        finally:
            reader.close()
        if self._options.min_partitions is not None:
            found = split(found, self._options.min_partitions)
        return [RangePartition(one) for one in found]

    async def _ranges(self, running: RunningReader) -> list[Range]:
        looks = Looks(running.reader, self._options)
        cluster = await looks.cluster()
        start = await looks.resolve(cluster, self._options.begin)
        await looks.check_starts(start)
        end = await looks.resolve(cluster, self._options.end)
        return ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """``spark.readStream``. The driver's instance connects at its first use; executors' copies never connect."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._running: RunningReader | None = None
        self._stream: QueryStream | None = None

    def _call(self, method: str, *args: Any) -> Any:
        if self._running is None or self._stream is None:
            self._running = RunningReader(
                {**self._options.client, **({"group_id": g} if (g := self._options.group_id) is not None else {})}
            )
            self._stream = QueryStream(self._running.reader, self._options)
        return self._running.call(getattr(self._stream, method), *args)

    def initialOffset(self) -> dict[str, Any]:
        found: dict[str, Any] = self._call("initial")
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._call(
            "latest", start, limit.max_rows if isinstance(limit, ReadMaxRows) else None
        )
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        self._call("end_at_present")

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        return [RangePartition(one) for one in self._call("ranges", start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        self._call("commit", end)

    def stop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = self._stream = None


class LogDataSource(DataSource):  # type: ignore[misc]
    """The data source ``anabranch``. Options are checked when the kind of query is known."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        return spark_schema(wants_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogBatchReader(self._read_options(Use.BATCH, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogStreamReader(self._read_options(Use.STREAM, schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        return LogWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:
        return LogStreamWriter(write_options(self.options), schema, overwrite)

    def _read_options(self, use: Use, schema: StructType) -> ReadOptions:
        options = read_options(self.options, use)
        ours = spark_schema(options.include_headers)
        if [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in ours]:
            raise ValueError(f"the columns of {FORMAT_NAME} are {ours.simpleString()}: leave schema(...) out")
        return options
