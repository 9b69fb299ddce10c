"""The Spark data source ``anabranch-segments``: the records of segment files.

    from audit.datasource import register

    register(spark)
    spark.read.format("anabranch-segments").load("exported-directory")

Options: ``path`` (the directory, as given to ``load``), ``view``, ``order_by`` (``json:FIELD`` or ``tsv:N``),
``splitBytes`` (a larger segment is read in parts where its index lies beside it). The directory must be readable at the
same path by every executor. ``timestamp`` is in milliseconds since 1970; a batch that cannot be read is a row with
``error`` set and ``offset`` null.

Views: ``records`` (the default), ``checks`` (records, with the columns the checks need besides), ``summary`` (what the
audit looks at first: ``audit.summary``). A schema such as ``spark.read.schema("offset bigint")`` names some of a view's
columns: no others are built then, and values that it does not name are not decoded. Filters on ``topic``,
``partition`` and ``offset`` skip files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence

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

from audit.columns import CHECK_SCHEMA, PUBLIC_SCHEMA, names_of
from audit.discovery import discover
from audit.order_field import OrderField
from audit.parts import SPLIT_BYTES, SegmentPart, Wanted, read_part, segment_parts
from audit.summary import SUMMARY_SCHEMA, summaries

FORMAT_NAME = "anabranch-segments"
ROWS_PER_ARROW_BATCH = 65_536
VIEWS = {"records": PUBLIC_SCHEMA, "checks": f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}", "summary": SUMMARY_SCHEMA}
_OPTIONS = frozenset({"path", "view", "order_by", "splitbytes"})


class SegmentPartition(InputPartition):  # type: ignore[misc]
    """A part of one segment file, as it travels to an executor."""

    def __init__(self, part: SegmentPart) -> None:
        self.part = part


class SegmentsReader(DataSourceReader):  # type: ignore[misc]
    """Lists the segment files, on the driver; reads a part of one, on an executor."""

    def __init__(self, directory: str, columns: Sequence[str], order_by: str | None, split_bytes: int) -> None:
        self._directory = directory
        self._columns = list(columns)
        self._order_by = order_by
        self._split_bytes = split_bytes
        self.wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        parts = segment_parts(discover(self._directory), self._split_bytes, self.wanted)
        return [SegmentPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentPartition)
        for rows in read_part(partition.part, self._order_field()):
            found = rows.arrow(self._columns)
            for at in range(0, len(found), ROWS_PER_ARROW_BATCH):
                yield found.slice(at, ROWS_PER_ARROW_BATCH)

    def _order_field(self) -> OrderField | None:
        return OrderField(self._order_by) if self._order_by else None


class SummaryReader(SegmentsReader):
    """Reads what the audit looks at first."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentPartition)
        yield from summaries(read_part(partition.part, self._order_field()))


class FilteringReader(SegmentsReader):
    """Skips what filters do not want. Spark refuses such a reader where pushing filters down is switched off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can skip files as a hint. Spark applies all filters again."""
        for condition in filters:
            match condition:
                case EqualTo((column,), value):
                    self.wanted.keep(column, {value})
                case In((column,), values):
                    self.wanted.keep(column, set(values))
                case GreaterThan((column,), value) | GreaterThanOrEqual((column,), value):
                    self.wanted.keep_from(column, value)
                case LessThan((column,), value) | LessThanOrEqual((column,), value):
                    self.wanted.keep_until(column, value)
        return filters


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
        self._split_bytes = int(split)

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
        reader = SummaryReader if self._view == "summary" else self._reader
        return reader(self.options["path"], columns, order_by, self._split_bytes)


class FilteredSegmentsDataSource(SegmentsDataSource):
    """The same, with filters that skip files."""

    _reader = FilteringReader


def register(spark: SparkSession) -> None:
    """Make ``anabranch-segments`` known to a session, and have its filters skip files."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(FilteredSegmentsDataSource)
