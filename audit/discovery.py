"""Finds the segment files of a directory and their expected contents: by its manifest, or from the files alone.

In a directory without a manifest (a broker's log directory, Anabranch's or Kafka's), the checkpoints next to the
partitions have the log start offsets, the compacted partitions and the layout history. The expected log ends are not
known then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from anabranch.audit.files import read_file, why
from anabranch.audit.manifest import (
    MANIFEST_NAME,
    PARTIAL_NAME,
    REPLICAS_DIRECTORY,
    Manifest,
    ManifestError,
    PartitionEntry,
    SegmentEntry,
    decode_layouts,
)
from anabranch.protocol.topic_names import INTERNAL_TOPICS

_PARTITION_DIRECTORY = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+)")
_SEGMENT_FILE = re.compile(r"(?P<base>\d{20})\.log")
_LAYOUTS = "partition-count-checkpoint"
_LOG_STARTS = "log-start-offset-checkpoint"
_CLEANED = "cleaner-offset-checkpoint"


@dataclass(frozen=True, slots=True)
class TopicFiles:
    """A topic's manifest and the directory of its partitions. ``inferred``: the manifest was made from the files.

    ``broker`` is set when the files are the exported replicas of one broker, not the leaders' (``replica_files``).
    """

    directory: str
    manifest: Manifest
    inferred: bool
    broker: int | None = None


def discover(directory: str | Path) -> list[TopicFiles]:
    """The topics below ``directory``: an export, a log directory, or one partition's own directory.

    Raises OSError for a directory that cannot be listed. Raises ManifestError for a directory without segment files,
    and for a manifest or a checkpoint that cannot be read.
    """
    root = Path(directory).resolve()
    names = sorted(path.name for path in root.iterdir())
    if MANIFEST_NAME in names:
        path = root / MANIFEST_NAME
        return [TopicFiles(str(root), Manifest.decode(_read(path), str(path)), inferred=False)]
    if PARTIAL_NAME in names:
        raise ManifestError(f"{root}: the export is not complete; run the same anabranch export again to continue it")
    if _PARTITION_DIRECTORY.fullmatch(root.name) and any(_SEGMENT_FILE.fullmatch(name) for name in names):
        return _infer(root.parent, [root.name])
    topics = _infer(root, names)
    if not topics:
        raise ManifestError(f"{root}: neither a {MANIFEST_NAME} nor a <topic>-<partition> directory with .log files")
    return topics


def replica_files(topic: TopicFiles) -> list[TopicFiles]:
    """The exported replicas besides the leaders' (``--replicas all``): for each broker a topic with its partitions.

    Counts, policy and layouts are those of ``topic``; offsets, segments and leader epochs are the replica's.
    """
    brokers = sorted({replica.broker for partition in topic.manifest.partitions for replica in partition.replicas})
    return [_of_broker(topic, broker) for broker in brokers]


def _of_broker(topic: TopicFiles, broker: int) -> TopicFiles:
    partitions = [
        PartitionEntry(
            partition.partition,
            replica.log_start_offset,
            replica.high_watermark,
            replica.segments,
            partition.layouts,
            replica.leader_epochs,
            replica.missing,
        )
        for partition in topic.manifest.partitions
        for replica in partition.replicas
        if replica.broker == broker
    ]
    manifest = msgspec.structs.replace(topic.manifest, partitions=partitions)
    directory = Path(topic.directory, REPLICAS_DIRECTORY, str(broker))
    return TopicFiles(str(directory), manifest, topic.inferred, broker)


def _infer(root: Path, names: list[str]) -> list[TopicFiles]:
    log_starts = _read_offsets(root / _LOG_STARTS)
    cleaned = _read_offsets(root / _CLEANED)
    found: dict[str, list[PartitionEntry]] = {}
    for name in names:
        match = _PARTITION_DIRECTORY.fullmatch(name)
        if match is None or not (root / name).is_dir():
            continue
        entry = _infer_partition(root / name, int(match["partition"]), log_starts.get(name, -1))
        if entry is not None:
            found.setdefault(match["topic"], []).append(entry)
    return [
        TopicFiles(str(root), _infer_manifest(topic, partitions, cleaned), inferred=True)
        for topic, partitions in sorted(found.items())
    ]


def _infer_manifest(topic: str, partitions: list[PartitionEntry], cleaned: dict[str, int]) -> Manifest:
    compacted = topic in INTERNAL_TOPICS or any(f"{topic}-{p.partition}" in cleaned for p in partitions)
    latest = max((layout for p in partitions for layout in p.layouts), key=lambda x: x.layout_version, default=None)
    return Manifest(
        topic=topic,
        cleanup_policy="compact" if compacted else "delete",
        initial_partition_count=latest.initial_partition_count if latest else -1,
        undeleted_partition_count=latest.undeleted_partition_count if latest else -1,
        layout_version=latest.layout_version if latest else 0,
        partitions=sorted(partitions, key=lambda p: p.partition),
    )


def _infer_partition(path: Path, partition: int, log_start_offset: int) -> PartitionEntry | None:
    segments = [
        SegmentEntry(file.name, int(match["base"]), file.stat().st_size)
        for file in sorted(path.iterdir())
        if (match := _SEGMENT_FILE.fullmatch(file.name))
    ]
    if not segments:
        return None
    layouts_path = path / _LAYOUTS
    layouts = decode_layouts(_read_text(layouts_path), str(layouts_path)) if layouts_path.exists() else []
    return PartitionEntry(partition, log_start_offset, -1, segments, layouts)


def _read(path: Path) -> bytes:
    """The bytes of a file. Raises ManifestError when it is no regular file or cannot be opened."""
    try:
        return read_file(path)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {why(error)}") from None


def _read_text(path: Path) -> str:
    try:
        return _read(path).decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: {error}") from None


def _read_offsets(path: Path) -> dict[str, int]:
    """The offset of each ``topic-partition`` in a broker's checkpoint; empty when the file is missing or empty."""
    text = _read_text(path) if path.exists() else ""
    if not text:
        return {}
    lines = text.split("\n")
    try:
        rows = [line.split(" ") for line in lines[2 : 2 + int(lines[1])]]
        return {f"{topic}-{partition}": int(offset) for topic, partition, offset in rows}
    except (ValueError, IndexError) as error:
        raise ManifestError(f"{path}: {error}") from None
