"""What a broker knows of one topic whose stock consumers it holds, and how far it serves them. No IO, no clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from broker.replication.stock_cap import StockCap
from ordered_resize.facts import Facts, Lineage
from ordered_resize.hold import ANYBODY, Obstacle, Patience, Reader, Requirements


class CoordinatorAnswer(NamedTuple):
    """What one broker said of the groups it coordinates. Times are monotonic seconds."""

    as_of: Mapping[int, float]
    """The partitions of the offsets topic whose groups are in it, and until when nobody else led them: another
    coordinator may know of another group."""
    readers: tuple[Reader, ...]


class Limits(NamedTuple):
    """How old an answer may be, and how long one group and one epoch are waited for."""

    lease_s: float
    max_hold_s: float


class Decision(NamedTuple):
    """How far each partition is served, and what is not waited for any more, from now on."""

    caps: dict[int, StockCap]
    let_go: list[Obstacle]
    coordinators_let_go: list[int]
    """Partitions of the offsets topic whose groups nobody tells of."""


class HoldWait(NamedTuple):
    """A group that one partition waits for, to show; -1 where a number is not known."""

    group: str
    on: int
    epoch: int
    end_offset: int
    position: int
    waited_s: float
    is_let_go: bool


class TopicHold:
    """See the module. Another topic of the name has one of its own."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.facts = Facts()
        self.asked_under: dict[int, int] = {}
        """The leader epoch of each partition in which its ends were answered: a later leader may have less."""
        self.answers: dict[int, CoordinatorAnswer] = {}
        """By broker."""
        self.waits: list[Obstacle] = []
        """What groups have still to process for the partitions led here."""
        self._requirements: tuple[tuple[int, tuple[int, ...]], Requirements] | None = None
        self._groups = Patience[Obstacle]()
        self._coordinators = Patience[int]()

    # ------------------------------------------------------------ what is to be asked

    def on_lineage(self, p: int, lineage: Lineage | None, over: int) -> None:
        """25301 was answered. It changes with the leader epoch, or when something is removed."""
        known = self.facts.lineages.get(p)
        is_same = known is None if lineage is None else known is not None and known[:2] == lineage[:2]
        if not is_same or over > self.facts.over.get(p, -1):
            self.facts.on_lineage(p, lineage, over)

    def requirements(self, led: Iterable[int]) -> Requirements:
        """What the partitions led here wait for, or may."""
        of = (self.facts.lineage_version, tuple(led))
        if self._requirements is None or self._requirements[0] != of:
            self._requirements = of, Requirements(self.facts, led)
        return self._requirements[1]

    def ends_to_ask(
        self, named: Mapping[int, Collection[int]], leader_epochs: Mapping[int, int]
    ) -> dict[int, set[int]]:
        """Epochs whose end is not known, or known from an earlier leader. That of the present epoch still moves."""
        found = {}
        for q, epochs in named.items():
            leads = leader_epochs.get(q, -1)
            known = self.facts.ends.get(q, {}) if self.asked_under.get(q) == leads else {}
            if missing := {f for f in epochs if f < leads and f not in known}:
                found[q] = missing
        return found

    def on_ends(self, q: int, leader_epoch: int, ends: Mapping[int, int]) -> None:
        """The leader of ``leader_epoch`` told these. What an earlier one told of others counts until it is asked."""
        self.asked_under[q] = leader_epoch
        for epoch, end_offset in ends.items():
            self.facts.on_end(q, epoch, end_offset)

    def is_open_to_anybody(self, led: Collection[int]) -> bool:
        """Whether no group that exists, or comes, is waited for."""
        if any(p not in self.facts.lineages for p in led):
            return False
        return not self.requirements(led).obstacles(self.facts, [ANYBODY])

    # ------------------------------------------------------------ what is decided

    def decide(self, led: Collection[int], offsets_partitions: int, now: float, limits: Limits) -> Decision:
        """How far the partitions led here are served until something else is known."""
        requirements = self.requirements(led)
        of_anybody = requirements.obstacles(self.facts, [ANYBODY])
        at_least = requirements.caps(self.facts, of_anybody)
        self.answers = {b: answer for b, answer in self.answers.items() if _is_fresh(answer, now, limits)}
        told_at: dict[int, float] = {}
        for answer in self.answers.values():
            for k, as_of in answer.as_of.items():
                if now < as_of + limits.lease_s:
                    told_at[k] = max(as_of, told_at.get(k, -math.inf))
        silent = [k for k in range(offsets_partitions) if k not in told_at]
        coordinators_let_go = self._coordinators.look(silent, now, limits.max_hold_s)
        readers = [reader for answer in self.answers.values() for reader in answer.readers]
        self.waits = requirements.obstacles(self.facts, readers)
        let_go = self._groups.look(self.waits, now, limits.max_hold_s)
        waits = [wait for wait in self.waits if wait not in self._groups.released]
        if set(silent) - self._coordinators.released:
            waits += of_anybody
        caps = requirements.caps(self.facts, waits)
        fresh_until = min(told_at.values(), default=now) + limits.lease_s
        return Decision({p: StockCap(caps[p], fresh_until, at_least[p]) for p in caps}, let_go, coordinators_let_go)

    def since(self, obstacle: Obstacle) -> float:
        """When one of ``waits`` was waited for first."""
        return self._groups.since(obstacle)

    def waits_of(self, p: int, now: float) -> list[HoldWait]:
        """What a partition waits for, in any of its entries, in the order of partitions."""
        readers = [reader for answer in self.answers.values() for reader in answer.readers]
        found = []
        epochs = Requirements(self.facts, [p]).epochs
        for wait in (wait for wait in self.waits if wait.epoch in epochs.get(wait.partition, ())):
            group, life, q, f = wait
            told = [reader for reader in readers if (reader.group, reader.life) == (group, life)]
            positions = [reader.positions.get(q, -1) for reader in told]
            end_offset = self.facts.ends.get(q, {}).get(f, -1)
            is_let_go = wait in self._groups.released
            position = max(positions, default=-1)
            found.append(HoldWait(group, q, f, end_offset, position, now - self.since(wait), is_let_go))
        return sorted(found, key=lambda wait: (wait.on, wait.epoch, wait.group))


def _is_fresh(answer: CoordinatorAnswer, now: float, limits: Limits) -> bool:
    return any(now < as_of + limits.lease_s for as_of in answer.as_of.values())
