"""Computes the end of a micro-batch from the known facts about the topics and from the micro-batch's begin. Pure.

A partition is read past the first leader epoch of a lineage entry only when the micro-batch **begins** at or after
everything that the entry requires (``ordered_resize.lineage``). So the records of the old partition are in an earlier
micro-batch than the records of the new partition. Within a micro-batch all records of a key are in one partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from anabranch.ordered_resize import earlier_records, lineage
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.facts import Facts, Lineage, is_fresh, is_over, is_processed
from anabranch.protocol.sentinels import NO_EPOCH

K = TypeVar("K")


class Latest(NamedTuple):
    """The end of a partition for readers, requested from its leader before the lineages were read."""

    offset: int
    leader_epoch: int = NO_EPOCH
    """The leader's epoch: no record below ``offset`` has a higher one."""


@dataclass(slots=True)
class View:
    """The known facts of one topic. A partition with missing facts keeps its position."""

    is_ordered: bool = True
    """Whether keys move between partitions in order (enable.ordered.delivery); if not, no partition waits."""
    latest: dict[int, Latest] = field(default_factory=dict)
    lineages: dict[int, Lineage] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    """The last leader epoch of each partition number that was ever removed."""
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    """The exclusive end of a leader epoch, by partition and epoch."""
    ignored: frozenset[int] = frozenset()
    """Unassigned partitions for which no partition waits: the query keeps no order with regard to these partitions."""


class MissingFacts(NamedTuple):
    """The missing facts: partitions whose lineage is not known up to an epoch, and epochs whose end is not known."""

    lineages: dict[int, int]
    ends: set[tuple[int, int]]

    def __bool__(self) -> bool:
        return bool(self.lineages or self.ends)


def reach(view: View, start: Mapping[int, int]) -> dict[int, int]:
    """The offsets up to which a micro-batch may read the partitions of ``start``, without a limit."""
    facts = _facts(view, start)
    return {p: max(_reach(view, facts, p, at), at) for p, at in start.items()}


def questions(view: View, start: Mapping[int, int]) -> MissingFacts:
    """The facts to request before ``reach`` is complete."""
    facts = _facts(view, start)
    found = MissingFacts({}, set())
    for p, at in start.items():
        latest = view.latest.get(p)
        if latest is None or latest.offset <= at or not view.is_ordered:
            continue
        known = view.lineages.get(p)
        if known is None or not is_fresh(known, latest.leader_epoch):
            found.lineages[p] = latest.leader_epoch
        elif (top := earlier_records.cap(facts, p)) < known.as_of:
            if top >= 0 and (p, top) not in view.ends:
                found.ends.add((p, top))
            for q, f in _needed(facts, known, top).items():
                _ask(view, facts, q, f, found)
    return found


def waits(view: View, start: Mapping[int, int]) -> list[Wait]:
    """The partitions that wait for others, for messages."""
    facts = _facts(view, start)
    found = []
    for p in sorted(start):
        known = view.lineages.get(p)
        if known is None or (top := earlier_records.cap(facts, p)) >= known.as_of:
            continue
        for q, f in sorted(_needed(facts, known, top).items()):
            if not earlier_records.is_satisfied(facts, q, f):
                found.append(Wait(p, top + 1, q, f, view.ends.get((q, f), -1), start.get(q, -1)))
    return found


def limited(start: Mapping[K, int], reached: Mapping[K, int], limit: int | None) -> dict[K, int]:
    """Share ``limit`` offsets among the partitions in proportion to their available offsets, at least one for each.

    Because of the minimum, partitions with few records progress: other partitions may wait for them.
    """
    there = {key: end - start[key] for key, end in reached.items()}
    total = sum(there.values())
    if limit is None or total <= limit:
        return dict(reached)
    return {key: start[key] + min(count, max(1, limit * count // total)) for key, count in there.items()}


# ---------------------------------------------------------------- facts


def _facts(view: View, start: Mapping[int, int]) -> Facts:
    facts = Facts()
    for p in {*view.lineages, *view.over}:
        facts.on_lineage(p, view.lineages.get(p), view.over.get(p, NO_EPOCH))
    for (q, f), end in view.ends.items():
        facts.on_end(q, f, end)
    for p in view.ignored:
        facts.on_lineage(p, None, lineage.EVERY_EPOCH)
    for p, at in start.items():
        facts.on_position(p, at)
    for p in start:
        earlier_records.pass_satisfied(facts, p)
    return facts


def _reach(view: View, facts: Facts, p: int, at: int) -> int:
    latest = view.latest.get(p)
    if latest is None:
        return at
    if not view.is_ordered:
        return latest.offset
    known = view.lineages.get(p)
    if known is None or not is_fresh(known, latest.leader_epoch):
        return at
    top = earlier_records.cap(facts, p)
    if top >= known.as_of:
        return latest.offset
    return min(latest.offset, view.ends.get((p, top), at))


def _needed(facts: Facts, known: Lineage, top: int) -> dict[int, int]:
    """The partitions and epochs that the first unsatisfied entry requires."""
    losers = next((entry.losers for entry in known.entries if entry.epoch > top), {})
    return earlier_records.required(facts, losers)


def _ask(view: View, facts: Facts, q: int, f: int, found: MissingFacts) -> None:
    known = view.lineages.get(q)
    if known is None or not is_fresh(known, f):
        if not is_over(facts, q, f):
            found.lineages[q] = max(f, found.lineages.get(q, -1))
    elif not is_processed(facts, q, f) and (q, f) not in view.ends:
        found.ends.add((q, f))
