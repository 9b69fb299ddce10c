"""The parts of segment files that are read in parallel: a large segment is split by its offset index.

An index entry is eight bytes: the last offset of a batch relative to the segment's base offset, and the position of
that batch in the ``.log`` file (Kafka's ``OffsetIndex``). An index may be wrong, so an entry is used only when a whole
batch with a correct CRC begins there.
"""

from __future__ import annotations

import contextlib
import os
import socket
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from anabranch.audit.bounds import EVERYTHING, PartitionBounds, WantedPartitions
from anabranch.audit.columns import Rows, SegmentSource
from anabranch.audit.discovery import TopicFiles
from anabranch.audit.files import open_file, why
from anabranch.audit.manifest import REPLICAS_DIRECTORY, Manifest, PartitionEntry, SegmentEntry
from anabranch.audit.order_field import OrderField
from anabranch.audit.segment_reader import MAX_DECOMPRESSED_BYTES
from anabranch.audit.segment_scan import scan, unreadable
from anabranch.protocol.batch_layout import HEADER_BYTES, LENGTH, LENGTH_PREFIX_BYTES, MAGIC, MAGIC_AT
from anabranch.protocol.records import RecordBatch

Entries: TypeAlias = npt.NDArray[np.int32]
_ENTRY_BYTES = 8
SPLIT_BYTES = 64 * 1024 * 1024
ALL = WantedPartitions()


class SegmentPart(NamedTuple):
    """The batches of a segment file below ``directory`` that begin in ``[begin, end)``.

    ``end`` None is the end of the file. Batches without records in ``bounds`` are skipped.
    """

    directory: str
    source: SegmentSource
    begin: int
    end: int | None
    bounds: PartitionBounds = EVERYTHING


class MissingSegmentError(FileNotFoundError):
    """A segment file that the driver has found is missing on a worker."""


def segment_parts(
    topics: Iterable[TopicFiles], split_bytes: int = SPLIT_BYTES, wanted: WantedPartitions = ALL
) -> Iterator[SegmentPart]:
    """The parts to read of these topics' segments. Reads the sizes of the files, and the indexes of large ones.

    A missing file has no parts; the check "segment files" reports it.
    """
    for topic in topics:
        below = "" if topic.broker is None else f"{REPLICAS_DIRECTORY}/{topic.broker}/"
        directory = topic.directory.removesuffix(f"/{below}".rstrip("/")) if below else topic.directory
        alone = without_others(topic.manifest)
        for partition in topic.manifest.partitions:
            bounds = wanted.of(topic.manifest.topic, partition.partition)
            if bounds is None:
                continue
            entry = alone_entry(partition)
            for segment, end_offset in _with_ends(partition.segments):
                if segment.base_offset < bounds.end_offset and (end_offset is None or bounds.first_offset < end_offset):
                    name = f"{below}{alone.topic}-{entry.partition}/{segment.name}"
                    source = SegmentSource(alone, entry, name, -1 if topic.broker is None else topic.broker)
                    path = os.path.join(directory, name)
                    for begin, end in _ranges(path, segment.base_offset, split_bytes, bounds):
                        yield SegmentPart(directory, source, begin, end, bounds)


def read_part(
    part: SegmentPart,
    order_by: OrderField | None = None,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    *,
    report_unreadable: bool = False,
) -> Iterator[Rows]:
    """The rows of a part, a few megabytes at a time. Raises MissingSegmentError, and OSError for an unreadable file.

    With ``report_unreadable`` an unreadable file has one row, with an error. A stream must fail instead, because it
    reads a file only once.
    """
    path = os.path.join(part.directory, part.source.segment)
    try:
        file = open_file(path)
    except FileNotFoundError:
        raise MissingSegmentError(
            f"{path} is missing on {socket.gethostname()}, but was there when the query was planned: the directory has "
            f"to be at the same path on the driver and on every worker, and must not lose files while it is read"
        ) from None
    except OSError as error:
        if not report_unreadable:
            raise
        message = f"the file cannot be read: {why(error)}"
        yield Rows(part.source, unreadable(part.begin, message), order_by)
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        for run in scan(file, size, part.begin, part.end, part.bounds, max_decompressed_bytes):
            yield Rows(part.source, run, order_by)


def _with_ends(segments: Sequence[SegmentEntry]) -> Iterator[tuple[SegmentEntry, int | None]]:
    """Each segment with the first offset after its records, which may be unknown for the last segment."""
    for index, segment in enumerate(segments):
        later = segments[index + 1].base_offset if index + 1 < len(segments) else None
        yield segment, segment.end_offset if segment.end_offset >= 0 else later


def without_others(manifest: Manifest) -> Manifest:
    """The part of the manifest that an executor needs: the topic's identity and counts."""
    return msgspec.structs.replace(manifest, partitions=[])


def alone_entry(entry: PartitionEntry) -> PartitionEntry:
    """The part of a partition's entry that an executor needs: its offsets and the history of its layouts."""
    return PartitionEntry(entry.partition, entry.log_start_offset, entry.high_watermark, [], entry.layouts)


def _ranges(path: str, base_offset: int, split_bytes: int, bounds: PartitionBounds) -> Iterator[tuple[int, int | None]]:
    """The ranges of a segment, of about ``split_bytes`` each, that have records in ``bounds``.

    A small file, or a file without a readable index, has one range. A missing file, and a file in a directory that
    cannot be searched, have no range; the check of segment files reports them.
    """
    try:
        size = os.path.getsize(path)
    except OSError:
        return
    cuts: list[int | None] = [0, None]
    if size > split_bytes or bounds != EVERYTHING:
        with (
            contextlib.suppress(OSError),
            open_file(path.removesuffix(".log") + ".index") as index,
            open_file(path) as log,
        ):
            entries = _entries(index)
            begin = _begin(entries, log, base_offset, bounds.first_offset)
            end = _end(entries, log, base_offset, bounds.end_offset)
            cuts = [begin, *_splits(entries, log, begin, size if end is None else end, split_bytes), end]
    for begin_at, end_at in pairwise(cuts):
        assert begin_at is not None
        yield begin_at, end_at


def _entries(index: BinaryIO) -> Entries:
    """The (relative offset, position) entries of an offset index, mapped so that only the used pages are read."""
    count = os.fstat(index.fileno()).st_size // _ENTRY_BYTES
    return np.memmap(index, ">i4", "r", shape=(count, 2)) if count else np.zeros((0, 2), np.int32)


def _begin(entries: Entries, log: BinaryIO, base_offset: int, first: int) -> int:
    """A position at or before all batches with offsets from ``first`` on."""
    for at in range(bisect_right(entries, first - base_offset, key=lambda entry: int(entry[0])) - 1, -1, -1):
        position = int(entries[at][1])
        if (found := _batch_at(log, position)) is not None and found <= first:
            return position
    return 0


def _end(entries: Entries, log: BinaryIO, base_offset: int, end: int) -> int | None:
    """A position after all batches with offsets below ``end``; None when no such position is known."""
    for at in range(bisect_left(entries, end - base_offset, key=lambda entry: int(entry[0])), len(entries)):
        position = int(entries[at][1])
        if (found := _batch_at(log, position)) is not None and found >= end:
            return position
    return None


def _splits(entries: Entries, log: BinaryIO, begin: int, end: int, split_bytes: int) -> Iterator[int]:
    """Positions of batches that are at least ``split_bytes`` apart, and at least ``split_bytes`` after ``begin``."""
    at, last, highest = 0, begin, end - split_bytes // 2
    while (at := bisect_left(entries, last + split_bytes, lo=at, key=lambda entry: int(entry[1]))) < len(entries):
        position = int(entries[at][1])
        if position > highest:
            return
        if position >= last + split_bytes and _batch_at(log, position) is not None:
            yield position
            last = position
        at += 1


def _batch_at(log: BinaryIO, position: int) -> int | None:
    """The base offset of the batch at ``position``; None unless a whole batch with a correct CRC begins there."""
    log.seek(position)
    prefix = log.read(LENGTH_PREFIX_BYTES)
    if len(prefix) < LENGTH_PREFIX_BYTES:
        return None
    first, length = LENGTH.unpack(prefix)
    if length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
        return None
    batch = prefix + log.read(length)
    whole = len(batch) == LENGTH_PREFIX_BYTES + length and batch[MAGIC_AT] == MAGIC and RecordBatch(batch).verify_crc()
    return first if whole else None
