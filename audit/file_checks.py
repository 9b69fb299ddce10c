"""Checks that need no Spark: are the files there, and do the logs begin and end where the manifest says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from audit.discovery import TopicFiles
from audit.manifest import PartitionEntry
from audit.report import Violation


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """What the files of one partition hold; offsets are None without a readable batch.

    ``placed``, ``closed`` and ``ordered`` count records whose partition, layout, or order value can be checked;
    ``placeable`` those with a key, ``by_clients`` those that are no markers, of a topic whose keys are placed.
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


EMPTY = PartitionSummary()


def missing_or_resized_files(topic: TopicFiles) -> Iterator[Violation]:
    """Files of the manifest that are gone or have another size, and ``.log`` files it does not know.

    Files from the high watermark on are what an export that has not ended has copied beyond this manifest.
    """
    name = topic.manifest.topic
    for partition in topic.manifest.partitions:
        folder = f"{name}-{partition.partition}"
        known = {segment.name for segment in partition.segments}
        for segment in partition.segments:
            at = f"{folder}/{segment.name}"
            try:
                size = os.path.getsize(os.path.join(topic.directory, at))
            except FileNotFoundError:
                yield Violation(name, partition.partition, segment.base_offset, at, None, "the file is missing")
                continue
            if size != segment.size_bytes:
                message = f"the file has {size} bytes, {segment.size_bytes} were exported"
                yield Violation(name, partition.partition, segment.base_offset, at, None, message)
        path = os.path.join(topic.directory, folder)
        for extra in sorted(os.listdir(path)) if os.path.isdir(path) else []:
            if extra.endswith(".log") and extra not in known and not _is_later(extra, partition.high_watermark):
                yield Violation(name, partition.partition, None, f"{folder}/{extra}", None, "not in the manifest")


def _is_later(name: str, high_watermark: int) -> bool:
    base = name.removesuffix(".log")
    return base.isdecimal() and 0 <= high_watermark <= int(base)


def wrong_log_ends(topic: TopicFiles, summaries: Mapping[int, PartitionSummary]) -> Iterator[Violation]:
    """Logs that begin behind their log start offset or end before their high watermark; gaps are another check's."""
    for partition in topic.manifest.partitions:
        summary = summaries.get(partition.partition, EMPTY)
        for message, offset in _end_faults(partition, summary, topic.manifest.is_compacted):
            yield Violation(topic.manifest.topic, partition.partition, offset, None, None, message)


def _end_faults(partition: PartitionEntry, summary: PartitionSummary, compacted: bool) -> Iterator[tuple[str, int]]:
    start, end = partition.log_start_offset, partition.high_watermark
    first, last = summary.first_offset, summary.last_offset
    if first is None or last is None:
        if 0 <= start < end:
            yield f"no batch can be read, offsets {start}-{end - 1} were exported", start
        return
    if start >= 0 and first > start and not compacted:
        yield f"the log starts at offset {start}, its first batch at {first}", start
    if end >= 0 and last + 1 < end:
        yield f"the high watermark is {end}, the last batch ends at offset {last}", end - 1
    if end >= 0 and last + 1 > end:
        yield f"the last batch ends at offset {last}, beyond the high watermark {end}", last
