"""Export a topic: its segment files from the brokers' log directories, and a manifest of what they should hold."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anabranch.cli.errors import CommandError
from anabranch.segment_copy import SegmentCopy, copy_partition
from audit.manifest import (
    MANIFEST_NAME,
    Layout,
    Manifest,
    ManifestError,
    PartitionEntry,
    SegmentEntry,
    decode_layouts,
    merge_layouts,
)
from client import Admin
from protocol.types import TopicPartition

COPY_ATTEMPTS = 5
LAYOUT_CHECKPOINT = "partition-count-checkpoint"


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written; ``bytes`` counts the ``.log`` files."""

    topic: str
    directory: str
    partitions: int
    segments: int
    bytes: int


async def export_topic(
    admin: Admin, topic: str, destination: Path, log_dirs: Mapping[int, Path] | None = None
) -> ExportReport:
    """Copy every partition of ``topic`` below ``destination`` up to its high watermark.

    The files are read where the brokers say they are, so this runs on the brokers' machine; ``log_dirs`` gives, per
    broker id, where a broker's log directory is seen from here (a mounted volume, say). Raises ``CommandError`` when
    a directory cannot be read or something else is in the way, ``KafkaError`` when a broker refuses.
    """
    if destination.exists() and any(destination.iterdir()):
        raise CommandError(f"{destination} is not empty; export into a new directory")
    destination.mkdir(parents=True, exist_ok=True)
    description = (await admin.describe_topics([topic]))[topic]
    leaders = {partition.partition: partition.leader for partition in description.partitions}
    without = sorted(partition for partition, leader in leaders.items() if leader < 0)
    if without:
        raise CommandError(f"partition {without[0]} of {topic} has no leader; start its broker and export again")
    replicas = {partition.partition: partition.replicas for partition in description.partitions}
    sources = await _locate(admin, topic, leaders, replicas, log_dirs or {})
    entries = [
        await _export_partition(admin, TopicPartition(topic, partition), sources[partition], destination)
        for partition in sorted(leaders)
    ]
    configs = await admin.describe_configs(topics=[topic])
    layouts = [layout for entry in entries for layout in entry.layouts]
    newest = max(layouts, key=lambda layout: layout.layout_version, default=None)
    manifest = Manifest(
        topic=topic,
        cleanup_policy=configs[topic]["cleanup.policy"].value or "delete",
        initial_partition_count=newest.initial_partition_count if newest else len(entries),
        undeleted_partition_count=newest.undeleted_partition_count if newest else len(entries),
        layout_version=newest.layout_version if newest else 0,
        partitions=entries,
    )
    (destination / MANIFEST_NAME).write_bytes(manifest.encode())
    segments = [segment for entry in entries for segment in entry.segments]
    size = sum(segment.size_bytes for segment in segments)
    return ExportReport(topic, str(destination), len(entries), len(segments), size)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where one partition is: the leader's directory, and those of the other replicas that can be seen from here."""

    leader: Path
    others: tuple[Path, ...]


async def _locate(
    admin: Admin,
    topic: str,
    leaders: Mapping[int, int],
    replicas: Mapping[int, Iterable[int]],
    log_dirs: Mapping[int, Path],
) -> dict[int, _Source]:
    """Each partition's directories. Raises ``CommandError`` when the leader's cannot be read from here."""
    live = {node.id for node in (await admin.describe_cluster()).nodes}
    described = await admin.describe_log_dirs(
        sorted(live & {*leaders.values(), *(r for x in replicas.values() for r in x)})
    )

    def directory(broker: int, tp: TopicPartition) -> Path | None:
        here = [directory for directory in described.get(broker, []) if tp in directory.partitions]
        return log_dirs.get(broker, Path(here[0].path)) / f"{tp.topic}-{tp.partition}" if here else None

    found: dict[int, _Source] = {}
    for partition, leader in leaders.items():
        tp = TopicPartition(topic, partition)
        path = directory(leader, tp)
        if path is None:
            raise CommandError(f"broker {leader} does not say where {topic}-{partition} is; try again in a moment")
        if not os.access(path, os.R_OK | os.X_OK):
            raise CommandError(
                f"cannot read {path} of broker {leader} from here; run this on its machine or name where its log "
                f"directory is seen with --log-dir {leader}=PATH"
            )
        others = [directory(broker, tp) for broker in replicas[partition] if broker != leader]
        found[partition] = _Source(path, tuple(other for other in others if other is not None))
    return found


async def _export_partition(admin: Admin, tp: TopicPartition, source: _Source, destination: Path) -> PartitionEntry:
    """Copy one partition; starts over when retention removes a segment meanwhile."""
    target = destination / f"{tp.topic}-{tp.partition}"
    for _ in range(COPY_ATTEMPTS):
        start = (await admin.list_offsets({tp: "earliest"}))[tp].offset
        high_watermark = (await admin.list_offsets({tp: "latest"}))[tp].offset
        try:
            copies = copy_partition(source.leader, target, start, high_watermark)
            break
        except FileNotFoundError:
            shutil.rmtree(target, ignore_errors=True)
    else:
        raise CommandError(
            f"segments of {tp.topic}-{tp.partition} were removed {COPY_ATTEMPTS} times while being copied"
        )
    return PartitionEntry(
        tp.partition, start, high_watermark, [_entry(copy) for copy in copies], _layouts([target, *source.others])
    )


def _entry(copy: SegmentCopy) -> SegmentEntry:
    return SegmentEntry(copy.name, int(copy.name.removesuffix(".log")), copy.size_bytes)


def _layouts(replicas: Sequence[Path]) -> list[Layout]:
    """The history of one partition's layouts: a replica that was down during a resize misses lines of it."""
    histories = []
    for directory in replicas:
        path = directory / LAYOUT_CHECKPOINT
        if os.access(path, os.R_OK):
            histories.append(decode_layouts(path.read_text(), str(path)))
    try:
        return merge_layouts(histories)
    except ManifestError as error:
        raise CommandError(f"{replicas[0].name}: {error}") from error
