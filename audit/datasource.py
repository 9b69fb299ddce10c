"""The Spark data source ``anabranch-segments``: one Spark partition per segment file.

    spark.dataSource.register(SegmentsDataSource)
    spark.read.format("anabranch-segments").load("exported-directory")

Options: ``path`` (the directory, as given to ``load``), ``checks`` (``true`` adds the columns the audit's checks need),
``order_by`` (with ``checks``: ``json:FIELD`` or ``tsv:N``). The directory must be readable at the same path by every
executor. ``timestamp`` is in milliseconds since 1970; a corrupt batch is a row with ``error`` set and ``offset`` null.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from audit.columns import CHECK_SCHEMA, PUBLIC_SCHEMA, SegmentSource, arrow_batches
from audit.discovery import discover
from audit.manifest import Manifest, PartitionEntry, SegmentEntry
from audit.order_field import parse_order_by
from audit.segment_reader import read_segment

FORMAT_NAME = "anabranch-segments"


class SegmentPartition(InputPartition):  # type: ignore[misc]
    """One segment file, as it travels to an executor."""

    def __init__(self, directory: str, manifest: Manifest, partition: PartitionEntry, segment: SegmentEntry) -> None:
        self.directory = directory
        self.source = SegmentSource(manifest, partition, f"{manifest.topic}-{partition.partition}/{segment.name}")


class SegmentsReader(DataSourceReader):  # type: ignore[misc]
    """Lists the segment files, on the driver; reads one, on an executor."""

    def __init__(self, directory: str, checks: bool, order_by: str | None) -> None:
        self._directory = directory
        self._checks = checks
        self._order_by = order_by

    def partitions(self) -> Sequence[InputPartition]:
        found = []
        for topic in discover(self._directory):
            for partition in topic.manifest.partitions:
                # The other partitions and segments stay here: an executor needs the topic's counts and this history.
                alone = _narrowed(topic.manifest)
                entry = PartitionEntry(
                    partition.partition, partition.log_start_offset, partition.high_watermark, [], partition.layouts
                )
                found += [SegmentPartition(topic.directory, alone, entry, x) for x in partition.segments]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentPartition)
        extract = parse_order_by(self._order_by) if self._order_by else None
        path = os.path.join(partition.directory, partition.source.segment)
        if not os.path.exists(path):
            return  # the check "segment files" names every file of the manifest that is missing
        with open(path, "rb") as file:
            rows = read_segment(file, os.fstat(file.fileno()).st_size)
            yield from arrow_batches(partition.source, rows, checks=self._checks, extract=extract)


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
    """Registers as ``anabranch-segments``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checks = options.get("checks", "false").lower() == "true"
        if "path" not in options:
            raise ValueError(f"{FORMAT_NAME} needs a directory: spark.read.format({FORMAT_NAME!r}).load(DIRECTORY)")

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> str:
        return f"{PUBLIC_SCHEMA}, {CHECK_SCHEMA}" if self._checks else PUBLIC_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentsReader(self.options["path"], self._checks, self.options.get("order_by"))
