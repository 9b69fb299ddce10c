"""What the delivery gate is told, what it asks and what it says: values without behaviour."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from protocol.key_placement import ancestors, descendants
from protocol.types import TopicPartition

NO_LIMIT: Final = 2**31
"""Above every leader epoch: all batches may be delivered."""
CLOSED: Final = -2
"""Below every leader epoch, the -1 of batches without one included: none may be delivered."""


class PartitionMap(NamedTuple):
    """One partition of an answer to PartitionLeaderEpochsForPartitions (25301); -1 where there is none."""

    incarnation: int
    created_from: int = -1
    """The ancestor that lost keys to this partition."""
    epoch_after_creation: int = -1
    """The ancestor's last leader epoch under the old layout; -1 with ``created_from``: not known yet."""
    merged_into: int = -1
    """The survivor that gains this partition's keys, when it is marked for deletion."""
    epoch_before_deletion: int = -1
    """The survivor's last leader epoch under the old layout."""
    sealed_offset: int = -1
    """Where the marked partition ends; -1: not known yet."""


class BarrierKind(enum.Enum):
    """Which of the two rules a partition waits by."""

    CREATION = "creation"
    DELETION = "deletion"


class Missing(enum.Enum):
    """What a barrier waits for, in the order in which it is found out."""

    MAP = "what the split or merge recorded"
    LEADER_EPOCH = "a leader epoch of the new layout"
    END_OFFSET = "where the recorded leader epoch ended"
    SEALED_OFFSET = "where the marked partition ends"
    POSITION = "the group's position"


class Barrier(NamedTuple):
    """One thing that a partition waits for."""

    kind: BarrierKind
    of: int
    """The partition that was split off or is marked for deletion."""
    on: TopicPartition
    """Whose position must come."""
    missing: Missing
    position: int = -1
    """The group's position on it; -1: not known."""
    threshold: int = -1
    """The position needed; -1: not known yet."""


class Blocked(NamedTuple):
    """A partition that is not delivered, or not beyond the batches of a leader epoch, and why."""

    tp: TopicPartition
    max_leader_epoch: int
    """Batches up to this leader epoch are delivered; ``CLOSED``: none."""
    barriers: tuple[Barrier, ...]


@dataclass(slots=True)
class Questions:
    """What the gate wants to know. An answer may lead to further questions."""

    maps: dict[TopicPartition, int] = field(default_factory=dict)
    """Incarnation by partition, for 25301."""
    end_offsets: dict[tuple[TopicPartition, int], None] = field(default_factory=dict)
    """Partitions and leader epochs, for OffsetForLeaderEpoch."""
    log_starts: dict[TopicPartition, None] = field(default_factory=dict)
    """For ListOffsets."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """Incarnation by partition, for 25300: kept up to date for as long as they are wanted."""
    metadata: dict[str, None] = field(default_factory=dict)
    """Topics whose metadata is too old to decide by."""

    def add(self, other: Questions) -> None:
        """Ask what ``other`` asks as well."""
        self.maps.update(other.maps)
        self.end_offsets.update(other.end_offsets)
        self.log_starts.update(other.log_starts)
        self.positions.update(other.positions)
        self.metadata.update(other.metadata)

    @property
    def any_to_ask(self) -> bool:
        """Whether there is more to ask than positions."""
        return bool(self.maps or self.end_offsets or self.log_starts or self.metadata)


@lru_cache(maxsize=16_384)
def chain(partition: int, initial: int) -> tuple[int, ...]:
    """The partition and its ancestors that were split off some partition, nearest first; empty for a root."""
    if partition < initial:
        return ()
    return (partition, *(p for p in ancestors(partition, initial) if p >= initial))


@lru_cache(maxsize=16_384)
def marked_descendants(partition: int, initial: int, undeleted: int, total: int) -> tuple[int, ...]:
    """The descendants marked for deletion: those from ``undeleted`` on."""
    if undeleted >= total:
        return ()
    return tuple(p for p in descendants(partition, initial, total) if p >= undeleted)
