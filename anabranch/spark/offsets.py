"""Offsets of a stream in Spark's checkpoint: JSON that identifies the cluster, topics and partitions.

    {"version": 1, "cluster_id": "...", "topics": {"events": {
        "topic_id": "...", "incarnation": 41, "layout_version": 3,
        "partitions": {"0": {"offset": 100, "leader_epoch": 2, "incarnation": 44}}}}}

``offset`` is the next one to read. A micro-batch begins at the end of the previous one, unless ``begin`` is given: in
the first micro-batch, in a new partition, and after lost records. Spark does not keep the initial offsets, and
requests them again after a restart. ``initial`` marks the initial offsets; ``begin`` then applies. Spark compares
offsets as text, so equal offsets are encoded equally.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION

VERSION: Final = 1


class CheckpointError(Exception):
    """The checkpoint belongs to other topics than the query, or this release cannot read it."""


class Position(NamedTuple):
    """The next position of a partition."""

    offset: int
    leader_epoch: int = NO_EPOCH
    """The partition's leader epoch when the micro-batch was planned."""
    incarnation: int = NO_INCARNATION
    begin: int = -1
    """The offset at which the micro-batch begins; -1: at the end of the previous micro-batch."""


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """The positions in one topic, by partition."""

    topic_id: str
    incarnation: int
    """Distinguishes the topic from another one of the same name; -1 when the cluster does not provide it."""
    layout_version: int
    partitions: Mapping[int, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offsets:
    """One offset of the stream: the end of a micro-batch and the start of the next one."""

    cluster_id: str
    topics: Mapping[str, TopicPositions]
    is_initial: bool = False

    def encode(self) -> dict[str, Any]:
        """The offsets as JSON values, in a fixed order."""
        return {
            "version": VERSION,
            "cluster_id": self.cluster_id,
            **({"initial": True} if self.is_initial else {}),
            "topics": {name: _encode_topic(topic) for name, topic in sorted(self.topics.items())},
        }

    @classmethod
    def decode(cls, found: Mapping[str, Any]) -> Offsets:
        """The offsets from the JSON values of a checkpoint. Raises ``CheckpointError``."""
        version = found.get("version")
        if version != VERSION:
            raise CheckpointError(
                f"the checkpoint has offsets of version {version!r}, this release reads version {VERSION}: it is of "
                f"another source or of a newer release"
            )
        try:
            topics = {str(name): _decode_topic(topic) for name, topic in found["topics"].items()}
            return cls(str(found["cluster_id"]), topics, found.get("initial", False) is True)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint's offsets are malformed: {error!r} in {found!r}") from None

    def position(self, topic: str, partition: int) -> Position | None:
        known = self.topics.get(topic)
        return known.partitions.get(partition) if known is not None else None


class Range(NamedTuple):
    """Records of one partition in one micro-batch: offsets from ``start`` up to ``end``, exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    leader_epoch: int

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """The ranges of a micro-batch. They depend only on the checkpoint: a repetition reads the same records."""
    found = []
    for name, topic in sorted(end.topics.items()):
        for p, position in sorted(topic.partitions.items()):
            before = start.position(name, p)
            begin = position.begin if position.begin >= 0 else before.offset if before is not None else position.offset
            if begin < position.offset:
                found.append(Range(name, p, begin, position.offset, position.leader_epoch))
    return found


def split(found: list[Range], wanted: int) -> list[Range]:
    """If there are enough records, split the ranges into at least ``wanted`` pieces of about the same size."""
    total = sum(one.size for one in found)
    if len(found) >= wanted or total == 0:
        return found
    pieces = []
    for one in found:
        count = min(one.size, max(1, -(-one.size * wanted // total)))
        cuts = [one.start + one.size * at // count for at in range(count + 1)]
        pieces += [one._replace(start=start, end=end) for start, end in itertools.pairwise(cuts)]
    return pieces


def _encode_topic(topic: TopicPositions) -> dict[str, Any]:
    return {
        "topic_id": topic.topic_id,
        "incarnation": topic.incarnation,
        "layout_version": topic.layout_version,
        "partitions": {
            str(p): {
                "offset": position.offset,
                "leader_epoch": position.leader_epoch,
                "incarnation": position.incarnation,
                **({"begin": position.begin} if position.begin >= 0 else {}),
            }
            for p, position in sorted(topic.partitions.items())
        },
    }


def _decode_topic(found: Mapping[str, Any]) -> TopicPositions:
    partitions = {
        int(p): Position(
            int(position["offset"]),
            int(position["leader_epoch"]),
            int(position["incarnation"]),
            int(position.get("begin", -1)),
        )
        for p, position in found["partitions"].items()
    }
    return TopicPositions(str(found["topic_id"]), int(found["incarnation"]), int(found["layout_version"]), partitions)
