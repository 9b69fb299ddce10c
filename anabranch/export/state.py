"""The state of an export for each replica, and the rules by which a later export continues an earlier one. Pure.

An export only grows. Records that retention or compaction removes from a broker stay exported. A later export begins at
the first offset after the exported ones. Offsets that a broker removed before they were exported are recorded as
missing. An export cannot continue a log that was truncated below the exported offset (by an unclean election):
``ExportConflictError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from anabranch.audit.manifest import (
    MANIFEST_NAME,
    PARTIAL_NAME,
    REPLICAS_DIRECTORY,
    CopyEntry,
    EpochStart,
    LayoutLine,
    Manifest,
    OffsetRange,
    PartitionEntry,
    ReplicaEntry,
    SegmentEntry,
)
from anabranch.broker.log.paths import LEADER_EPOCH_CHECKPOINT, PARTITION_COUNT_CHECKPOINT, PARTITION_METADATA
from anabranch.protocol.plurals import counted
from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION, NO_LEADER, NO_OFFSET

CHECKPOINTS = (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, PARTITION_COUNT_CHECKPOINT)
"""Files besides the segments. Each export replaces them by complete copies. The manifest has their content, too."""
UNFINISHED_SUFFIX = ".part"


class ExportConflictError(Exception):
    """The existing export and the new one do not belong together."""


class CopyKey(NamedTuple):
    """One copy of a partition: from its leaders (``broker`` None), or from one broker's replica."""

    partition: int
    broker: int | None

    def directory(self, topic: str) -> str:
        """The directory of the copy's files, below the export."""
        name = f"{topic}-{self.partition}"
        return name if self.broker is None else f"{REPLICAS_DIRECTORY}/{self.broker}/{name}"


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """The offsets that a replica must have now, and its leader epochs; no epochs if they are not known."""

    log_start_offset: int
    high_watermark: int
    leader_epochs: tuple[EpochStart, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """The exported part of one replica. The last complete export has the first ``published`` segments.

    ``is_new``: no complete export has this copy.
    """

    log_start_offset: int
    high_watermark: int
    segments: tuple[SegmentEntry, ...] = ()
    leader_epochs: tuple[EpochStart, ...] = ()
    missing: tuple[OffsetRange, ...] = ()
    end_offset: int = NO_OFFSET
    """The offset at which the export continues."""
    published: int = 0
    is_new: bool = True


def empty_copy(bounds: ReplicaBounds) -> Copy:
    """The copy of a replica that is not exported yet."""
    return Copy(bounds.log_start_offset, bounds.log_start_offset, end_offset=bounds.log_start_offset)


def copies_of(manifest: Manifest) -> dict[CopyKey, Copy]:
    """The copies in a manifest, all of them published."""
    found = {}
    for partition in manifest.partitions:
        found[CopyKey(partition.partition, None)] = _copy(partition)
        for replica in partition.replicas:
            found[CopyKey(partition.partition, replica.broker)] = _copy(replica)
    return found


def _copy(entry: CopyEntry) -> Copy:
    end = entry.segments[-1].end_offset if entry.segments else entry.log_start_offset
    return Copy(
        entry.log_start_offset,
        entry.high_watermark,
        tuple(entry.segments),
        tuple(entry.leader_epochs),
        tuple(entry.missing),
        max([end, *(gap.end_offset for gap in entry.missing)]),
        len(entry.segments),
        is_new=False,
    )


def continued(copy: Copy, bounds: ReplicaBounds, what: str) -> Copy:
    """The copy with the replica's present bounds and epochs, ready for more segments.

    Raises ExportConflictError, which names ``what``, when the replica's history differs from the exported one.
    """
    if bounds.high_watermark < copy.end_offset:
        raise ExportConflictError(
            f"{what}: exported up to offset {copy.end_offset}, but its high watermark is {bounds.high_watermark}: "
            "the log was truncated, perhaps by an unclean election"
        )
    last = copy.end_offset - 1
    exported, present = _epoch_at(copy.leader_epochs, last), _epoch_at(bounds.leader_epochs, last)
    if None not in (exported, present) and exported != present:
        raise ExportConflictError(
            f"{what}: offset {last} was exported in leader epoch {exported} and is now of leader epoch {present}: "
            "the log was truncated and written again, perhaps after an unclean election"
        )
    newer = [
        epoch
        for epoch in bounds.leader_epochs
        if epoch.start_offset < bounds.high_watermark and epoch.leader_epoch > _newest(copy.leader_epochs)
    ]
    return replace(copy, high_watermark=bounds.high_watermark, leader_epochs=(*copy.leader_epochs, *newer))


def _newest(epochs: Sequence[EpochStart]) -> int:
    return epochs[-1].leader_epoch if epochs else NO_EPOCH


def _epoch_at(epochs: Sequence[EpochStart], offset: int) -> int | None:
    found = [epoch.leader_epoch for epoch in epochs if epoch.start_offset <= offset]
    return found[-1] if found else None


def skipped_to(copy: Copy, offset: int) -> Copy:
    """The copy of a replica that has no offsets below ``offset`` any more.

    A copy that is in no complete export begins again at ``offset``. Any other copy records the skipped offsets as
    missing.
    """
    if offset <= copy.end_offset:
        return copy
    if copy.is_new:
        return replace(copy, log_start_offset=offset, segments=(), end_offset=offset)
    return replace(copy, missing=(*copy.missing, OffsetRange(copy.end_offset, offset)), end_offset=offset)


def grown(copy: Copy, segment: SegmentEntry | None, end_offset: int) -> Copy:
    """The copy with one more segment. Without ``segment``, the offsets up to ``end_offset`` have no records."""
    segments = copy.segments if segment is None else (*copy.segments, segment)
    return replace(copy, segments=segments, end_offset=max(copy.end_offset, end_offset))


# ---------------------------------------------------------------- manifests


@dataclass(frozen=True, slots=True)
class Head:
    """The identity of the exported topic, and its present state."""

    topic: str
    topic_id: str
    cluster_id: str
    cleanup_policy: str
    incarnations: Mapping[int, int]
    """The known incarnations, by partition."""


def check_belongs(manifest: Manifest, head: Head, where: str) -> None:
    """Raise ExportConflictError when ``where`` has the export of another topic or an older version."""
    if manifest.version == 1:
        raise ExportConflictError(f"{where} was exported by an earlier version, and nothing can be added to it")
    if manifest.topic != head.topic:
        raise ExportConflictError(f"{where} holds an export of topic {manifest.topic}, not of {head.topic}")
    clusters, ids = (manifest.cluster_id, head.cluster_id), (manifest.topic_id, head.topic_id)
    for what, (exported, present), differ in (
        ("cluster", clusters, all(clusters) and clusters[0] != clusters[1]),
        ("topic id", ids, _is_another_topic(manifest, head)),
    ):
        if differ:
            raise ExportConflictError(
                f"{where} holds an export of topic {manifest.topic} of {what} {exported}, "
                f"but the topic to export is of {what} {present}"
            )


def _is_another_topic(manifest: Manifest, head: Head) -> bool:
    """Whether the topic of that name was deleted and created again.

    A changed topic id does not prove this, because the end of a shrink changes the topic id, too. A shrink does not
    change the incarnation of partition 0.
    """
    pairs = [
        (entry.incarnation, head.incarnations.get(entry.partition, NO_INCARNATION)) for entry in manifest.partitions
    ]
    known = [(before, now) for before, now in pairs if before >= 0 and now >= 0]
    if any(before == now for before, now in known):
        return False
    return bool(manifest.topic_id) and bool(head.topic_id) and manifest.topic_id != head.topic_id


def wrong_files(manifest: Manifest, sizes: Mapping[str, int]) -> list[str]:
    """Files of the manifest that are missing or have another size, each with both sizes."""
    found = []
    for key, copy in copies_of(manifest).items():
        directory = key.directory(manifest.topic)
        for segment in copy.segments:
            for name, size in files_of(segment):
                present = sizes.get(f"{directory}/{name}")
                if present is None:
                    found.append(f"{directory}/{name} is missing")
                elif present != size:
                    found.append(f"{directory}/{name} has {counted(present, 'byte')}, {size} were exported")
    return found


def files_of(segment: SegmentEntry) -> list[tuple[str, int]]:
    """A segment's files with their sizes."""
    return [(segment.name, segment.size_bytes), *((file.name, file.size_bytes) for file in segment.files)]


def resumed(published: Manifest | None, partial: Manifest | None, sizes: Mapping[str, int]) -> dict[CopyKey, Copy]:
    """The copies to continue: those of an interrupted export, or else those of the last complete export.

    A copy of an interrupted export has the segments before the first incomplete file. ``published`` is None before the
    first complete export. A ``partial`` of another generation is ignored.
    """
    base = copies_of(published) if published else {}
    if partial is None or partial.generation != (published.generation if published else 0) + 1:
        return base
    found = dict(base)
    for key, copy in copies_of(partial).items():
        before = base.get(key)
        kept = list(before.segments if before else ())
        directory = key.directory(partial.topic)
        if copy.segments[: len(kept)] != tuple(kept):
            continue
        for segment in copy.segments[len(kept) :]:
            if any(sizes.get(f"{directory}/{name}") != size for name, size in files_of(segment)):
                break
            kept.append(segment)
        whole = len(kept) == len(copy.segments)
        found[key] = replace(
            copy,
            segments=tuple(kept),
            end_offset=copy.end_offset if whole else kept[-1].end_offset if kept else copy.log_start_offset,
            published=before.published if before else 0,
            is_new=before is None,
        )
    return found


def leftovers(copies: Mapping[CopyKey, Copy], topic: str, paths: Iterable[str]) -> list[str]:
    """The files that an interrupted export left and no manifest names.

    A segment's file is returned only if it begins at or after the end of the last complete export. The audit reports
    other unnamed files.
    """
    kept = {key.directory(topic): copy for key, copy in copies.items()}
    named = {f"{d}/{name}" for d, copy in kept.items() for segment in copy.segments for name, _ in files_of(segment)}
    found = []
    for path in paths:
        directory, _, name = path.rpartition("/")
        whole = name.removesuffix(UNFINISHED_SUFFIX)
        if directory not in kept:
            is_left = not directory and name != whole and whole in (MANIFEST_NAME, PARTIAL_NAME)
        elif whole in CHECKPOINTS:
            is_left = name != whole
        else:
            base = whole.partition(".")[0]
            is_left = path not in named and len(base) == 20 and base.isdecimal()
            if is_left and name == whole:
                published = kept[directory].segments[: kept[directory].published]
                is_left = not published or int(base) >= published[-1].end_offset
        if is_left:
            found.append(path)
    return found


def build_manifest(
    head: Head,
    copies: Mapping[CopyKey, Copy],
    layouts: Mapping[int, Sequence[LayoutLine]],
    leaders: Mapping[int, int],
    previous: Manifest | None,
) -> Manifest:
    """The manifest of these copies. Partitions that the topic no longer has are unchanged."""
    known = {entry.partition: entry for entry in previous.partitions} if previous else {}
    partitions = [
        _partition_entry(key.partition, copies, layouts, leaders, head.incarnations, known.get(key.partition))
        for key in sorted(key for key in copies if key.broker is None)
    ]
    newest = max((layout for p in partitions for layout in p.layouts), key=lambda x: x.layout_version, default=None)
    policy = head.cleanup_policy
    if previous is not None and previous.is_compacted and "compact" not in policy.split(","):
        policy += ",compact"  # the exported records have gaps
    return Manifest(
        topic=head.topic,
        cleanup_policy=policy,
        initial_partition_count=newest.initial_partition_count if newest else len(partitions) or -1,
        undeleted_partition_count=newest.undeleted_partition_count if newest else len(partitions) or -1,
        partitions=partitions,
        layout_version=newest.layout_version if newest else 0,
        cluster_id=head.cluster_id,
        topic_id=(previous.topic_id if previous else "") or head.topic_id,
        generation=(previous.generation if previous else 0) + 1,
    )


def _partition_entry(
    partition: int,
    copies: Mapping[CopyKey, Copy],
    layouts: Mapping[int, Sequence[LayoutLine]],
    leaders: Mapping[int, int],
    incarnations: Mapping[int, int],
    known: PartitionEntry | None,
) -> PartitionEntry:
    copy = copies[CopyKey(partition, None)]
    replicas = [
        ReplicaEntry(
            key.broker,
            other.log_start_offset,
            other.high_watermark,
            list(other.segments),
            list(other.leader_epochs),
            list(other.missing),
        )
        for key, other in sorted(copies.items(), key=lambda item: (item[0].broker is not None, item[0].broker))
        if key.partition == partition and key.broker is not None
    ]
    return PartitionEntry(
        partition,
        copy.log_start_offset,
        copy.high_watermark,
        list(copy.segments),
        list(layouts.get(partition, known.layouts if known else [])),
        list(copy.leader_epochs),
        list(copy.missing),
        leaders.get(partition, known.leader if known else NO_LEADER),
        replicas,
        incarnations.get(partition, known.incarnation if known else NO_INCARNATION),
    )


def differs(manifest: Manifest, previous: Manifest | None) -> bool:
    """Whether a manifest differs from the previous one, apart from its generation."""
    return previous is None or msgspec.structs.replace(manifest, generation=previous.generation) != previous
