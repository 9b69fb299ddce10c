"""The Spark data source ``anabranch-segments``: the records of segment files.

    from audit.datasource import register

    register(spark)
    spark.read.format("anabranch-segments").load("exported-directory")

Options: ``path`` (the directory, as given to ``load``), ``view``, ``order_by`` (``json:FIELD`` or ``tsv:N``),
``splitBytes`` (a larger segment is read in parts where its index lies beside it). The directory must be readable at the
same path by every executor. ``timestamp`` is in milliseconds since 1970; a batch that cannot be read is a row with
``error`` set and ``offset`` null.

Views: ``records`` (the default), ``checks`` (records, with the columns the checks need besides), ``summary`` (what the
audit reads first: ``audit.summary``). ``spark.read.schema("offset bigint")`` names some of a view's columns: no others
are built then, and values that it does not name are not decoded. Filters on ``topic``, ``partition`` and ``offset``
skip files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from audit.columns import CHECK_SCHEMA, PUBLIC_SCHEMA, Rows, SegmentSource, names_of
from audit.discovery import discover
from audit.manifest import Manifest, PartitionEntry, SegmentEntry
from audit.order_field import OrderField
from audit.segment_scan import scan
from audit.splits import Part, parts_of
from audit.summary import SUMMARY_SCHEMA, summaries

FORMAT_NAME = "anabranch-segments"
SPLIT_BYTES = 64 * 1024 * 1024
ROWS_PER_ARROW_BATCH = 65_536
VIEWS = {
    "records": PUBLIC_SCHEMA,
    "checks": f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}",
    "summary": SUMMARY_SCHEMA,
}
_OPTIONS = frozenset({"path", "view", "order_by", "splitbytes"})


class SegmentPartition(InputPartition):  # type: ignore[misc]
    """A part of one segment file, as it travels to an executor."""

    def __init__(self, directory: str, source: SegmentSource, part: Part) -> None:
        self.directory = directory
        self.source = source
        self.part = part


class SegmentsReader(DataSourceReader):  # type: ignore[misc]
    """Lists the segment files, on the driver; reads a part of one, on an executor."""

    def __init__(self, directory: str, view: str, columns: Sequence[str], order_by: str | None, split: int) -> None:
        self._directory = directory
        self._view = view
        self._columns = list(columns)
        self._order_by = order_by
        self._split = split
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        found = []
        for topic in discover(self._directory):
            if not self._wanted.includes("topic", topic.manifest.topic):
                continue
            for partition in topic.manifest.partitions:
                if not self._wanted.includes("partition", partition.partition):
                    continue
                # The other partitions and segments stay here: an executor needs the topic's counts and this history.
                alone = _narrowed(topic.manifest)
                entry = PartitionEntry(
                    partition.partition, partition.log_start_offset, partition.high_watermark, [], partition.layouts
                )
                for segment, end_offset in _with_ends(partition.segments):
                    if not self._wanted.overlaps("offset", segment.base_offset, end_offset):
                        continue
                    name = f"{alone.topic}-{entry.partition}/{segment.name}"
                    parts = parts_of(os.path.join(topic.directory, name), segment.base_offset, self._split)
                    source = SegmentSource(alone, entry, name)
                    found += [SegmentPartition(topic.directory, source, part) for part in parts]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentPartition)
        order_by = OrderField(self._order_by) if self._order_by else None
        path = os.path.join(partition.directory, partition.source.segment)
        if not os.path.exists(path):
            return  # the check "segment files" names every file of the manifest that is missing
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            for run in scan(file, size, partition.part.begin, partition.part.end):
                rows = Rows(partition.source, run, order_by)
                if self._view == "summary":
                    yield from summaries(rows)
                    continue
                found = rows.arrow(self._columns)
                for at in range(0, len(found), ROWS_PER_ARROW_BATCH):
                    yield found.slice(at, ROWS_PER_ARROW_BATCH)


class FilteringReader(SegmentsReader):
    """Skips what filters do not want. Spark refuses such a reader where pushing filters down is switched off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can skip files as a hint. Spark applies all filters again."""
        for condition in filters:
            self._wanted.narrow(condition)
        return filters


class Wanted:
    """The values that filters leave of columns: a set of them, or a range."""

    def __init__(self) -> None:
        self._values: dict[str, set[Any]] = {}
        self._lowest: dict[str, Any] = {}
        self._highest: dict[str, Any] = {}

    def narrow(self, condition: Filter) -> None:
        """Conditions of other kinds, and on parts of columns, leave everything."""
        match condition:
            case EqualTo((column,), value):
                self._keep(column, {value})
            case In((column,), values):
                self._keep(column, set(values))
            case GreaterThan((column,), value) | GreaterThanOrEqual((column,), value):
                self._lowest[column] = max(self._lowest.get(column, value), value)
            case LessThan((column,), value) | LessThanOrEqual((column,), value):
                self._highest[column] = min(self._highest.get(column, value), value)

    def _keep(self, name: str, values: set[Any]) -> None:
        self._values[name] = self._values.get(name, values) & values

    def includes(self, column: str, value: Any) -> bool:
        return self.overlaps(column, value, value)

    def overlaps(self, column: str, lowest: Any, highest: Any) -> bool:
        """Whether some value from ``lowest`` to ``highest`` may be wanted; None is no bound."""
        if column in self._lowest and highest is not None and highest < self._lowest[column]:
            return False
        if column in self._highest and lowest is not None and lowest > self._highest[column]:
            return False
        return column not in self._values or any(
            (lowest is None or lowest <= x) and (highest is None or x <= highest) for x in self._values[column]
        )


def _with_ends(segments: Sequence[SegmentEntry]) -> Iterator[tuple[SegmentEntry, int | None]]:
    """Each segment with the last offset it can have, which is not known for the last."""
    for index, segment in enumerate(segments):
        yield segment, segments[index + 1].base_offset - 1 if index + 1 < len(segments) else None


def _narrowed(manifest: Manifest) -> Manifest:
    return Manifest(
        topic=manifest.topic,
        cleanup_policy=manifest.cleanup_policy,
        initial_partition_count=manifest.initial_partition_count,
        undeleted_partition_count=manifest.undeleted_partition_count,
        partitions=[],
        layout_version=manifest.layout_version,
    )


class SegmentsDataSource(DataSource):  # type: ignore[misc]
    """Registers as ``anabranch-segments``. Raises ValueError for an option it does not have."""

    _reader = SegmentsReader

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        unknown = sorted(set(map(str.lower, options)) - _OPTIONS)
        if unknown:
            raise ValueError(f"{FORMAT_NAME} has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}")
        if "path" not in options:
            raise ValueError(f"{FORMAT_NAME} needs a directory: spark.read.format({FORMAT_NAME!r}).load(DIRECTORY)")
        self._view = options.get("view", "records")
        if self._view not in VIEWS:
            raise ValueError(f"{FORMAT_NAME} has no view {self._view!r}; it has {', '.join(VIEWS)}")
        split = options.get("splitBytes", str(SPLIT_BYTES))
        if not split.isdecimal() or int(split) < 1:
            raise ValueError(f"{FORMAT_NAME}: splitBytes is {split!r}, not a positive number of bytes")
        self._split = int(split)

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> str:
        return VIEWS[self._view]

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = schema.fieldNames()
        unknown = sorted(set(columns) - set(names_of(VIEWS[self._view])))
        if unknown:
            raise ValueError(f"the view {self._view!r} of {FORMAT_NAME} has no column {unknown[0]!r}")
        order_by = self.options.get("order_by")
        return self._reader(self.options["path"], self._view, columns, order_by, self._split)


class FilteredSegmentsDataSource(SegmentsDataSource):
    """The same, with filters that skip files."""

    _reader = FilteringReader


def register(spark: SparkSession) -> None:
    """Make ``anabranch-segments`` known to a session, and have its filters skip files."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(FilteredSegmentsDataSource)
