"""Partitions that left the cluster a short while ago, for coordinators that find offsets of them later.

Each coordinator tombstones the offsets of a deleted topic when it hears of the deletion. The one that coordinated a
group then may die before its tombstones are written; its successor, which may have heard of the deletion before it
began to coordinate, does it again. Else a topic created anew under the name would start at its predecessor's offsets.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.coordinator.offsets_log import Topics
from protocol.types import TopicPartition


class RecentDeletions:
    """Remembers a deletion for one to two intervals of ``age``."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[TopicPartition, None] = {}
        self._old: dict[TopicPartition, None] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions were deleted just now."""
        self._young.update(dict.fromkeys(partitions))

    def age(self) -> None:
        """Another interval is over."""
        self._old, self._young = self._young, {}

    def still_gone(self, topics: Topics) -> dict[TopicPartition, None]:
        """Those that were not created anew: their offsets are nobody's."""
        return {tp: None for tp in [*self._old, *self._young] if not topics.contains(tp.topic, tp.partition)}
