"""``manifest.json`` of an export: the expected contents of the files, so that the audit can report missing ones.

An export is a directory, or a prefix of an object store:

    manifest.json                                   the last complete export, replaced in one step
    <topic>-<partition>/<20-digit offset>.log       copies from the leaders, with indexes
    replicas/<broker>/<topic>-<partition>/...       copies from other replicas (``--replicas all``)
    manifest.json.partial                           the progress of an export that has not ended

A file that a manifest names is never written again. The next export writes new records into files of later offsets, and
replaces the manifest last, so a reader of a growing export sees only complete states. A reader takes the files that the
manifest names. Other ``.log`` files belong to an export in progress when their base offset is at or above the
partition's high watermark.

The export command fills a ``Manifest`` and writes ``encode()``; the audit reads it with ``decode``. For a directory
without a manifest, such as a broker's own log directory, ``audit.discovery`` makes one from the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

MANIFEST_NAME = "manifest.json"
PARTIAL_NAME = "manifest.json.partial"
REPLICAS_DIRECTORY = "replicas"
MANIFEST_VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Version 1 had one export per directory, no replicas and no CRCs; its missing fields get their defaults."""


class ManifestError(ValueError):
    """A manifest or checkpoint file cannot be read; the message names the file and the field."""


class LayoutLine(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=False):
    """The layout of one partition from ``leader_epoch`` on: a line of ``partition-count-checkpoint``."""

    leader_epoch: int
    initial_partition_count: int
    undeleted_partition_count: int
    layout_version: int


class EpochStart(msgspec.Struct, frozen=True, order=True):
    """A line of ``leader-epoch-checkpoint``: the records from ``start_offset`` on have this leader epoch."""

    leader_epoch: int
    start_offset: int


class OffsetRange(msgspec.Struct, frozen=True, order=True):
    """The offsets [first_offset, end_offset)."""

    first_offset: int
    end_offset: int


class FileEntry(msgspec.Struct, frozen=True):
    """A file beside a segment: ``.index``, ``.timeindex``, ``.txnindex``, ``.snapshot``. ``crc32c`` is of all bytes."""

    name: str
    size_bytes: int
    crc32c: int


class SegmentEntry(msgspec.Struct, frozen=True):
    """One ``.log`` file: its name within the partition's directory, and its size in bytes when it was exported.

    It has whole batches with offsets in [base_offset, end_offset). They were copied from the file ``source`` of
    ``broker``, beginning at ``source_position``: an export that continues an earlier one may begin in the middle of a
    broker's segment. ``files`` are its indexes, whose entries are relative to this file. -1 and "" mean not known
    (version 1, or no manifest).
    """

    name: str
    base_offset: int
    size_bytes: int
    end_offset: int = -1
    crc32c: int = -1
    files: list[FileEntry] = []
    broker: int = -1
    source: str = ""
    source_position: int = -1


class ReplicaEntry(msgspec.Struct, frozen=True):
    """The copy of one partition from one broker, in ``replicas/<broker>/<topic>-<partition>/``.

    Fields are as in PartitionEntry. ``high_watermark`` is the end of the offsets that this replica must have. For a
    replica in sync, that is the leader's high watermark, otherwise the replica's own high watermark.
    """

    broker: int
    log_start_offset: int
    high_watermark: int
    segments: list[SegmentEntry]
    leader_epochs: list[EpochStart] = []
    missing: list[OffsetRange] = []


class PartitionEntry(msgspec.Struct, frozen=True):
    """One partition, with the offsets [log_start_offset, high_watermark); -1 = not known. ``layouts`` ascend by epoch.

    ``log_start_offset`` is that of the first export, because exported records stay when the broker removes its copies.
    ``leader_epochs`` is the history of all exported offsets, ascending. ``missing`` has the offsets that the broker
    removed between two exports, so that no export has them. ``leader`` is the broker that led the partition (-1: not
    known, or exported from a stopped broker). ``incarnation`` distinguishes the partition from removed ones of the same
    number (-1: not known). The incarnation of partition 0 identifies the topic, because the topic id changes when a
    shrink ends.
    """

    partition: int
    log_start_offset: int
    high_watermark: int
    segments: list[SegmentEntry]
    layouts: list[LayoutLine] = []
    leader_epochs: list[EpochStart] = []
    missing: list[OffsetRange] = []
    leader: int = -1
    replicas: list[ReplicaEntry] = []
    incarnation: int = -1


CopyEntry: TypeAlias = PartitionEntry | ReplicaEntry


class Manifest(msgspec.Struct, frozen=True):
    """One topic's export.

    ``initial_partition_count`` is -1 when the placement of keys is not known; placement is not checked then.
    ``cleanup_policy`` is the topic's ``cleanup.policy``; with ``compact`` in it, offsets may have gaps. ``cluster_id``
    and ``topic_id`` (Kafka's base64 form, from the first export) are empty when they are not known. ``generation``
    counts the exports into this directory, from 1 on (0: not known). Partitions that the topic no longer has keep their
    exported records.
    """

    topic: str
    cleanup_policy: str
    initial_partition_count: int
    undeleted_partition_count: int
    partitions: list[PartitionEntry]
    layout_version: int = 0
    version: int = MANIFEST_VERSION
    cluster_id: str = ""
    topic_id: str = ""
    generation: int = 0

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy.split(",")

    def encode(self) -> bytes:
        """The bytes of ``manifest.json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def decode(cls, data: bytes, path: str = MANIFEST_NAME) -> Manifest:
        """The manifest in ``data``. Raises ManifestError for anything but a manifest of a known version."""
        try:
            manifest = msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise ManifestError(f"{path}: {error}") from None
        if manifest.version not in READABLE_VERSIONS:
            known_versions = " and ".join(map(str, READABLE_VERSIONS))
            raise ManifestError(
                f"{path}: version {manifest.version} is not known, this release reads versions {known_versions}"
            )
        known = manifest.initial_partition_count >= 0
        if known and not 1 <= manifest.initial_partition_count <= manifest.undeleted_partition_count:
            raise ManifestError(
                f"{path}: initial partition count {manifest.initial_partition_count} is not from 1 to the undeleted "
                f"partition count, {manifest.undeleted_partition_count}"
            )
        return manifest


def decode_layouts(text: str, path: str) -> list[LayoutLine]:
    """Read a ``partition-count-checkpoint``: ``0``, a count, and as many lines ``epoch initial undeleted version``."""
    lines = text.split("\n")
    try:
        version, count = int(lines[0]), int(lines[1])
        rows = [LayoutLine(*(int(field) for field in line.split(" "))) for line in lines[2 : 2 + count]]
    except (ValueError, IndexError, TypeError) as error:
        raise ManifestError(f"{path}: {error}") from None
    if version != 0:
        raise ManifestError(f"{path}: version {version} is not known, this release reads version 0")
    if len(rows) != count:
        raise ManifestError(f"{path}: {len(rows)} lines of layouts, its second line says {count}")
    return rows


def merge_layouts(replicas: Sequence[Sequence[LayoutLine]]) -> list[LayoutLine]:
    """Merge the checkpoints of a partition's replicas into one history. A replica that was down may lack lines."""
    merged = sorted({layout for history in replicas for layout in history})
    for earlier, later in pairwise(merged):
        if earlier.leader_epoch == later.leader_epoch:
            raise ManifestError(f"replicas disagree about the layout of leader epoch {later.leader_epoch}")
    return merged


def layouts_until(manifest: Manifest, partition: PartitionEntry, leader_epoch: int) -> list[LayoutLine]:
    """The partition's layouts up to this leader epoch, oldest first; empty when not known. The last is the epoch's own.

    Before the first line of the history the topic had its initial layout. For a topic that was resized and has no
    history, the layout of its records is not known.
    """
    found = [layout for layout in partition.layouts if layout.leader_epoch <= leader_epoch]
    initial = manifest.initial_partition_count
    if initial < 1 or (not partition.layouts and initial != manifest.undeleted_partition_count):
        return found
    return [LayoutLine(-1, initial, initial, 0), *found]
