"""Converts the successive states of a topic's znodes to a history's events about the partitions."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionLayout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.history.events import Created, Event, LayoutSet, Removed


@dataclass(slots=True)
class Incarnation:
    """A partition from its creation to its removal."""

    tp: TopicPartition
    incarnation: int
    state: PartitionState | None = None

    @property
    def was_led(self) -> bool:
        return self.state is not None and bool(self.state.isr)

    @property
    def is_leaving(self) -> bool:
        return self.state is not None and self.state.being_removed


class TopicIncarnations:
    """The incarnations of a topic's partitions, from the states that are passed to ``saw`` in order."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.present: dict[int, Incarnation] = {}
        self.gone: list[Incarnation] = []
        self.layouts: dict[PartitionLayout, None] = {}
        """All layouts of led partitions, in the order of their first use."""

    def tps(self) -> list[TopicPartition]:
        """The partitions that have been led, including the marked ones."""
        return [part.tp for _, part in sorted(self.present.items()) if part.was_led]

    def saw(
        self, number: int, incarnation: int, state: PartitionState | None, znode: TopicZnode, now_ms: float
    ) -> list[Event]:
        """Record a partition's present state, or None for a partition without a state. Return the resulting events."""
        tp, events = TopicPartition(self.topic, number), list[Event]()
        part = self.present.get(number)
        if part is not None and (state is None or part.incarnation != incarnation):
            if not part.is_leaving:
                events.append(Removed(now_ms, tp, part.incarnation))
            self.gone.append(self.present.pop(number))
            part = None
        if state is None:
            return events
        if part is None:
            part = self.present[number] = Incarnation(tp, incarnation)
            events.append(Created(now_ms, tp, incarnation))
        before, part.state = part.state, state
        if state.being_removed and (before is None or not before.being_removed):
            events.append(Removed(now_ms, tp, incarnation))
        if state.isr and (before is None or not before.isr or before.leader_epoch != state.leader_epoch):
            initial = znode.initial_partition_count
            layout = state.layout or PartitionLayout(initial, 0)
            self.layouts[layout] = None
            events.append(LayoutSet(now_ms, tp, incarnation, state.leader_epoch, initial, *layout))
        return events

    def unfinished(self, znode: TopicZnode) -> str:
        """The next unfinished part of the last resize, or "". A part may be the removal of marked partitions."""
        wanted = PartitionLayout(znode.undeleted_partition_count, znode.layout_version)
        if znode.wanted is not None:
            return f"a resize to {znode.wanted} partitions is queued"
        if len(znode.partitions) != znode.undeleted_partition_count:
            marked = {number: part.state for number, part in self.present.items() if number >= wanted[0]}
            return f"{len(znode.partitions)} partitions of {wanted[0]}: {marked}"
        for number in sorted(znode.partitions):
            part = self.present.get(number)
            if part is None or part.state is None or part.state.leader < 0:
                return f"partition {number} has no leader: {part}"
            if (part.state.layout or PartitionLayout(znode.initial_partition_count, 0)) != wanted:
                return f"partition {number} does not have the layout {wanted}: {part.state}"
        return ""
