"""Collects facts about a topic with stock consumers, and decides how far they are served. No IO, no clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from anabranch.broker.replication.stock_cap import StockCap
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.facts import Facts, Lineage
from anabranch.ordered_resize.progress import ANY_GROUP, Reader, ReadProgress
from anabranch.ordered_resize.stock_consumers import Patience, Requirements
from anabranch.protocol.sentinels import NO_EPOCH


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
