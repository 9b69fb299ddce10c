"""The offsets of a Spark stream, and its errors; each source has its own JSON for them in Spark's checkpoint.

``StreamPosition.offset`` is the next one to read. A micro-batch begins at the end of the previous one, unless ``begin``
is given: in the first micro-batch, in a new partition, and after lost records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION


class CheckpointError(Exception):
    """The checkpoint belongs to other topics than the query, or this release cannot read it."""


class DataLossError(Exception):
    """Records that the stream has not read no longer exist."""


class StreamPosition(NamedTuple):
    """The next position of a partition."""

    offset: int
    leader_epoch: int = NO_EPOCH
    """The partition's leader epoch when the micro-batch was planned."""
    incarnation: int = NO_INCARNATION
    begin: int = -1
    """The offset at which the micro-batch begins; -1: at the end of the previous micro-batch."""

    def begins(self, before: StreamPosition | None) -> int:
        """The first offset of the micro-batch that ends here; ``before`` is the end of the previous micro-batch."""
        if self.begin >= 0:
            return self.begin
        return before.offset if before is not None else self.offset


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """The positions in one topic, by partition."""

    topic_id: str
    incarnation: int = NO_INCARNATION
    """Distinguishes the topic from another one of the same name; -1 when the source does not provide it."""
    layout_version: int = -1
    partitions: Mapping[int, StreamPosition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offsets:
    """One offset of the stream: the end of a micro-batch and the start of the next one."""

    cluster_id: str
    topics: Mapping[str, TopicPositions]
    is_initial: bool = False

    def position(self, topic: str, partition: int) -> StreamPosition | None:
        known = self.topics.get(topic)
        return known.partitions.get(partition) if known is not None else None


@contextmanager
def decoding(found: Mapping[str, Any]) -> Iterator[None]:
    """Turn the errors of a block that decodes the JSON values ``found`` into ``CheckpointError``."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint's offsets are malformed: {error!r} in {found!r}") from None
