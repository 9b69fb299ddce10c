"""Decides which records a leader withholds from stock consumers, and when it lets them go. No IO, no clock.

A stock consumer has no gate. If the topic has ``ordered.delivery.stock.consumers=withhold``, the leader serves such a
consumer no batch of a leader epoch above the cap. An entry of the lineage counts once it is satisfied for every group
that reads the topic. The cap is just below the first entry that does not count. ``progress`` decides which groups are
waited for. A wait that lasts too long ends.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from anabranch.ordered_resize import earlier_records, lineage
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.facts import Facts, Lineage, is_over
from anabranch.ordered_resize.progress import ANY_GROUP, Pair, Reader, ReadProgress
from anabranch.protocol.sentinels import NO_EPOCH

K = TypeVar("K", bound=Hashable)


class StockCap(NamedTuple):
    """The highest leader epoch whose batches stock consumers get.

    Until ``fresh_until`` (monotonic seconds) the cap is ``while_fresh``, which was computed from answers about the
    groups. After ``fresh_until`` another group may begin to read, so the cap is ``at_least``, which is right for every
    group.
    """

    while_fresh: int
    fresh_until: float
    at_least: int

    def at(self, now: float) -> int:
        return self.while_fresh if now < self.fresh_until else self.at_least


NOTHING: Final = StockCap(-1, -math.inf, -1)
"""The cap of a leader that has no facts yet."""


class Requirements:
    """For given lineages: the pairs for which partitions wait in any of their entries, directly or indirectly.

    Removed partitions are in no pair.
    """

    __slots__ = ("_named_by", "epochs", "partitions")

    def __init__(self, known: Facts, partitions: Iterable[int]) -> None:
        self.partitions = tuple(partitions)
        self._named_by: dict[Pair, list[tuple[int, int]]] = {}
        """By pair, the partitions that name the pair and the epochs of their entries."""
        self.epochs: dict[int, list[int]] = {}
        """By partition, the leader epochs of its pairs."""
        followed: dict[int, int] = {}
        todo = [Pair(p, lineage.EVERY_EPOCH) for p in self.partitions]
        while todo:
            q, up_to = todo.pop()
            above, own = followed.get(q, lineage.BELOW_EVERY_EPOCH), known.lineages.get(q)
            if own is None or up_to <= above:
                continue
            followed[q] = up_to
            for entry in earlier_records.behind(own, above, up_to):
                for pair in map(Pair._make, entry.losers.items()):
                    if is_over(known, *pair):
                        continue
                    if pair not in self._named_by:
                        self._named_by[pair] = []
                        self.epochs.setdefault(pair[0], []).append(pair[1])
                        todo.append(pair)
                    self._named_by[pair].append((q, entry.epoch))

    @property
    def pairs(self) -> Collection[Pair]:
        return self._named_by.keys()

    def waits(self, progress: ReadProgress) -> list[Wait]:
        """The waits for groups that are not done with a pair."""
        return [wait for pair in self._named_by for wait in progress.waits(pair)]

    def caps(self, known: Facts, waits: Iterable[Wait]) -> dict[int, int]:
        """By partition, the highest leader epoch that is served during these waits; -1: none.

        Batches of epochs above the lineage's ``as_of`` are served to no reader.
        """
        lowest: dict[int, int] = {}
        missing = {Pair(wait.on, wait.epoch) for wait in waits}
        todo = list(missing)
        while todo:
            for p, epoch in self._named_by[todo.pop()]:
                if epoch >= lowest.get(p, lineage.EVERY_EPOCH):
                    continue
                lowest[p] = epoch
                waiting = {Pair(p, f) for f in self.epochs.get(p, ()) if f >= epoch} - missing
                missing |= waiting
                todo += waiting
        return {
            p: lowest[p] - 1 if p in lowest else known.lineages[p].as_of if p in known.lineages else -1
            for p in self.partitions
        }


class Patience(Generic[K]):
    """Remembers when each wait began, and which waits have lasted too long."""

    __slots__ = ("_since", "released")

    def __init__(self) -> None:
        self._since: dict[K, float] = {}
        self.released: set[K] = set()
        """The present waits that have lasted too long."""

    def look(self, waits: Collection[K], now: float, limit_s: float) -> list[K]:
        """Set the present waits. Returns the waits that this call releases, in order."""
        self._since = {wait: self._since.get(wait, now) for wait in waits}
        over = {wait for wait, since in self._since.items() if now - since >= limit_s}
        found = [wait for wait in self._since if wait in over - self.released]
        self.released = over
        return found

    def since(self, wait: K) -> float:
        """The time when a present wait began; ``wait`` was given to the last ``look``."""
        return self._since[wait]


class CoordinatorAnswer(NamedTuple):
    """One broker's answer with the groups that it coordinates. Times are monotonic seconds."""

    as_of: Mapping[int, float]
    """For each partition of the offsets topic, the time until which the broker surely was the only leader.
    A later leader may have other groups."""
    readers: tuple[Reader, ...]


class WithholdLimits(NamedTuple):
    """The greatest allowed age of an answer, and the longest wait for one group and one epoch."""

    lease_s: float
    max_withhold_s: float


class WithholdDecision(NamedTuple):
    """The limit up to which each partition is served, and the waits that end because they lasted too long."""

    caps: dict[int, StockCap]
    let_go: list[Wait]
    coordinators_let_go: list[int]
    """Partitions of the offsets topic whose coordinators do not answer. Nothing waits for their groups."""


class WithholdWait(NamedTuple):
    """A wait of one partition for a group, as DescribeWithheld shows it."""

    wait: Wait
    waited_s: float
    is_let_go: bool


class WithheldTopic:
    """The facts and waits of one incarnation of a topic."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.facts = Facts()
        self.asked_under: dict[int, int] = {}
        """For each partition, the leader epoch in which its ends were answered. A later leader may have lower ends."""
        self.answers: dict[int, CoordinatorAnswer] = {}
        """The coordinators' answers by broker."""
        self.waits: list[Wait] = []
        """The waits for groups that have not processed what the led partitions name."""
        self._requirements: tuple[tuple[int, tuple[int, ...]], Requirements] | None = None
        self._groups = Patience[tuple[str, int, int, int]]()
        self._coordinators = Patience[int]()

    # ------------------------------------------------------------ questions

    def on_lineage(self, p: int, lineage: Lineage | None, over: int) -> None:
        """Store an answer of 25301. A lineage changes with the leader epoch, or when a partition is removed."""
        known = self.facts.lineages.get(p)
        is_same = known is None if lineage is None else known is not None and known[:2] == lineage[:2]
        if not is_same or over > self.facts.over.get(p, NO_EPOCH):
            self.facts.on_lineage(p, lineage, over)

    def requirements(self, led: Iterable[int]) -> Requirements:
        """The pairs of partition and epoch that the led partitions wait for, or may wait for."""
        of = (self.facts.lineage_version, tuple(led))
        if self._requirements is None or self._requirements[0] != of:
            self._requirements = of, Requirements(self.facts, led)
        return self._requirements[1]

    def ends_to_ask(
        self, named: Mapping[int, Collection[int]], leader_epochs: Mapping[int, int]
    ) -> dict[int, set[int]]:
        """Epochs whose end is unknown, or known only from an earlier leader. The present epoch's end still moves."""
        found = {}
        for q, epochs in named.items():
            leads = leader_epochs.get(q, NO_EPOCH)
            known = self.facts.ends.get(q, {}) if self.asked_under.get(q) == leads else {}
            if missing := {f for f in epochs if f < leads and f not in known}:
                found[q] = missing
        return found

    def on_ends(self, q: int, leader_epoch: int, ends: Mapping[int, int]) -> None:
        """Store the ends that the leader of ``leader_epoch`` returned. Other known ends stay."""
        self.asked_under[q] = leader_epoch
        for epoch, end_offset in ends.items():
            self.facts.on_end(q, epoch, end_offset)

    def is_open_to_any_group(self, led: Collection[int]) -> bool:
        """Whether the led partitions wait for no group, not even for a future group."""
        if any(p not in self.facts.lineages for p in led):
            return False
        return not self.requirements(led).waits(ReadProgress(self.facts, [ANY_GROUP]))

    # ------------------------------------------------------------ decisions

    def decide(
        self, led: Collection[int], offsets_partitions: int, now: float, limits: WithholdLimits
    ) -> WithholdDecision:
        """Decide the limit up to which each led partition is served until the next decision."""
        requirements = self.requirements(led)
        of_any_group = requirements.waits(ReadProgress(self.facts, [ANY_GROUP]))
        at_least = requirements.caps(self.facts, of_any_group)
        self.answers = {b: answer for b, answer in self.answers.items() if _is_fresh(answer, now, limits)}
        asked_at: dict[int, float] = {}
        for answer in self.answers.values():
            for k, as_of in answer.as_of.items():
                if now < as_of + limits.lease_s:
                    asked_at[k] = max(as_of, asked_at.get(k, -math.inf))
        silent = [k for k in range(offsets_partitions) if k not in asked_at]
        coordinators_let_go = self._coordinators.look(silent, now, limits.max_withhold_s)
        readers = [reader for answer in self.answers.values() for reader in answer.readers]
        self.waits = requirements.waits(ReadProgress(self.facts, readers))
        by_key = {wait.key: wait for wait in self.waits}
        let_go = [by_key[key] for key in self._groups.look(by_key, now, limits.max_withhold_s)]
        waits = [wait for wait in self.waits if wait.key not in self._groups.released]
        if set(silent) - self._coordinators.released:
            waits += of_any_group
        caps = requirements.caps(self.facts, waits)
        fresh_until = min(asked_at.values(), default=now) + limits.lease_s
        return WithholdDecision(
            {p: StockCap(caps[p], fresh_until, at_least[p]) for p in caps}, let_go, coordinators_let_go
        )

    def since(self, wait: Wait) -> float:
        """The time when one of ``waits`` began."""
        return self._groups.since(wait.key)

    def waits_of(self, p: int, now: float) -> list[WithholdWait]:
        """The waits of one partition, for all partitions and epochs that it names, sorted by awaited partition."""
        named = Requirements(self.facts, [p]).pairs
        found = [wait for wait in self.waits if (wait.on, wait.epoch) in named]
        return [
            WithholdWait(wait, now - self.since(wait), wait.key in self._groups.released)
            for wait in sorted(found, key=lambda wait: (wait.on, wait.epoch, wait.group))
        ]


def _is_fresh(answer: CoordinatorAnswer, now: float, limits: WithholdLimits) -> bool:
    return any(now < as_of + limits.lease_s for as_of in answer.as_of.values())
