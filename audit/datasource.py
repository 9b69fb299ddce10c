"""The Spark data source ``anabranch-segments``: the records of segment files.

    spark.read.format("anabranch-segments").load("exported-directory")

Spark finds it through the module ``pyspark_anabranch_segments``. Other sessions need ``register(spark)``.

Options: ``path`` (the directory, as given to ``load``), ``columns``, ``view``, ``order_by`` (``json:FIELD`` or
``tsv:N``), ``splitBytes`` (a larger segment that has an index is read in parts), ``maxDecompressedBytes`` (a batch that
decompresses to more becomes a row with ``error``), and the options of ``audit.bounds``, which skip files and batches.
The directory must be readable at the same path by every executor. ``timestamp`` is in milliseconds since 1970. A batch
that cannot be read is a row with ``error`` set and ``offset`` null.

Views: ``records`` (the default), ``checks`` (records, with further columns for the checks), ``summary`` (the first rows
that the audit reads: ``audit.summary``). PySpark does not pass the columns of a query to a Python data source. The
option ``columns`` (``offset,key``), or a schema such as ``spark.read.schema("offset bigint")``, selects some of a
view's columns. Then only the selected columns are built and decoded.

Filters skip nothing: this source accepts no pushed-down filters. PySpark 4.3 would use the filters of a first query for
a second query over the same DataFrame, too.

A stream follows a growing export (``audit.growing``). A stream fails when records that it has not read are missing.
With ``failOnDataLoss=false`` (default ``true``) the stream warns and continues.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from anabranch.audit.bounds import OPTIONS, WantedPartitions, wanted
from anabranch.audit.columns import CHECK_SCHEMA, PUBLIC_SCHEMA, Rows, names_of
from anabranch.audit.discovery import TopicFiles, discover, replica_files
from anabranch.audit.growing import SegmentSlice, beginning, decode, encode, followed, latest, read_slice, slices
from anabranch.audit.order_field import OrderField
from anabranch.audit.parts import ALL, SPLIT_BYTES, SegmentPart, read_part, segment_parts
from anabranch.audit.segment_reader import MAX_DECOMPRESSED_BYTES
from anabranch.audit.summary import SUMMARY_SCHEMA, summaries
from anabranch.protocol.stream_offsets import DataLossError

FORMAT_NAME = "anabranch-segments"
ROWS_PER_ARROW_BATCH = 65_536
_log = logging.getLogger(__name__)
VIEWS = {"records": PUBLIC_SCHEMA, "checks": f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}", "summary": SUMMARY_SCHEMA}
_OPTIONS = frozenset(
    {"path", "columns", "view", "order_by", "splitBytes", "maxDecompressedBytes", "failOnDataLoss", *OPTIONS}
)


class SegmentPartition(InputPartition):  # type: ignore[misc]
    """A part of one segment file, in the form that is sent to an executor."""

    def __init__(self, part: SegmentPart) -> None:
        self.part = part


class SegmentsReader(DataSourceReader):  # type: ignore[misc]
    """Lists the segment files on the driver, and reads a part of one on an executor."""

    _with_replicas = False

    def __init__(
        self,
        directory: str,
        columns: Sequence[str],
        order_by: str | None,
        split_bytes: int,
        selected: WantedPartitions,
        max_decompressed_bytes: int,
    ) -> None:
        self._max_decompressed_bytes = max_decompressed_bytes
        self._directory = directory
        self._columns = list(columns)
        self._order_by = order_by
        self._split_bytes = split_bytes
        self._wanted = selected

    def partitions(self) -> Sequence[InputPartition]:
        topics = discover(self._directory)
        self._wanted.check({t.manifest.topic: {p.partition for p in t.manifest.partitions} for t in topics})
        if self._with_replicas:
            topics += [replica for topic in topics for replica in replica_files(topic)]
        parts = segment_parts(topics, self._split_bytes, self._wanted)
        return [SegmentPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SegmentPartition):
            return  # Spark calls read even when there is no partition
        for rows in self._rows(partition.part):
            yield from _pieces(rows.arrow(self._columns, rows.within(partition.part.bounds)))

    def _rows(self, part: SegmentPart) -> Iterator[Rows]:
        order_by = OrderField(self._order_by) if self._order_by else None
        return read_part(part, order_by, self._max_decompressed_bytes)


class SummaryReader(SegmentsReader):
    """Reads the view ``summary`` of every exported replica."""

    _with_replicas = True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SegmentPartition):
            return
        for found in summaries(self._rows(partition.part), partition.part):
            yield found.select(self._columns)


class SlicePartition(InputPartition):  # type: ignore[misc]
    """A slice of one segment, in the form that is sent to an executor."""

    def __init__(self, wanted: SegmentSlice) -> None:
        self.wanted = wanted


class SegmentsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Follows a growing export. Each run of the export replaces the manifest."""

    def __init__(self, directory: str, columns: Sequence[str], order_by: str | None, fail_on_data_loss: bool) -> None:
        self._directory = directory
        self._columns = list(columns)
        self._order_by = order_by
        self._fail_on_data_loss = fail_on_data_loss
        self._target: TopicFiles | None = None

    def _present(self) -> TopicFiles:
        return followed(discover(self._directory), self._directory)

    def _lost(self, what: str) -> None:
        if self._fail_on_data_loss:
            raise DataLossError(f"{what}; failOnDataLoss=false continues without these records")
        _log.warning("records are lost: %s", what)

    def initialOffset(self) -> dict[str, Any]:
        return encode(beginning(self._present().manifest))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> Mapping[str, Any]:
        topic = self._target or self._present()
        return encode(latest(topic.manifest, decode(start), self._lost))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._present()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        found = slices(self._present(), decode(start), decode(end), self._lost)
        return [SlicePartition(one) for one in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        wanted = getattr(partition, "wanted", None)
        if wanted is None:  # Spark passes another object when there is no partition
            return
        order_field = OrderField(self._order_by) if self._order_by else None
        for rows, keep in read_slice(wanted, order_field, self._lost):
            yield from _pieces(rows.arrow(self._columns, keep))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: all state is in Spark's checkpoint."""

    def stop(self) -> None:
        """Do nothing: no file is open."""


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(rows), ROWS_PER_ARROW_BATCH):
        yield rows.slice(at, ROWS_PER_ARROW_BATCH)


class SegmentsDataSource(DataSource):  # type: ignore[misc]
    """The data source ``anabranch-segments``. Raises ValueError for an unknown option."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        known = {name.lower() for name in _OPTIONS}
        unknown = sorted(name for name in options if name.lower() not in known)
        if unknown:
            raise ValueError(f"{FORMAT_NAME} has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}")
        if "path" not in options:
            raise ValueError(f"{FORMAT_NAME} needs a directory: spark.read.format({FORMAT_NAME!r}).load(DIRECTORY)")
        self._view = options.get("view", "records")
        if self._view not in VIEWS:
            raise ValueError(f"{FORMAT_NAME} has no view {self._view!r}; it has {', '.join(VIEWS)}")
        self._columns = [name.strip() for name in options["columns"].split(",")] if "columns" in options else None
        self._refuse_unknown(self._columns or [])
        self._wanted = wanted(options)
        self._split_bytes = _bytes_of(options, "splitBytes", SPLIT_BYTES)
        self._max_decompressed_bytes = _bytes_of(options, "maxDecompressedBytes", MAX_DECOMPRESSED_BYTES)
        fail = options.get("failOnDataLoss", "true").lower()
        if fail not in ("true", "false"):
            raise ValueError(f"{FORMAT_NAME}: failOnDataLoss is {fail!r}, neither true nor false")
        self._fail_on_data_loss = fail == "true"

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> str:
        whole = VIEWS[self._view]
        if self._columns is None:
            return whole
        types = dict(column.split(" ", 1) for column in whole.split(", "))
        return ", ".join(f"{name} {types[name]}" for name in self._columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = schema.fieldNames()
        self._refuse_unknown(columns)
        reader = SummaryReader if self._view == "summary" else SegmentsReader
        order_by, path = self.options.get("order_by"), self.options["path"]
        return reader(path, columns, order_by, self._split_bytes, self._wanted, self._max_decompressed_bytes)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        columns = schema.fieldNames()
        self._refuse_unknown(columns)
        if self._view == "summary":
            raise ValueError(f"the view {self._view!r} of {FORMAT_NAME} is not for streams")
        if others := [name for name in (*OPTIONS, "splitBytes", "maxDecompressedBytes") if name in self.options]:
            raise ValueError(f"option {others[0]} of {FORMAT_NAME} is not for streams")
        order_by = self.options.get("order_by")
        return SegmentsStreamReader(self.options["path"], columns, order_by, self._fail_on_data_loss)

    def _refuse_unknown(self, columns: Sequence[str]) -> None:
        known = names_of(VIEWS[self._view])
        unknown = [name for name in columns if name not in known]
        if unknown:
            raise ValueError(f"the view {self._view!r} of {FORMAT_NAME} has no column {unknown[0]!r}")


def segment_frame(
    spark: SparkSession,
    topics: list[TopicFiles],
    view: str,
    order_by: str | None = None,
    split_bytes: int = SPLIT_BYTES,
    *,
    wanted_columns: Sequence[str] = (),
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    selected: WantedPartitions = ALL,
    merged: Callable[[str, int], bool] = lambda topic, partition: False,
) -> DataFrame:
    """The DataFrame of ``format("anabranch-segments")`` for these topics, planned in this process.

    ``wanted_columns`` selects columns of the view; when it is empty, all are returned. For partitions in ``merged``,
    the view ``summary`` has a row for each stretch of batches instead of each batch.

    With the format itself, Spark starts three Python programs one after the other, which takes seconds.
    """
    parts = [
        pickle.dumps((part, merged(part.source.manifest.topic, part.source.partition.partition)))
        for part in segment_parts(topics, split_bytes, selected)
    ]
    types = dict(column.split(" ", 1) for column in VIEWS[view].split(", "))
    columns = list(wanted_columns or types)

    def read(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        order_field = OrderField(order_by) if order_by else None  # its decoder cannot be sent to an executor
        for task in tasks:
            for number in task.column(0).to_pylist():
                part, is_merged = pickle.loads(parts[number])
                found = read_part(part, order_field, max_decompressed_bytes, report_unreadable=True)
                if view == "summary":
                    yield from summaries(found, part, merged=is_merged)
                else:
                    for rows in found:
                        yield from _pieces(rows.arrow(columns))

    return spark.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(
        read, ", ".join(f"{name} {types[name]}" for name in columns)
    )


def _bytes_of(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{FORMAT_NAME}: {name} is {text!r}, not a positive number of bytes")
    return int(text)


def register(spark: SparkSession) -> None:
    """Register ``anabranch-segments`` with a session."""
    spark.dataSource.register(SegmentsDataSource)
