"""Offsets of a stream in Spark's checkpoint: JSON that identifies the cluster, topics and partitions.

    {"version": 1, "cluster_id": "...", "topics": {"events": {
        "topic_id": "...", "incarnation": 41, "layout_version": 3,
        "partitions": {"0": {"offset": 100, "leader_epoch": 2, "incarnation": 44}}}}}

``begin`` is there only if it is not -1. Spark does not keep the initial offsets, and requests them again after a
restart. ``initial`` marks the initial offsets; ``begin`` then applies. Spark compares offsets as text, so equal offsets
are encoded equally.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from anabranch.protocol.stream_offsets import CheckpointError, Offsets, StreamPosition, TopicPositions, decoding

VERSION: Final = 1


def encode(offsets: Offsets) -> dict[str, Any]:
    """The offsets as JSON values, in a fixed order."""
    return {
        "version": VERSION,
        "cluster_id": offsets.cluster_id,
        **({"initial": True} if offsets.is_initial else {}),
        "topics": {name: _encode_topic(topic) for name, topic in sorted(offsets.topics.items())},
    }


def decode(found: Mapping[str, Any]) -> Offsets:
    """The offsets from the JSON values of a checkpoint. Raises ``CheckpointError``."""
    version = found.get("version")
    if version != VERSION:
        raise CheckpointError(
            f"the checkpoint has offsets of version {version!r}, this release reads version {VERSION}: it is of "
            f"another source or of a newer release"
        )
    with decoding(found):
        topics = {str(name): _decode_topic(topic) for name, topic in found["topics"].items()}
        return Offsets(str(found["cluster_id"]), topics, found.get("initial", False) is True)


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
            begin = position.begins(start.position(name, p))
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
        int(p): StreamPosition(
            int(position["offset"]),
            int(position["leader_epoch"]),
            int(position["incarnation"]),
            int(position.get("begin", -1)),
        )
        for p, position in found["partitions"].items()
    }
    return TopicPositions(str(found["topic_id"]), int(found["incarnation"]), int(found["layout_version"]), partitions)
