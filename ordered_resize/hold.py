"""The cap up to which the leader of a partition serves stock consumers (``ordered.delivery.stock.consumers=withhold``).

A stock consumer has no gate. So the leader serves such a consumer no batch of a leader epoch above the cap. An entry of
the lineage counts once it is satisfied for every group that reads the topic. The cap is just below the first entry that
does not count. A group's position comes from the last answer of its coordinator. Each answer replaces the coordinator's
previous answer, and a group that the new answer does not name is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from anabranch.ordered_resize import lineage
from anabranch.ordered_resize.facts import Facts, is_over

K = TypeVar("K", bound=Hashable)


class Reader(NamedTuple):
    """A group that reads the topic, from its coordinator's answer."""

    group: str
    life: int = 0
    """Distinguishes the group from a deleted group of the same name."""
    positions: Mapping[int, int] = {}
    """The group's position by partition. A group without a position reads the partition's log from its start."""
    reporting: frozenset[int] = frozenset()
    """Partitions whose owner reports positions. The log start of these partitions does not count as a position."""


ANY_GROUP: Final = Reader("")
"""A group without any position. If an entry is satisfied for it, then for every group, even a future one."""


class Obstacle(NamedTuple):
    """A group that has not processed ``partition`` up to the end of ``epoch``. Another partition waits for this."""

    group: str
    life: int
    partition: int
    epoch: int


class Requirements:
    """For given lineages: the pairs for which partitions wait in any of their entries, directly or indirectly.

    A *pair* is a partition and a leader epoch; the partition has to be processed up to the end of that epoch. Removed
    partitions are in no pair.
    """

    __slots__ = ("_named_by", "epochs", "partitions")

    def __init__(self, known: Facts, partitions: Iterable[int]) -> None:
        self.partitions = tuple(partitions)
        self._named_by: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """By pair, the partitions that name the pair and the epochs of their entries."""
        self.epochs: dict[int, list[int]] = {}
        """By partition, the leader epochs of its pairs."""
        followed: dict[int, int] = {}
        todo = [(p, lineage.EVERY_EPOCH) for p in self.partitions]
        while todo:
            q, up_to = todo.pop()
            above, own = followed.get(q, lineage.BELOW_EVERY_EPOCH), known.lineages.get(q)
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
        """The pairs that each group has not processed. ``known`` has ends and log starts, and is not changed."""
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
        """By partition, the highest leader epoch that is served while these obstacles exist; -1: none.

        Batches of epochs above the lineage's ``as_of`` are served to no reader.
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
