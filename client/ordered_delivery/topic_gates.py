"""The delivery gates of a consumer, one for each topic, by topic and partition: which records may be delivered now.

``ordered_resize.gate`` decides. This module gives facts to the gate of their topic and collects the gates' questions.
It turns metadata into facts: a leader changed, a partition or the topic was removed, or a topic was never resized
(layout version 0). In the last case no partition has a lineage entry up to the leader epoch in the metadata. No IO, no
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from anabranch.client.cluster import TopicInfo
from anabranch.client.ordered_delivery.blocked_partition import BlockedPartition, WaitsFor
from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.gate import Gate, GateState, QuestionKind
from anabranch.ordered_resize.lineage import BELOW_EVERY_EPOCH, EVERY_EPOCH
from anabranch.ordered_resize.state_loads import Loaded
from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION, NO_OFFSET
from anabranch.protocol.types import TopicPartition

NEVER_RESIZED = 0
"""The layout version of topics that were never resized."""


@dataclass(slots=True)
class Questions:
    """The questions of the gates. An answer may lead to further questions."""

    lineages: dict[TopicPartition, int] = field(default_factory=dict)
    """API 25301: the lineage in this leader epoch or a later one."""
    ends: dict[tuple[TopicPartition, int], None] = field(default_factory=dict)
    """OffsetForLeaderEpoch: the end of this leader epoch of the partition."""
    log_starts: dict[TopicPartition, None] = field(default_factory=dict)
    """ListOffsets: the start of the log."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """API 25300: group positions, with incarnations from the metadata. Positions are updated while they are wanted."""

    @property
    def any_to_ask(self) -> bool:
        """Whether there is more to ask than positions."""
        return bool(self.lineages or self.ends or self.log_starts)


class _Topic:
    """One topic with at least one owned partition."""

    __slots__ = ("asked_of", "gate", "info")

    def __init__(self) -> None:
        self.gate = Gate()
        self.info: TopicInfo | None = None
        self.asked_of: dict[int, int] = {}
        """By partition, the leader epoch of the leader that answered with the ends of epochs."""

    def leader_epoch(self, partition: int) -> int:
        info = self.info.partitions.get(partition) if self.info is not None else None
        return info.leader_epoch if info is not None else NO_EPOCH


class TopicGates:
    """The gates of a consumer's topics; see the module."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self.removed: dict[TopicPartition, None] = {}
        self.version = 0
        """Rises when a result of the gates may have changed."""

    # ------------------------------------------------------------ events

    def assign(self, partitions: Iterable[TopicPartition], topics: Mapping[str, TopicInfo]) -> None:
        """Own exactly ``partitions``. Partitions that were already owned keep their known loads."""
        owned: dict[str, list[int]] = {}
        for tp in partitions:
            owned.setdefault(tp.topic, []).append(tp.partition)
        self._topics = {name: self._topics.get(name) or _Topic() for name in owned}
        for name, numbers in owned.items():
            topic = self._topics[name]
            topic.gate.assign(numbers)
            if topic.info is not None:
                self._take_epochs(topic, topic.info)
        self.version += 1
        self.on_metadata(topics)

    def on_metadata(self, topics: Mapping[str, TopicInfo]) -> None:
        """Process the cluster's topics as last described. If a topic is the same object as before, nothing changed."""
        for name, topic in self._topics.items():
            info = topics.get(name)
            # A topic without partitions means an error or a lagging broker: the known facts stay.
            if info is None or not info.partitions or info is topic.info:
                continue
            before, topic.info = topic.info, info
            self.version += 1
            if before is not None:
                self._forget_removed(name, topic, before, info)
            for q in [q for q, epoch in topic.asked_of.items() if topic.leader_epoch(q) > epoch]:
                del topic.asked_of[q]
                topic.gate.facts.on_leader_change(q)
            self._take_epochs(topic, info)

    def _forget_removed(self, name: str, topic: _Topic, before: TopicInfo, info: TopicInfo) -> None:
        for p in topic.gate.owned:
            old, new = before.partitions.get(p), info.partitions.get(p)
            if old is not None and (new is None or 0 <= old.incarnation < new.incarnation):
                topic.gate.renew(p)
                self.removed[TopicPartition(name, p)] = None
        if 0 <= before.incarnation < info.incarnation:
            topic.gate.forget()
            topic.asked_of.clear()

    @staticmethod
    def _take_epochs(topic: _Topic, info: TopicInfo) -> None:
        """Take the leader epochs of a topic with its first layout as lineages without entries.

        Metadata has the first layout until a partition that loses keys has the next one.
        """
        if info.layout_version != NEVER_RESIZED:
            return
        lineages = topic.gate.facts.lineages
        for p in topic.gate.owned:
            part = info.partitions.get(p)
            if part is not None and (p not in lineages or lineages[p].as_of < part.leader_epoch):
                topic.gate.facts.on_lineage(p, Lineage(part.leader_epoch))

    def topic_incarnation(self, topic: str) -> int:
        """The incarnation of the topic that the facts are about; -1 if not known."""
        known = self._topics.get(topic)
        return known.info.incarnation if known is not None and known.info is not None else NO_INCARNATION

    def incarnation(self, tp: TopicPartition) -> int:
        """The incarnation of the partition in the metadata; -1 if not known."""
        known = self._topics.get(tp.topic)
        info = known.info.partitions.get(tp.partition) if known is not None and known.info is not None else None
        return info.incarnation if info is not None else NO_INCARNATION

    def on_lineage(self, tp: TopicPartition, lineage: Lineage | None, over: int) -> None:
        """Store an answer of 25301 about the topic of this ``topic_incarnation``; see ``Facts.on_lineage``.

        ``lineage`` is None if the partition does not exist.
        """
        if (topic := self._topics.get(tp.topic)) is not None:
            self.version += 1
            topic.gate.facts.on_lineage(tp.partition, lineage, over)

    def on_missing(self, tp: TopicPartition) -> None:
        """Note that a broker does not know the partition."""
        if (topic := self._topics.get(tp.topic)) is not None:
            self.version += 1
            topic.gate.facts.on_missing(tp.partition)

    def on_end(self, tp: TopicPartition, epoch: int, leader_epoch: int, end_offset: int) -> None:
        """Store the end of ``epoch`` that the leader of ``leader_epoch`` sent: ``end_offset`` (exclusive), or -1."""
        topic = self._topics.get(tp.topic)
        # A later leader may have fewer records, and the end of the present epoch still moves.
        if topic is not None and end_offset >= 0 and epoch < leader_epoch == topic.leader_epoch(tp.partition):
            self.version += 1
            topic.asked_of[tp.partition] = leader_epoch
            topic.gate.facts.on_end(tp.partition, epoch, end_offset)

    def on_log_start(self, tp: TopicPartition, offset: int) -> None:
        if (topic := self._topics.get(tp.topic)) is not None:
            self.version += 1
            topic.gate.facts.on_log_start(tp.partition, offset)

    def on_position(self, tp: TopicPartition, position: int) -> None:
        """Store the group's position; -1 if it is not known (any more)."""
        topic = self._topics.get(tp.topic)
        if topic is None or self.position(tp) == position:
            return
        self.version += 1
        topic.gate.facts.on_position(tp.partition, position)

    def on_rewinds(self, tp: TopicPartition, rewinds: int) -> None:
        """Store the number of commits that lowered the group's offset."""
        topic = self._topics.get(tp.topic)
        if topic is None:
            return
        facts, before = topic.gate.facts, topic.gate.facts.version
        facts.on_rewinds(tp.partition, rewinds)
        self.version += facts.version != before

    def on_owner(self, tp: TopicPartition, *, is_owned: bool) -> None:
        """Store whether only a live member knows the position. If so, the start of the log is no position."""
        topic = self._topics.get(tp.topic)
        if topic is None or is_owned == (tp.partition not in topic.gate.facts.unowned):
            return
        self.version += 1
        topic.gate.facts.on_owner(tp.partition, is_owned=is_owned)

    def on_new_generation(self) -> None:
        """Forget the members' positions and owners, because those of the new generation are not known yet."""
        self.settle()  # epochs that are satisfied stay passed
        self.version += 1
        for topic in self._topics.values():
            topic.gate.facts.on_new_generation()

    def settle(self) -> None:
        """See ``Gate.settle``, for every owned partition."""
        for topic in self._topics.values():
            for partition in topic.gate.owned:
                topic.gate.settle(partition)

    def load_called(self, tp: TopicPartition) -> Loaded:
        """See ``Gate.load_called``."""
        return self._topics[tp.topic].gate.load_called(tp.partition)

    def load_returned(self, tp: TopicPartition, called: Loaded) -> None:
        """See ``Gate.load_returned``. Does nothing for a partition that was given up meanwhile."""
        topic = self._topics.get(tp.topic)
        if topic is not None and tp.partition in topic.gate.owned:
            self.version += 1
            topic.gate.load_returned(tp.partition, called)

    def restart(self, tp: TopicPartition) -> None:
        """Restart the gate, because the next batch does not follow the last one."""
        self._topics[tp.topic].gate.restart(tp.partition)

    # ------------------------------------------------------------ results

    def limit(self, tp: TopicPartition) -> int:
        """The highest leader epoch whose batches may be delivered now, ``BELOW_EVERY_EPOCH`` for none."""
        topic = self._topics.get(tp.topic)
        if topic is None or topic.info is None:
            return BELOW_EVERY_EPOCH
        if not topic.info.ordered_delivery:
            return EVERY_EPOCH
        return topic.gate.limit(tp.partition) if tp.partition in topic.info.partitions else BELOW_EVERY_EPOCH

    def look(self, tp: TopicPartition, epoch: int) -> GateState:
        """The state of the gate for a next batch of this leader epoch."""
        topic = self._topics[tp.topic]
        if topic.info is None or tp.partition not in topic.info.partitions:
            return GateState.UNKNOWN
        return topic.gate.look(tp.partition, epoch)

    def take_revoked(self) -> list[TopicPartition]:
        """Take the partitions whose keys the user must flush: they were removed, or wait again after a load."""
        revoked = dict(self.removed)
        self.removed = {}
        for name, topic in self._topics.items():
            revoked.update((TopicPartition(name, p), None) for p in topic.gate.take_revoked())
        return list(revoked)

    def position(self, tp: TopicPartition) -> int:
        """The group's position as last reported; -1 if not known."""
        topic = self._topics.get(tp.topic)
        return topic.gate.facts.positions.get(tp.partition, NO_OFFSET) if topic is not None else NO_OFFSET

    def positions(self) -> dict[TopicPartition, int]:
        """The known positions of the group, as last reported."""
        return {
            TopicPartition(name, q): position
            for name, topic in self._topics.items()
            for q, position in topic.gate.facts.positions.items()
        }

    @property
    def is_waiting(self) -> bool:
        """Whether a lineage entry of an owned partition is not satisfied."""
        return any(self._waits(topic, p) for topic in self._ordered() for p in topic.gate.owned)

    @staticmethod
    def _waits(topic: _Topic, p: int) -> bool:
        known = topic.gate.facts.lineages.get(p)
        return known is not None and topic.gate.cap(p) < known.as_of

    def _ordered(self) -> Iterator[_Topic]:
        for topic in self._topics.values():
            if topic.info is not None and topic.info.ordered_delivery:
                yield topic

    def blocked(
        self,
        fronts: Mapping[TopicPartition, int],
        owner_of: Callable[[TopicPartition], str | None],
        committed: Callable[[TopicPartition], int] = lambda _: NO_OFFSET,
    ) -> list[BlockedPartition]:
        """The partitions that wait for others, and those whose next batch is newer than the known lineage, in order.

        ``fronts`` has the leader epochs of the blocked batches.
        """
        found = []
        for topic in self._ordered():
            assert topic.info is not None
            name, facts = topic.info.name, topic.gate.facts
            for p in sorted(topic.gate.owned & topic.info.partitions.keys()):
                tp = TopicPartition(name, p)
                known, front = facts.lineages.get(p), fronts.get(tp)
                waits = tuple(WaitsFor.of(name, wait, owner_of, committed) for wait in topic.gate.waits(p))
                if waits or (front is not None and (known is None or front > known.as_of)):
                    found.append(BlockedPartition(tp, topic.gate.limit(p), waits))
        return found

    def questions(self, fronts: Mapping[TopicPartition, int], *, recheck: bool = False) -> Questions:
        """All questions that help to deliver the next batches, and all questions about the newest known leader epochs.

        With ``recheck`` also questions whose answers may change without a leader change known to this client.
        """
        asked = Questions()
        for topic in self._ordered():
            info = topic.info
            assert info is not None
            for p in topic.gate.owned:
                if p in info.partitions:
                    self._ask(topic, info, p, fronts.get(TopicPartition(info.name, p), -1), asked, recheck)
        return asked

    @staticmethod
    def _ask(topic: _Topic, info: TopicInfo, p: int, front: int, asked: Questions, recheck: bool) -> None:
        gate, facts = topic.gate, topic.gate.facts
        known = facts.lineages.get(p)
        if known is not None and not known.entries and known.as_of >= max(front, info.partitions[p].leader_epoch):
            return
        for q in gate.named(p):
            if q in info.partitions:
                asked.positions[TopicPartition(info.name, q)] = info.partitions[q].incarnation
        epoch = max(front, info.partitions[p].leader_epoch, known.as_of if known is not None else NO_EPOCH)
        for ask, q, f in gate.questions(p, epoch):
            tp = TopicPartition(info.name, q)
            if ask is QuestionKind.LINEAGE:
                asked.lineages[tp] = max(f, asked.lineages.get(tp, -1))
            elif ask is QuestionKind.END:
                asked.ends[tp, f] = None
            elif ask is QuestionKind.POSITION:
                asked.positions.setdefault(tp, -1)
            elif recheck or q not in facts.log_starts:
                asked.log_starts[tp] = None
        if recheck:
            asked.ends.update(((TopicPartition(info.name, w.on), w.epoch), None) for w in gate.waits(p))
