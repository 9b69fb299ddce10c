"""Checks without Spark: whether the files exist, and whether the logs begin and end as in the manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from anabranch.audit.discovery import TopicFiles
from anabranch.audit.manifest import REPLICAS_DIRECTORY, PartitionEntry, SegmentEntry
from anabranch.audit.report import Violation
from anabranch.protocol.plurals import counted


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """The contents of one partition's files. Offsets are None if no batch can be read.

    ``placed``, ``closed`` and ``ordered`` count the records whose partition, layout, or order value can be checked.
    ``by_clients`` counts the records of clients in topics that are not internal, ``placeable`` those with a key.
    """

    batches: int = 0
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    bytes: int = 0
    placed: int = 0
    placeable: int = 0
    closed: int = 0
    by_clients: int = 0
    ordered: int = 0
    transactional: int = 0
    control: int = 0
    sequenced: int = 0
    unsequenced: int = 0


_UNFINISHED = ".part"
"""The suffix of a file that an export has not copied completely."""
_OF_A_LOG = re.compile(
    r"\d{20}\.(log|index|timeindex|txnindex|snapshot|producers)(\.(cleaned|swap|deleted))?"
    r"|leader-epoch-checkpoint|partition-count-checkpoint|partition\.metadata"
    r"|quorum-state|\d{20}-\d{10}\.checkpoint"  # of Kafka's controllers
)

EMPTY = PartitionSummary()


def wrong_files(topic: TopicFiles) -> Iterator[Violation]:
    """Files of the manifest that are missing or have another size, files not in the manifest, and foreign files.

    Segment files from the high watermark on belong to an export that has not ended, so they are no violation.

    Promise: an export holds the files that its manifest names, byte by byte, and no others. docs/files.md, "An export".
    """
    for partition in topic.manifest.partitions:
        folder = f"{topic.manifest.topic}-{partition.partition}"
        for segment, name, size in _named_files(partition):
            try:
                found = os.path.getsize(os.path.join(topic.directory, folder, name))
            except FileNotFoundError:
                yield _of_file(topic, partition, segment.base_offset, name, "the file is missing")
                continue
            except OSError as error:
                message = f"the file cannot be read: {error.strerror}"
                yield _of_file(topic, partition, segment.base_offset, name, message)
                continue
            if found != size:
                message = f"the file has {counted(found, 'byte')}, the manifest says {size}"
                yield _of_file(topic, partition, segment.base_offset, name, message)
        path = os.path.join(topic.directory, folder)
        known = {name for _, name, _ in _named_files(partition)}
        try:
            present = sorted(os.listdir(path)) if os.path.isdir(path) else []
        except OSError as error:
            yield _of_file(topic, partition, None, "", f"the directory cannot be read: {error.strerror}")
            continue
        for extra in present:
            if not _OF_A_LOG.fullmatch(extra.removesuffix(_UNFINISHED)):
                yield _of_file(topic, partition, None, extra, "not a file of a log; it was not read")
            elif extra.endswith(".log") and extra not in known and not _is_later(extra, partition.high_watermark):
                yield _of_file(topic, partition, None, extra, "not in the manifest")


def changed_files(topic: TopicFiles, read: Mapping[str, tuple[int, int]]) -> Iterator[Violation]:
    """Files with the exported size but another CRC32C. ``read``: size and CRC32C of each read file, by path."""
    for partition in topic.manifest.partitions:
        for segment in partition.segments:
            of_segment = [(segment.name, segment.size_bytes, segment.crc32c)]
            for name, size, crc in of_segment + [(x.name, x.size_bytes, x.crc32c) for x in segment.files]:
                violation = _of_file(topic, partition, segment.base_offset, name, "")
                found = read.get(violation.segment or "")
                if crc >= 0 and found is not None and found[0] == size and found[1] != crc:
                    message = f"the file's CRC32C is {found[1]:#010x}, the manifest says {crc:#010x}"
                    yield _of_file(topic, partition, segment.base_offset, name, message)


def _named_files(partition: PartitionEntry) -> Iterator[tuple[SegmentEntry, str, int]]:
    for segment in partition.segments:
        yield segment, segment.name, segment.size_bytes
        for file in segment.files:
            yield segment, file.name, file.size_bytes


def _of_file(topic: TopicFiles, partition: PartitionEntry, offset: int | None, name: str, message: str) -> Violation:
    below = "" if topic.broker is None else f"{REPLICAS_DIRECTORY}/{topic.broker}/"
    at = f"{below}{topic.manifest.topic}-{partition.partition}/{name}"
    return Violation(topic.manifest.topic, partition.partition, offset, at, None, message)


def _is_later(name: str, high_watermark: int) -> bool:
    base = name.removesuffix(".log")
    return base.isdecimal() and 0 <= high_watermark <= int(base)


def wrong_log_ends(topic: TopicFiles, summaries: Mapping[int, PartitionSummary]) -> Iterator[Violation]:
    """Logs that begin above their log start offset, or do not end at their high watermark.

    Promise: a log holds every record from its log start offset to its high watermark. Kafka, "Replication"; KIP-107.
    """
    for partition in topic.manifest.partitions:
        summary = summaries.get(partition.partition, EMPTY)
        for message, offset in end_faults(partition, summary, topic.manifest.is_compacted):
            yield Violation(topic.manifest.topic, partition.partition, offset, None, None, message)


def wrong_leader_epochs(
    topic: TopicFiles, epochs: Iterable[tuple[PartitionEntry, Mapping[int, tuple[int, int]]]]
) -> Iterator[Violation]:
    """Records with another leader epoch than the partition's history of epochs has for their offsets (KIP-101).

    ``epochs`` has, for each partition, the first and last offset of each epoch of its batches. Without a history there
    are no violations.
    """
    for partition, found in epochs:
        starts = {line.leader_epoch: line.start_offset for line in partition.leader_epochs}
        ordered = sorted(starts)
        for epoch, (first, last) in sorted(found.items()):
            if not starts or epoch < 0:
                continue
            later = [starts[x] for x in ordered if x > epoch]
            message = None
            if epoch not in starts:
                message = f"the history of leader epochs has no epoch {epoch}"
            elif first < starts[epoch]:
                message = (
                    f"leader epoch {epoch} begins at offset {starts[epoch]} in the history of leader epochs, and has "
                    f"records from offset {first} on"
                )
            elif later and last >= later[0]:
                message = (
                    f"leader epoch {epoch} ends at offset {later[0] - 1} in the history of leader epochs, and has "
                    f"records up to offset {last}"
                )
            if message is not None:
                yield Violation(topic.manifest.topic, partition.partition, first, None, None, message)


def end_faults(partition: PartitionEntry, summary: PartitionSummary, compacted: bool) -> Iterator[tuple[str, int]]:
    start, end = partition.log_start_offset, partition.high_watermark
    first, last = summary.first_offset, summary.last_offset
    if first is None or last is None:
        if 0 <= start < end:
            yield f"no batch can be read, but the log start offset is {start} and the high watermark {end}", start
        return
    if start >= 0 and first > start and not compacted:
        yield f"the log start offset is {start}, but the first batch begins at offset {first}", start
    if end >= 0 and last + 1 < end:
        yield f"the high watermark is {end}, the last batch ends at offset {last}", end - 1
    if end >= 0 and last + 1 > end:
        yield f"the last batch ends at offset {last}, beyond the high watermark {end}", last
