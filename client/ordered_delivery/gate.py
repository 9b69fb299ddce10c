"""The delivery gate of KIP-253: which batches of a partition may be delivered now. No IO, no clock.

Per partition the gate says the highest leader epoch whose batches may be delivered (``cap``):

- Never a batch whose leader epoch is newer than the metadata the gate has decided by: it may have been written under a
  layout the gate does not know.
- *Creation barrier*. A partition that was split off delivers nothing until, for it and each of its ancestors that was
  split off, the group has processed the recorded partition up to the end of the recorded leader epoch. The whole chain
  counts: an empty parent that is itself blocked must not free its child.
- *Deletion barrier*. A survivor delivers nothing newer than the lowest leader epoch recorded for it until the group has
  processed every marked descendant, also those whose map names another survivor, up to its sealed offset.

What is not known blocks. A map counts only for the incarnation that the metadata names, the end of a leader epoch only
once the partition has a higher one, and both are asked for again after a leader change. Once passed, the barriers of a
partition stay passed while it is held, unless somebody says that it went back on a partition they depend on: positions
die with their generation, and no longer known is not the same as lower.

Feed it with the ``on_`` methods, then ``evaluate``; ``questions`` is what it wants to know next. Before a partition
delivers keys that another one had, the user's callback runs: ``keys_assigned`` names the partitions,
``announced`` says that the callback returned. In between they deliver as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from client.cluster import PartitionInfo, TopicInfo
from client.ordered_delivery.barriers import (
    CLOSED,
    NO_LIMIT,
    Barrier,
    BarrierKind,
    Blocked,
    Missing,
    PartitionMap,
    Questions,
    chain,
    marked_descendants,
)
from protocol.types import TopicPartition

_Lifetime = tuple[int, int]
"""A partition's number and incarnation."""
_UNSEEN = -1
"""In a ``_Lifetime``: some partition that merged and was removed before any metadata named it as marked."""
_MapVersion = tuple[int, int, int]
"""Layout version, leader epoch of the partition and of its survivor: a map read under others is asked for again."""


class _Seen(NamedTuple):
    """The layout by which a partition was last decided; before that, the one when the user's states were loaded."""

    layout_version: int = -1
    undeleted: int = -1
    total: int = -1
    """How many partitions there were, but for the marked ones that were decided by."""

    @classmethod
    def at_the_load(cls, topic: TopicInfo) -> _Seen:
        return cls(topic.layout_version, topic.undeleted_partition_count, len(topic.partitions))


class _Held:
    """What the gate has found out about one partition that the consumer holds."""

    __slots__ = (
        "announced_gains",
        "barriers",
        "epoch_before_gains",
        "evaluated_epoch",
        "gains",
        "gone",
        "incarnation",
        "is_announced",
        "is_limited",
        "is_open",
        "passed",
        "seen",
        "was_announced",
    )

    def __init__(self, incarnation: int = -1) -> None:
        self.incarnation = incarnation
        self.is_open = False
        """The creation barriers are passed."""
        self.is_announced = False
        """The user was told since."""
        self.was_announced = False
        """The user was told of keys that are blocked again, and is to be told that."""
        self.evaluated_epoch = CLOSED
        """The partition's leader epoch in the metadata last decided by."""
        self.seen = _Seen()
        self.is_limited = False
        """A marked descendant is not processed yet."""
        self.epoch_before_gains = NO_LIMIT
        """The lowest leader epoch recorded by the partitions that merge into it."""
        self.gains: set[_Lifetime] = set()
        """Partitions that merge into it, of which the user was not told yet."""
        self.gone: set[_Lifetime] = set()
        """Those of the gains that were removed: nothing is left of them to wait for."""
        self.announced_gains: set[_Lifetime] = set()
        self.passed: set[_Lifetime] = set()
        """Marked descendants that were processed."""
        self.barriers: tuple[Barrier, ...] = ()


class DeliveryGate:
    """See the module. One gate serves all topics of a consumer."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicInfo] = {}
        self._held: dict[TopicPartition, _Held] = {}
        self._maps: dict[TopicPartition, tuple[PartitionMap, _MapVersion]] = {}
        self._end_offsets: dict[tuple[TopicPartition, int], tuple[int, int, int]] = {}
        """(incarnation, leader epoch that was asked, end offset) by partition and epoch."""
        self._log_starts: dict[TopicPartition, tuple[int, int]] = {}
        self._positions: dict[TopicPartition, tuple[int, int]] = {}
        """(incarnation, offset) by partition, as log starts."""
        self._owners_awaited = False
        """The members of a group report to each other: whether nobody does of a partition has to be told."""
        self._unowned: dict[TopicPartition, None] = {}
        """Partitions of which no live member is to report."""
        self._questions: dict[str, Questions] = {}
        self._dirty: dict[str, None] = {}
        self._recheck = False
        self.version = 0
        """Goes up when what the gate says may have changed."""

    # ------------------------------------------------------------ events

    def on_metadata(self, topics: Mapping[str, TopicInfo]) -> None:
        """The cluster's topics as last described; the same object means nothing changed."""
        for name in dict.fromkeys(tp.topic for tp in self._held):
            info = topics.get(name)
            # One without partitions tells of an error or a broker that lags: what was known holds until there are some.
            if info is not None and info.partitions and info is not self._topics.get(name):
                self._topics[name] = info
                self._dirty[name] = None

    def assign(self, partitions: Iterable[TopicPartition], topics: Mapping[str, TopicInfo]) -> None:
        """Hold exactly ``partitions``; those held before keep what was found out about them.

        Before the user loads states for those that are new: what merges from here on is not in them.
        """
        self.version += 1
        held = {tp: self._held.get(tp) or _Held() for tp in partitions}
        new = [tp for tp in held if tp not in self._held]
        changed = [*new, *(tp for tp in self._held if tp not in held)]
        self._held = held
        names = dict.fromkeys(tp.topic for tp in held)
        self._dirty.update((tp.topic, None) for tp in changed)
        for name in [name for name in self._topics if name not in names]:
            self._forget(name)
        self.on_metadata(topics)
        for tp in new:
            topic, info = self._topics.get(tp.topic), self._info(tp)
            if topic is not None and info is not None:
                held[tp].incarnation = info.incarnation
                held[tp].seen = _Seen.at_the_load(topic)

    def _forget(self, topic: str) -> None:
        del self._topics[topic]
        self._questions.pop(topic, None)
        self._dirty.pop(topic, None)
        for facts in (self._maps, self._log_starts, self._positions):
            for tp in [tp for tp in facts if tp.topic == topic]:
                del facts[tp]  # type: ignore[attr-defined]
        self._end_offsets = {key: end for key, end in self._end_offsets.items() if key[0].topic != topic}

    def on_map(self, tp: TopicPartition, answer: PartitionMap) -> None:
        """25301 was answered. Another incarnation's map is of no use."""
        topic = self._topics.get(tp.topic)
        info = topic.partitions.get(tp.partition) if topic is not None else None
        if topic is None or info is None or answer.incarnation != info.incarnation or answer.incarnation < 0:
            return
        self._maps[tp] = (answer, self._map_version(topic, tp.partition, answer))
        self._dirty[tp.topic] = None

    def on_end_offset(self, tp: TopicPartition, epoch: int, leader_epoch: int, end_offset: int) -> None:
        """The leader of ``leader_epoch`` said where ``epoch`` ended: ``end_offset`` is exclusive, -1 unknown."""
        info = self._info(tp)
        if info is not None and end_offset >= 0:
            self._end_offsets[tp, epoch] = (info.incarnation, leader_epoch, end_offset)
            self._dirty[tp.topic] = None

    def on_log_start(self, tp: TopicPartition, incarnation: int, offset: int) -> None:
        """The first offset of a partition."""
        if tp.topic in self._topics:
            self._log_starts[tp] = (incarnation, offset)
            self._dirty[tp.topic] = None

    def on_position(self, tp: TopicPartition, incarnation: int, position: int) -> None:
        """How far the group is; -1: not known (any more), which takes nothing back that was passed."""
        if position < 0:
            known = self._positions.pop(tp, None) is not None
        else:
            known = self._positions.get(tp) != (incarnation, position)
            self._positions[tp] = (incarnation, position)
        if known:
            self._dirty[tp.topic] = None

    @property
    def positions(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """The group's positions as last told, where they are known: (incarnation, position)."""
        return self._positions

    def position(self, tp: TopicPartition) -> int:
        """The group's position as last told, -1 when not known."""
        return self._positions.get(tp, (-1, -1))[1]

    def forget_positions(self) -> None:
        """The generation that the positions belong to is over."""
        for tp in list(self._positions):
            self.on_position(tp, -1, -1)

    def await_owners(self) -> None:
        """A generation begins: nothing is known of what its members have processed, or who owns what."""
        self._owners_awaited = True
        self._unowned.clear()
        self.forget_positions()
        self._dirty.update((tp.topic, None) for tp, held in self._held.items() if held.barriers)

    def on_owner(self, tp: TopicPartition, *, awaits_report: bool) -> None:
        """Whether a live member alone can tell the position: then the start of the log does not stand for it."""
        if awaits_report == (tp not in self._unowned):
            return
        if awaits_report:
            del self._unowned[tp]
        else:
            self._unowned[tp] = None
        self._dirty[tp.topic] = None

    def recheck(self) -> None:
        """Ask again what may have changed without a leader change: retention, a map from a broker that lagged."""
        self._recheck = True
        self._dirty.update((tp.topic, None) for tp, held in self._held.items() if held.barriers)

    # ------------------------------------------------------------ what it says

    @property
    def is_dirty(self) -> bool:
        """Whether something happened since ``evaluate``."""
        return bool(self._dirty)

    def cap(self, tp: TopicPartition) -> int:
        """The highest leader epoch whose batches may be delivered now."""
        held = self._held.get(tp)
        topic = self._topics.get(tp.topic)
        if held is None or topic is None:
            return CLOSED
        if not topic.ordered_delivery:
            return NO_LIMIT
        if tp.partition >= topic.initial_partition_count and not (held.is_open and held.is_announced):
            return CLOSED
        if held.is_limited or held.gains:
            return min(held.evaluated_epoch, held.epoch_before_gains)
        return held.evaluated_epoch

    def has_position(self, tp: TopicPartition) -> bool:
        """Whether the group has a position on a partition held: one that is itself blocked has none."""
        return self.cap(tp) != CLOSED

    def blocked(self) -> list[Blocked]:
        """The partitions that wait for others, in order."""
        return [Blocked(tp, self.cap(tp), held.barriers) for tp, held in sorted(self._held.items()) if held.barriers]

    def questions(self) -> Questions:
        """All that would help now."""
        asked = Questions()
        for name in sorted(self._questions):
            asked.add(self._questions[name])
        return asked

    def keys_assigned(self) -> list[TopicPartition]:
        """Partitions that may deliver keys which another one had, once the user's callback has returned."""
        return [
            tp
            for tp, held in self._held.items()
            if not held.was_announced and (self._opened(tp, held) or self._gained(tp, held))
        ]

    def announced(self, partitions: Iterable[TopicPartition]) -> None:
        """The user was told that these have new keys."""
        for tp in partitions:
            held = self._held.get(tp)
            if held is None or held.was_announced:
                continue
            self.version += 1
            gained = self._gained(tp, held)
            if self._opened(tp, held):
                held.is_announced = True
            if gained:
                told_of = held.gone if held.is_limited else held.gains
                held.announced_gains |= told_of
                held.gains = held.gains - told_of
                held.gone = set()
                self._dirty[tp.topic] = None

    def keys_revoked(self) -> list[TopicPartition]:
        """Partitions that are blocked again: what they gained may be taken back by a partition that was rewound."""
        return [tp for tp, held in self._held.items() if held.was_announced]

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """The user was told that these are blocked again."""
        for tp in partitions:
            held = self._held.get(tp)
            if held is not None:
                self.version += 1
                held.was_announced = False

    def _opened(self, tp: TopicPartition, held: _Held) -> bool:
        return held.is_open and not held.is_announced and self._is_split_off(tp)

    def _gained(self, tp: TopicPartition, held: _Held) -> bool:
        told_of = held.gone if held.is_limited else held.gains
        return bool(told_of) and (held.is_open or not self._is_split_off(tp))

    def _is_split_off(self, tp: TopicPartition) -> bool:
        topic = self._topics.get(tp.topic)
        return topic is not None and topic.ordered_delivery and tp.partition >= topic.initial_partition_count

    # ------------------------------------------------------------ evaluation

    def evaluate(self) -> None:
        """Decide anew about the topics of which something was heard."""
        dirty, self._dirty = self._dirty, {}
        self.version += 1
        by_topic: dict[str, list[tuple[TopicPartition, _Held]]] = {name: [] for name in dirty if name in self._topics}
        for tp, held in self._held.items():
            if tp.topic in by_topic:
                by_topic[tp.topic].append((tp, held))
        for name, partitions in by_topic.items():
            self._questions[name] = questions = Questions()
            topic = self._topics[name]
            for tp, held in partitions:
                self._evaluate(topic, tp, held, questions)
        self._recheck = False

    def _evaluate(self, topic: TopicInfo, tp: TopicPartition, held: _Held, ask: Questions) -> None:
        if not topic.ordered_delivery:
            held.barriers = ()
            return
        info = topic.partitions.get(tp.partition)
        if info is None or info.incarnation != held.incarnation:
            # Removed, or created again: what was found out is about another partition. What the user has of it is not.
            was_announced = held.was_announced or held.is_announced
            held = self._held[tp] = _Held(info.incarnation if info is not None else -1)
            held.was_announced = was_announced
            if info is None:
                return
            held.seen = _Seen.at_the_load(topic)
        created = self._creation(topic, tp.partition, held, ask)
        if created and held.is_open:
            held.was_announced = held.was_announced or held.is_announced
            held.is_announced = False
        held.is_open = not created
        merged = self._deletion(topic, tp.partition, held, ask)
        held.barriers = (*created, *merged)
        if not any(barrier.missing is Missing.MAP for barrier in merged):
            if held.seen.layout_version >= 0 and self._may_have_missed_a_merge(topic, tp.partition, held.seen):
                held.epoch_before_gains = min(
                    held.evaluated_epoch, held.epoch_before_gains if held.gains or held.is_limited else NO_LIMIT
                )
                unseen = (_UNSEEN, topic.layout_version)
                held.gains.add(unseen)
                held.gone.add(unseen)
            held.evaluated_epoch = info.leader_epoch
            undeleted = topic.undeleted_partition_count
            held.seen = _Seen(topic.layout_version, undeleted, undeleted)

    @staticmethod
    def _may_have_missed_a_merge(topic: TopicInfo, p: int, seen: _Seen) -> bool:
        """Whether keys may have come to ``p`` from partitions that were never seen marked, and are gone.

        The group has processed them, or nothing would have been removed; the user is to be told of their keys all the
        same, before the first batch since.
        """
        initial, undeleted = topic.initial_partition_count, topic.undeleted_partition_count
        if topic.layout_version > seen.layout_version + 1:
            return True  # split and merged again, for all that is known
        if undeleted > seen.undeleted:  # no topic grows before all that was marked is gone
            return bool(marked_descendants(p, initial, seen.undeleted, seen.total))
        return any(q not in topic.partitions for q in marked_descendants(p, initial, undeleted, seen.total))

    def _creation(self, topic: TopicInfo, p: int, held: _Held, ask: Questions) -> list[Barrier]:
        found = []
        for q in chain(p, topic.initial_partition_count):
            barrier = self._creation_barrier(topic, q, held.is_open, ask)
            if barrier is not None:
                found.append(barrier)
        return found

    def _creation_barrier(self, topic: TopicInfo, q: int, was_open: bool, ask: Questions) -> Barrier | None:
        """What the split of ``q`` still waits for. Of one that was passed only a lower position is news."""
        kind, tp = BarrierKind.CREATION, TopicPartition(topic.name, q)
        known = self._map(topic, q)
        if known is None or known.created_from < 0 or known.epoch_after_creation < 0:
            if was_open:
                return None
            self._ask_map(topic, q, ask)
            return Barrier(kind, q, tp, Missing.MAP)
        source, epoch = TopicPartition(topic.name, known.created_from), known.epoch_after_creation
        info = topic.partitions.get(source.partition)
        if info is None:
            return None if was_open else Barrier(kind, q, source, Missing.LEADER_EPOCH)
        ask.positions[source] = info.incarnation
        position = self._offset_of(self._positions, source, info)
        incarnation, asked_epoch, end = self._end_offsets.get((source, epoch), (-1, -1, -1))
        is_current = incarnation == info.incarnation and asked_epoch == info.leader_epoch
        if was_open:
            went_back = 0 <= position < end and incarnation == info.incarnation
            passed = not went_back or self._log_start_passed(source, info, end, ask)
            return None if passed else Barrier(kind, q, source, Missing.POSITION, position, end)
        if info.leader_epoch <= epoch:
            ask.metadata[topic.name] = None  # the end of the current epoch still moves
            return Barrier(kind, q, source, Missing.LEADER_EPOCH, position)
        if not is_current or self._recheck:
            ask.end_offsets[source, epoch] = None
        if not is_current:
            return Barrier(kind, q, source, Missing.END_OFFSET, position)
        if position >= end or self._log_start_passed(source, info, end, ask):
            return None
        return Barrier(kind, q, source, Missing.POSITION, position, end)

    def _deletion(self, topic: TopicInfo, p: int, held: _Held, ask: Questions) -> list[Barrier]:
        """What the partitions that are merged still hold back, and from which leader epoch on.

        While a map is missing nothing changes: the partition goes on by what was decided before. A partition that is
        marked itself still waits for what an earlier merge brought it.
        """
        undeleted = topic.undeleted_partition_count
        marked = marked_descendants(p, topic.initial_partition_count, undeleted, len(topic.partitions))
        if not marked:
            held.is_limited = False
            return []
        maps: dict[_Lifetime, PartitionMap] = {}
        unknown: list[Barrier] = []
        for q in marked:
            known = self._map(topic, q)
            if known is None or known.merged_into < 0 or known.epoch_before_deletion < 0:
                self._ask_map(topic, q, ask)
                unknown.append(Barrier(BarrierKind.DELETION, q, TopicPartition(topic.name, q), Missing.MAP))
            else:
                maps[q, known.incarnation] = known
        if unknown:
            return unknown
        gained = {key: known.epoch_before_deletion for key, known in maps.items() if known.merged_into == p}
        if not gained:
            held.is_limited = False
            return []
        held.passed &= maps.keys()
        before = set(held.passed)
        # Every marked descendant counts, also one that was merged into another survivor.
        found = [b for q, _ in maps if (b := self._deletion_barrier(topic, q, held, ask)) is not None]
        held.announced_gains &= gained.keys()
        if before - held.passed and held.announced_gains:
            held.was_announced = True
            held.announced_gains = set()
        # A merge that was passed stays passed when another one follows.
        pending = gained.keys() - held.announced_gains
        lowest = min((gained[key] for key in pending), default=NO_LIMIT)
        held.gone = held.gains - gained.keys()
        # What is gone keeps its limit until the user was told, in this round: its keys wait for the callback.
        held.epoch_before_gains = min(lowest, held.epoch_before_gains) if held.gone else lowest
        held.gains = held.gone | pending
        held.is_limited = bool(found and pending)
        return found if pending else []

    def _deletion_barrier(self, topic: TopicInfo, q: int, held: _Held, ask: Questions) -> Barrier | None:
        """What the merge of ``q``, of which the map is known, still waits for."""
        kind, tp, info = BarrierKind.DELETION, TopicPartition(topic.name, q), topic.partitions[q]
        known, version = self._maps[tp]
        end, key = known.sealed_offset, (q, known.incarnation)
        ask.positions[tp] = info.incarnation
        position = self._offset_of(self._positions, tp, info)
        if end < 0 or self._recheck or version != self._map_version(topic, q, known):
            self._ask_map(topic, q, ask)
        if end < 0:
            return Barrier(kind, q, tp, Missing.SEALED_OFFSET, position)
        if key in held.passed and not 0 <= position < end:
            return None
        if position >= end or self._log_start_passed(tp, info, end, ask):
            held.passed.add(key)
            return None
        held.passed.discard(key)
        return Barrier(kind, q, tp, Missing.POSITION, position, end)

    # ------------------------------------------------------------ facts

    def _info(self, tp: TopicPartition) -> PartitionInfo | None:
        topic = self._topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic is not None else None

    def _map(self, topic: TopicInfo, p: int) -> PartitionMap | None:
        """The map of the incarnation that the metadata names."""
        known = self._maps.get(TopicPartition(topic.name, p))
        info = topic.partitions.get(p)
        if known is None or info is None or known[0].incarnation != info.incarnation:
            return None
        return known[0]

    @staticmethod
    def _map_version(topic: TopicInfo, p: int, answer: PartitionMap) -> _MapVersion:
        survivor = topic.partitions.get(answer.merged_into)
        own = topic.partitions.get(p)
        return (
            topic.layout_version,
            own.leader_epoch if own is not None else -1,
            survivor.leader_epoch if survivor is not None else -1,
        )

    @staticmethod
    def _ask_map(topic: TopicInfo, p: int, ask: Questions) -> None:
        info = topic.partitions.get(p)
        if info is None or info.incarnation < 0:
            ask.metadata[topic.name] = None
        else:
            ask.maps[TopicPartition(topic.name, p)] = info.incarnation

    @staticmethod
    def _offset_of(facts: Mapping[TopicPartition, tuple[int, int]], tp: TopicPartition, info: PartitionInfo) -> int:
        incarnation, offset = facts.get(tp, (-1, -1))
        return offset if incarnation == info.incarnation else -1

    def _log_start_passed(self, tp: TopicPartition, info: PartitionInfo, end: int, ask: Questions) -> bool:
        """Whether retention removed all that was waited for. Asked for once, then at each recheck.

        Not while a member, or this one, has the partition: what it fetched of it or did not flush comes first.
        """
        if end > 0 and (tp in self._held or (self._owners_awaited and tp not in self._unowned)):
            return False
        start = self._offset_of(self._log_starts, tp, info)
        if start >= end:
            return True
        if start < 0 or self._recheck:
            ask.log_starts[tp] = None
        return False
