"""How far the leader of a partition answers consumers that do not keep the order of keys themselves.

Such a consumer has no gate (``ordered.delivery.legacy.consumers=hold``). Its leader serves batches up to a cap: the
leader epoch below the first entry that is not satisfied for every group that reads the topic. A group's position is
what its coordinator told last, and each answer replaces the one before it: a group that is not in it is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from ordered_resize import lineage
from ordered_resize.facts import Facts, is_over

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


class Requirements:
    """What partitions wait for, in any of their entries, directly or not: worked out once for given lineages.

    A *pair* is a partition and a leader epoch up to whose end it is to be processed. What is over is none.
    """

    __slots__ = ("_named_by", "epochs", "partitions")

    def __init__(self, known: Facts, partitions: Iterable[int]) -> None:
        self.partitions = tuple(partitions)
        self._named_by: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """The partitions, and epochs of their entries, that name a pair."""
        self.epochs: dict[int, list[int]] = {}
        """The leader epochs of the pairs, by partition."""
        followed: dict[int, int] = {}
        todo = [(p, lineage.EVERY_EPOCH) for p in self.partitions]
        while todo:
            q, up_to = todo.pop()
            above, own = followed.get(q, lineage.NO_EPOCH), known.lineages.get(q)
            if own is None or up_to <= above:
                continue
            followed[q] = up_to
            for entry in lineage.behind(own, above, up_to):
                for pair in entry.losers.items():
                    if is_over(known, *pair):
                        continue
                    if pair not in self._named_by:
                        self._named_by[pair] = []
                        self.epochs.setdefault(pair[0], []).append(pair[1])
                        todo.append(pair)
                    self._named_by[pair].append((q, entry.epoch))

    def obstacles(self, known: Facts, readers: Iterable[Reader]) -> list[Obstacle]:
        """The pairs that each group has not processed. ``known`` has ends and log starts; it is not changed."""
        found = []
        for reader in readers:
            facts = _facts_of(known, reader)
            found += [
                Obstacle(reader.group, reader.life, q, f)
                for q, f in self._named_by
                if not lineage.is_satisfied(facts, q, f)
            ]
        return found

    def caps(self, known: Facts, obstacles: Iterable[Obstacle]) -> dict[int, int]:
        """The highest leader epoch of each partition that is served while these are waited for; -1: none.

        A batch of an epoch above the lineage's is not served whoever reads.
        """
        lowest: dict[int, int] = {}
        missing = {(o.partition, o.epoch) for o in obstacles}
        todo = list(missing)
        while todo:
            for p, epoch in self._named_by[todo.pop()]:
                if epoch >= lowest.get(p, lineage.EVERY_EPOCH):
                    continue
                lowest[p] = epoch
                waiting = {(p, f) for f in self.epochs.get(p, ()) if f >= epoch} - missing
                missing |= waiting
                todo += waiting
        return {
            p: lowest[p] - 1 if p in lowest else known.lineages[p].as_of if p in known.lineages else -1
            for p in self.partitions
        }


def _facts_of(known: Facts, reader: Reader) -> Facts:
    facts = Facts()
    facts.lineages, facts.ends, facts.log_starts = known.lineages, known.ends, known.log_starts
    facts.positions = dict(reader.positions)
    facts.unowned = set(known.log_starts) - reader.reporting
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
