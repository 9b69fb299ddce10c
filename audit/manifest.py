"""``manifest.json`` of an exported directory: what the files should hold, so that the audit can say what is missing.

An export is ``DIR/<topic>-<partition>/<20-digit base offset>.log`` plus ``DIR/manifest.json``. The export command fills
a ``Manifest`` and writes ``encode()``; the audit reads it with ``decode``. For a directory without one, such as a
broker's own log directory, ``audit.discovery`` makes up what can be known from the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1


class ManifestError(ValueError):
    """A manifest or checkpoint file that cannot be read; the message names the file and the field."""


class Layout(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=False):
    """The layout of one partition from ``leader_epoch`` on: a line of ``partition-count-checkpoint``."""

    leader_epoch: int
    initial_partition_count: int
    undeleted_partition_count: int
    layout_version: int


class SegmentEntry(msgspec.Struct, frozen=True):
    """One ``.log`` file: its name within the partition's directory, and its size in bytes when it was exported."""

    name: str
    base_offset: int
    size_bytes: int


class PartitionEntry(msgspec.Struct, frozen=True):
    """One partition. Offsets are [log_start_offset, high_watermark); -1 = not known. ``layouts`` ascends by epoch."""

    partition: int
    log_start_offset: int
    high_watermark: int
    segments: list[SegmentEntry]
    layouts: list[Layout] = []


class Manifest(msgspec.Struct, frozen=True):
    """One topic's export.

    ``initial_partition_count`` -1 means nobody knows how keys were placed: placement is not checked then.
    ``cleanup_policy`` is the topic's ``cleanup.policy``; with ``compact`` in it, offsets may have gaps.
    """

    topic: str
    cleanup_policy: str
    initial_partition_count: int
    undeleted_partition_count: int
    partitions: list[PartitionEntry]
    layout_version: int = 0
    version: int = MANIFEST_VERSION

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy.split(",")

    def encode(self) -> bytes:
        """The bytes of ``manifest.json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def decode(cls, data: bytes, path: str = MANIFEST_NAME) -> Manifest:
        """Raises ManifestError for anything but a manifest of a version known here."""
        try:
            manifest = msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise ManifestError(f"{path}: {error}") from None
        if manifest.version != MANIFEST_VERSION:
            raise ManifestError(
                f"{path}: version {manifest.version} is not known, this program reads {MANIFEST_VERSION}"
            )
        known = manifest.initial_partition_count >= 0
        if known and not 1 <= manifest.initial_partition_count <= manifest.undeleted_partition_count:
            raise ManifestError(
                f"{path}: initial partition count {manifest.initial_partition_count} and undeleted partition count "
                f"{manifest.undeleted_partition_count} are no layout"
            )
        return manifest


def decode_layouts(text: str, path: str) -> list[Layout]:
    """A ``partition-count-checkpoint``: ``0``, a count, and that many lines of ``epoch initial undeleted version``."""
    lines = text.split("\n")
    try:
        version, count = int(lines[0]), int(lines[1])
        rows = [Layout(*(int(field) for field in line.split(" "))) for line in lines[2 : 2 + count]]
    except (ValueError, IndexError, TypeError) as error:
        raise ManifestError(f"{path}: {error}") from None
    if version != 0 or len(rows) != count:
        raise ManifestError(f"{path}: version {version} with {len(rows)} of {count} lines")
    return rows


def merge_layouts(replicas: Sequence[Sequence[Layout]]) -> list[Layout]:
    """One partition's history from its replicas' checkpoints, each of which may have missed lines while it was down."""
    merged = sorted({layout for history in replicas for layout in history})
    for earlier, later in pairwise(merged):
        if earlier.leader_epoch == later.leader_epoch:
            raise ManifestError(f"replicas disagree about the layout of leader epoch {later.leader_epoch}")
    return merged


def layouts_until(manifest: Manifest, partition: PartitionEntry, leader_epoch: int) -> list[Layout]:
    """The partition's layouts up to this leader epoch, oldest first: the last is that of its records. Empty: not known.

    Before the first line of the history the topic had the layout it was created with. A topic that was resized and has
    no history says nothing about its records.
    """
    found = [layout for layout in partition.layouts if layout.leader_epoch <= leader_epoch]
    initial = manifest.initial_partition_count
    if initial < 1 or (not partition.layouts and initial != manifest.undeleted_partition_count):
        return found
    return [Layout(-1, initial, initial, 0), *found]
