"""A stream over a growing export: its offsets, and the parts of segments that a micro-batch reads.

An offset in Spark's checkpoint identifies the topic and has the next offset of each partition:

    {"version": 1, "format": "anabranch-segments", "topic": "events", "cluster_id": "...", "topic_id": "...",
     "partitions": {"0": {"offset": 120}, "4": {"offset": 7, "begin": 3}}}

A micro-batch begins at the end of the previous micro-batch. In a new partition, and in a partition that has lost
records, it begins at ``begin``. A micro-batch ends at the high watermarks of one manifest. A file in a manifest is
never written again, so a micro-batch that Spark repeats reads the same records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from anabranch.audit.bounds import PartitionBounds
from anabranch.audit.columns import Rows, SegmentSource
from anabranch.audit.discovery import TopicFiles
from anabranch.audit.manifest import MANIFEST_NAME, Manifest, ManifestError, PartitionEntry
from anabranch.audit.order_field import OrderField
from anabranch.audit.parts import SegmentPart, alone_entry, read_part, without_others
from anabranch.protocol.plurals import counted
from anabranch.protocol.record_arrays import Bools, Ints
from anabranch.protocol.stream_offsets import CheckpointError, Offsets, StreamPosition, TopicPositions, decoding

VERSION: Final = 1
FORMAT: Final = "anabranch-segments"
Lost: TypeAlias = Callable[[str], None]
"""Called with a description of lost records; it raises DataLossError, or warns."""


def encode(offsets: Offsets) -> dict[str, Any]:
    """The offsets of one topic as JSON values. Equal offsets give equal values, because Spark compares the text."""
    ((name, topic),) = offsets.topics.items()
    return {
        "version": VERSION,
        "format": FORMAT,
        "topic": name,
        "cluster_id": offsets.cluster_id,
        "topic_id": topic.topic_id,
        "partitions": {
            str(p): {"offset": at.offset, **({"begin": at.begin} if at.begin >= 0 else {})}
            for p, at in sorted(topic.partitions.items())
        },
    }


def decode(found: Mapping[str, Any]) -> Offsets:
    """The offsets from the JSON values of a checkpoint. Raises CheckpointError."""
    kind = found.get("format"), found.get("version")
    if kind != (FORMAT, VERSION):
        raise CheckpointError(
            f"the checkpoint has offsets of format {kind[0]!r}, version {kind[1]!r}; this release reads "
            f"{FORMAT!r}, version {VERSION}: it is of another source or of a newer release"
        )
    with decoding(found):
        partitions = {
            int(p): StreamPosition(int(at["offset"]), begin=int(at.get("begin", -1)))
            for p, at in found["partitions"].items()
        }
        topic = TopicPositions(str(found["topic_id"]), partitions=partitions)
        return Offsets(str(found["cluster_id"]), {str(found["topic"]): topic})


class SegmentSlice(NamedTuple):
    """The records of one segment in ``part.bounds``. In a compacted topic they may have gaps."""

    part: SegmentPart
    may_have_gaps: bool


def followed(topics: list[TopicFiles], directory: str) -> TopicFiles:
    """The export in ``directory``. Raises ManifestError unless a manifest identifies the topic of the files."""
    if topics[0].inferred or not topics[0].manifest.topic_id:
        raise ManifestError(
            f"{directory}: a stream needs a {MANIFEST_NAME} with a topic id; export the topic with this release into a "
            "new directory"
        )
    return topics[0]


def beginning(manifest: Manifest) -> Offsets:
    """The start of a stream without a checkpoint: the first exported record of each partition."""
    return _at(manifest, {p.partition: StreamPosition(_first_offset(p)) for p in manifest.partitions})


def latest(manifest: Manifest, start: Offsets, lost: Lost) -> Offsets:
    """The end of a micro-batch from ``start``, or ``start`` if there are no new records. Raises CheckpointError."""
    ((name, known),) = start.topics.items()
    identity = {
        "topic": (name, manifest.topic),
        "cluster id": (start.cluster_id, manifest.cluster_id),
        "topic id": (known.topic_id, manifest.topic_id),
    }
    for what, (kept, now) in identity.items():
        if kept != now:
            raise CheckpointError(
                f"the checkpoint is of {what} {kept!r}, and the export is of {what} {now!r}: use another checkpoint "
                f"location"
            )
    positions = dict(known.partitions)
    entries = {partition.partition: partition for partition in manifest.partitions}
    for p in sorted(set(positions) - set(entries)):
        lost(f"{manifest.topic}-{p} was read up to offset {positions[p].offset}, and is not in the export")
    for p, entry in entries.items():
        before, end = known.partitions.get(p), entry.high_watermark
        if before is None:
            positions[p] = StreamPosition(end, begin=_first_offset(entry))
        elif end < before.offset:
            lost(f"{manifest.topic}-{p} was read up to offset {before.offset}, and the export ends at offset {end}")
            positions[p] = StreamPosition(end, begin=end)
        else:
            positions[p] = StreamPosition(end) if end > before.offset else before
    return start if positions == known.partitions else _at(manifest, positions)


def slices(topic: TopicFiles, start: Offsets, end: Offsets, lost: Lost) -> Iterator[SegmentSlice]:
    """The slices of the micro-batch between two offsets. Checks the size of each file."""
    alone = without_others(topic.manifest)
    for entry in topic.manifest.partitions:
        upto, before = (at.position(topic.manifest.topic, entry.partition) for at in (end, start))
        if upto is None or upto == before:
            continue
        at = upto.begins(before)
        place = f"{topic.manifest.topic}-{entry.partition}"
        for segment in sorted(entry.segments, key=lambda x: x.base_offset):
            first, last = max(at, segment.base_offset), min(upto.offset, segment.end_offset)
            if first >= last:
                continue
            _check_hole(topic.manifest, entry, at, first, lost)
            at = last
            name = f"{place}/{segment.name}"
            path = os.path.join(topic.directory, name)
            size = os.path.getsize(path) if os.path.exists(path) else None
            if size != segment.size_bytes:
                now = "is missing" if size is None else f"has {counted(size, 'byte')}"
                lost(f"{path} {now}, the export wrote {segment.size_bytes}")
            if size is not None:
                source = SegmentSource(alone, alone_entry(entry), name)
                part = SegmentPart(topic.directory, source, 0, None, PartitionBounds(first, last))
                yield SegmentSlice(part, topic.manifest.is_compacted)
        _check_hole(topic.manifest, entry, at, upto.offset, lost)


def read_slice(one: SegmentSlice, order_by: OrderField | None, lost: Lost) -> Iterator[tuple[Rows, Bools]]:
    """Yield rows, and a mask that selects the records of the slice. Raises MissingSegmentError."""
    source, (at, end, *_) = one.part.source, one.part.bounds
    for rows in read_part(one.part, order_by):
        for index in np.flatnonzero(~rows.is_record):
            if (error := rows.run.errors[rows.batch[index]]) is not None:
                lost(f"{source.segment}, byte {rows.run.positions[rows.batch[index]]}: {error}")
        keep = rows.within(one.part.bounds)
        assert keep is not None
        keep &= rows.is_record
        at = _check_order(one, rows.offsets[keep[rows.is_record]], at, lost)
        yield rows, keep
    if at < end and not one.may_have_gaps:
        lost(f"{source.segment} ends at offset {at}, the export wrote it up to offset {end}")


def _check_order(one: SegmentSlice, offsets: Ints, at: int, lost: Lost) -> int:
    """Return the next offset after ``offsets``. If the offsets, beginning at ``at``, have a gap, a loss is reported."""
    if not len(offsets):
        return at
    before = np.concatenate([np.array([at - 1]), offsets[:-1]])
    wrong = np.flatnonzero(offsets <= before if one.may_have_gaps else offsets != before + 1)
    if wrong.size:
        index = int(wrong[0])
        lost(f"{one.part.source.segment}: offset {offsets[index]} follows offset {before[index]}")
    return int(offsets[-1]) + 1


def _check_hole(manifest: Manifest, entry: PartitionEntry, begin: int, end: int, lost: Lost) -> None:
    """Report offsets [begin, end), which no segment has, as lost; in a compacted topic only ``missing`` offsets."""
    known = any(begin < hole.end_offset and hole.first_offset < end for hole in entry.missing)
    if begin < end and (known or not manifest.is_compacted):
        lost(f"{manifest.topic}-{entry.partition}: no exported segment has the offsets [{begin}, {end})")


def _first_offset(entry: PartitionEntry) -> int:
    """The first exported offset of a partition."""
    first = min((segment.base_offset for segment in entry.segments), default=entry.high_watermark)
    return max(first, entry.log_start_offset)


def _at(manifest: Manifest, positions: Mapping[int, StreamPosition]) -> Offsets:
    return Offsets(manifest.cluster_id, {manifest.topic: TopicPositions(manifest.topic_id, partitions=positions)})
