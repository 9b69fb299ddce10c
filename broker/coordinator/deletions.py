"""Remembers recently deleted partitions, because a coordinator may find offsets of such a partition later.

Each coordinator writes tombstones for the offsets of a deleted partition once it knows of the deletion. A coordinator
may crash before its tombstones are written. Its successor writes them again. Otherwise, if the partition is created
again, consumers would start at the offsets of the deleted partition. The successor may have been told of the deletion
before it became coordinator, so each broker remembers deletions for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anabranch.broker.coordinator.broker_services import Topics
from anabranch.protocol.sentinels import NO_INCARNATION
from anabranch.protocol.types import TopicPartition


class PartitionDeletion(NamedTuple):
    """The deletion of a partition: the incarnation that was deleted, -1 if it is not known."""

    incarnation: int = NO_INCARNATION
    is_created_anew: bool = False

    def covers(self, incarnation: int) -> bool:
        """Whether an offset committed for ``incarnation`` (-1: not known) belongs to the deleted partition.

        Once the partition is created again, an offset without an incarnation may belong to the new partition.
        """
        if self.incarnation == NO_INCARNATION:
            return not self.is_created_anew
        return incarnation <= self.incarnation and (incarnation != NO_INCARNATION or not self.is_created_anew)


class RecentDeletions:
    """Remembers a deletion for one to two intervals of ``age``."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[TopicPartition, int] = {}
        self._old: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, partitions: Mapping[TopicPartition, int]) -> None:
        """Note partitions that were deleted just now, each with its last incarnation."""
        self._young.update(partitions)

    def age(self) -> None:
        """Begin another interval. A deletion is forgotten when the second interval after it begins."""
        self._old, self._young = self._young, {}

    def known(self) -> dict[TopicPartition, int]:
        """The deleted partitions, each with its last incarnation."""
        return {**self._old, **self._young}


def as_of(partitions: Mapping[TopicPartition, int], topics: Topics) -> dict[TopicPartition, PartitionDeletion]:
    """The deletions of ``partitions``. Each deletion notes whether its partition has been created again."""
    return {
        tp: PartitionDeletion(incarnation, topics.contains(tp.topic, tp.partition))
        for tp, incarnation in partitions.items()
    }
