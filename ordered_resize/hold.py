"""How far the leader of a partition answers consumers that do not keep the order of keys themselves.

Such a consumer has no gate (``ordered.delivery.legacy.consumers=hold``). Its leader serves batches up to a cap: the
leader epoch below the first entry that is not satisfied for every group that reads the topic. A group's position is
what its coordinator told last, and each answer replaces the one before it: a group that is not in it is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from ordered_resize import lineage
from ordered_resize.facts import Facts

K = TypeVar("K", bound=Hashable)


class Reader(NamedTuple):
    """A group that reads the topic, as its coordinator told it."""

    group: str
    life: int = 0
    """Tells it from another group of the name, which was deleted before."""
    positions: Mapping[int, int] = {}
    """Where the group is in a partition; a partition without one is read from the beginning of its log."""
    reporting: frozenset[int] = frozenset()
    """Partitions whose owner alone can tell: that their log begins behind something does not stand for a position."""


ANYBODY: Final = Reader("")
"""A group that nothing is known of. What is satisfied for it is satisfied for every group that may ever come."""


class Obstacle(NamedTuple):
    """A group that has not processed a partition up to the end of a leader epoch, for which others wait."""

    group: str
    life: int
    partition: int
    epoch: int


def caps(
    known: Facts, partitions: Iterable[int], readers: Iterable[Reader], released: Collection[Obstacle] = ()
) -> dict[int, int]:
    """The highest leader epoch of each partition that is served; -1: none. ``released`` counts as processed.

    ``known`` has the lineages, what is over, and the ends and log starts; it is not changed. Without readers nobody is
    waited for: an entry is passed, and a batch of an epoch above the lineage's is still not served.
    """
    found = {p: known.lineages[p].as_of if p in known.lineages else -1 for p in partitions}
    for reader in readers:
        facts = _facts_of(known, reader, released)
        found = {p: min(before, lineage.cap(facts, p)) for p, before in found.items()}
    return found


def obstacles(known: Facts, partitions: Iterable[int], readers: Iterable[Reader]) -> dict[Obstacle, list[int]]:
    """All that the partitions wait for, in any of their entries, and which of them wait for it."""
    found: dict[Obstacle, list[int]] = {}
    named = {p: needed(known, p) for p in partitions}
    for reader in readers:
        facts = _facts_of(known, reader, ())
        for p, epochs in named.items():
            for q, f in epochs:
                if not lineage.is_satisfied(facts, q, f):
                    found.setdefault(Obstacle(reader.group, reader.life, q, f), []).append(p)
    return found


def needed(known: Facts, partition: int) -> list[tuple[int, int]]:
    """The partitions, and epochs of them, that all entries of a partition require; what is over is not in it."""
    own = known.lineages.get(partition)
    found: dict[tuple[int, int], None] = {}
    for entry in own.entries if own is not None else ():
        found.update(dict.fromkeys(lineage.required(known, entry.losers).items()))
    return list(found)


def _facts_of(known: Facts, reader: Reader, released: Collection[Obstacle]) -> Facts:
    facts = Facts()
    facts.lineages, facts.over, facts.log_starts = known.lineages, known.over, known.log_starts
    facts.ends = known.ends
    facts.positions = dict(reader.positions)
    facts.unowned = set(known.log_starts) - reader.reporting
    let_go = [o for o in released if (o.group, o.life) == (reader.group, reader.life)]
    if let_go:
        facts.ends = dict(known.ends)
        for _, _, q, f in let_go:  # as if the epoch had no record: lower epochs of q are counted on their own
            facts.ends[q] = {**facts.ends.get(q, {}), f: 0}
    return facts


class Patience(Generic[K]):
    """What is waited for, since when, and what was waited for too long. Each is counted on its own."""

    __slots__ = ("_since", "released")

    def __init__(self) -> None:
        self._since: dict[K, float] = {}
        self.released: set[K] = set()
        """What is not waited for any more, as long as it is looked at."""

    def look(self, waits: Collection[K], now: float, limit_s: float) -> list[K]:
        """All that is waited for now; returns what is released by this look, in order."""
        self._since = {wait: self._since.get(wait, now) for wait in waits}
        over = {wait for wait, since in self._since.items() if now - since >= limit_s}
        found = [wait for wait in self._since if wait in over - self.released]
        self.released = over
        return found

    def since(self, wait: K) -> float:
        """When it was waited for first; of one that was looked at."""
        return self._since[wait]
