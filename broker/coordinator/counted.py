"""The volatile state of ``readers``: the groups that leaders count as readers of a topic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.protocol.types import TopicPartition

REMEMBERED_MS = 600_000
"""How long a created partition is remembered. A coordinator that takes over may need it."""


class Creation(NamedTuple):
    """A partition that a resize created: the first offset of its log, and its incarnation."""

    base_offset: int
    incarnation: int


@dataclass(slots=True, eq=False)
class CountedGroups:
    """The state about the groups of one partition of the offsets topic."""

    since: dict[str, dict[str, int]] = field(default_factory=dict)
    """``{group: {topic: ms}}``: the time (monotonic ms) since which a group's stock members count as readers."""
    _asked: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Topics for which a leader sent TopicReaders, and the time (monotonic ms) of the last one, the oldest first."""
    unwritten: dict[str, dict[TopicPartition, Creation]] = field(default_factory=dict)
    """For each group, the partitions in which its beginning (the partition's first offset) is not committed yet."""

    def note_asked(self, topic: str, now_ms: int, since_ms: int) -> None:
        """Note that a leader sent TopicReaders for a topic. Some requests from before ``since_ms`` are forgotten."""
        for _ in range(2):  # more than are added, and no long work after very many were added
            if self._asked and next(iter(self._asked.values())) < since_ms:
                self._asked.popitem(last=False)
        self._asked[topic] = now_ms
        self._asked.move_to_end(topic)

    def was_asked(self, topic: str, since_ms: int) -> bool:
        """Whether a leader has asked for a topic at ``since_ms`` or later."""
        asked_ms = self._asked.get(topic)
        return asked_ms is not None and asked_ms >= since_ms

    def forget(self, group_id: str) -> None:
        """Forget a deleted group: a later group of the same name is a different group."""
        self.since.pop(group_id, None)
        self.unwritten.pop(group_id, None)


class RecentCreations:
    """Partitions that were created a short while ago.

    A coordinator may crash before it has committed the groups' beginnings in the new partition. Its successor commits
    them again. The successor may have been told of the creation before it became coordinator, so each broker remembers
    creations for a while.
    """

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: dict[TopicPartition, tuple[Creation, int]] = {}

    def add(self, created: Mapping[TopicPartition, Creation], now_ms: int) -> None:
        """Note partitions that were created just now (monotonic ms)."""
        self._noted.update({tp: (creation, now_ms) for tp, creation in created.items()})

    def as_of(self, now_ms: int) -> dict[TopicPartition, Creation]:
        """The creations that are still remembered."""
        self._noted = {tp: (of, at_ms) for tp, (of, at_ms) in self._noted.items() if now_ms - at_ms < REMEMBERED_MS}
        return {tp: creation for tp, (creation, _) in self._noted.items()}
