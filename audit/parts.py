"""The parts of segment files that are read side by side: a large segment is cut by its offset index.

An index entry is eight bytes: the last offset of a batch relative to the segment's base offset, and the position of
that batch in the ``.log`` file (Kafka's ``OffsetIndex``). An entry is used only where a whole batch with a true CRC
begins, for an index may be wrong.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from audit.columns import Rows, SegmentSource
from audit.discovery import TopicFiles
from audit.manifest import Manifest, PartitionEntry, SegmentEntry
from audit.order_field import OrderField
from audit.segment_scan import scan
from protocol.batch_layout import HEADER_BYTES, LENGTH, LENGTH_PREFIX_BYTES, MAGIC, MAGIC_AT
from protocol.records import RecordBatch

_ENTRY = struct.Struct(">ii")


SPLIT_BYTES = 64 * 1024 * 1024


class SegmentPart(NamedTuple):
    """The batches of a segment file below ``directory`` that begin in ``[begin, end)``; ``end`` None is the file's."""

    directory: str
    source: SegmentSource
    begin: int
    end: int | None


class Wanted:
    """The values that filters leave of columns: a set of them, or a range."""

    def __init__(self) -> None:
        self._values: dict[str, set[Any]] = {}
        self._lowest: dict[str, Any] = {}
        self._highest: dict[str, Any] = {}

    def keep(self, column: str, values: set[Any]) -> None:
        self._values[column] = self._values.get(column, values) & values

    def keep_from(self, column: str, lowest: Any) -> None:
        self._lowest[column] = max(self._lowest.get(column, lowest), lowest)

    def keep_until(self, column: str, highest: Any) -> None:
        self._highest[column] = min(self._highest.get(column, highest), highest)

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


EVERYTHING = Wanted()


def segment_parts(
    topics: Iterable[TopicFiles], split_bytes: int = SPLIT_BYTES, wanted: Wanted = EVERYTHING
) -> Iterator[SegmentPart]:
    """The parts to read of these topics' segments. Looks at no file but large ones and their indexes."""
    for topic in topics:
        if not wanted.includes("topic", topic.manifest.topic):
            continue
        # The other partitions and segments stay here: an executor needs the topic's counts and this history.
        alone = _narrowed(topic.manifest)
        for partition in topic.manifest.partitions:
            if not wanted.includes("partition", partition.partition):
                continue
            entry = PartitionEntry(
                partition.partition, partition.log_start_offset, partition.high_watermark, [], partition.layouts
            )
            for segment, end_offset in _with_ends(partition.segments):
                if wanted.overlaps("offset", segment.base_offset, end_offset):
                    source = SegmentSource(alone, entry, f"{alone.topic}-{entry.partition}/{segment.name}")
                    bounds = _bounds(os.path.join(topic.directory, source.segment), segment.base_offset, split_bytes)
                    for begin, end in zip(bounds, [*bounds[1:], None], strict=True):
                        yield SegmentPart(topic.directory, source, begin, end)


def read_part(part: SegmentPart, order_by: OrderField | None = None) -> Iterator[Rows]:
    """The rows of a part, a few megabytes at a time. A file that is missing has none."""
    path = os.path.join(part.directory, part.source.segment)
    if not os.path.exists(path):
        return  # the check "segment files" names every file of the manifest that is missing
    with open(path, "rb") as file:
        for run in scan(file, os.fstat(file.fileno()).st_size, part.begin, part.end):
            yield Rows(part.source, run, order_by)


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


def _bounds(path: str, base_offset: int, split_bytes: int) -> list[int]:
    """Where parts of about ``split_bytes`` of a segment begin. There is one part where no index lies beside it."""
    bounds = [0]
    try:
        size = os.path.getsize(path)
        if size > split_bytes:
            with open(path.removesuffix(".log") + ".index", "rb") as index, open(path, "rb") as log:
                for relative, position in _ENTRY.iter_unpack(_whole_entries(index.read())):
                    far = bounds[-1] + split_bytes <= position <= size - split_bytes // 2
                    if far and _begins_batch(log, position, base_offset + relative):
                        bounds.append(position)
    except FileNotFoundError:
        pass
    return bounds


def _whole_entries(data: bytes) -> bytes:
    return data[: len(data) // _ENTRY.size * _ENTRY.size]


def _begins_batch(log: BinaryIO, position: int, offset: int) -> bool:
    """Whether a batch with a true CRC begins at ``position`` that does not begin behind ``offset``."""
    log.seek(position)
    prefix = log.read(LENGTH_PREFIX_BYTES)
    if len(prefix) < LENGTH_PREFIX_BYTES:
        return False
    first, length = LENGTH.unpack(prefix)
    if first > offset or length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
        return False
    batch = prefix + log.read(length)
    return len(batch) == LENGTH_PREFIX_BYTES + length and batch[MAGIC_AT] == MAGIC and RecordBatch(batch).verify_crc()
