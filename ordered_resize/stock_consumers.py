"""The cap up to which the leader of a partition serves stock consumers (``ordered.delivery.stock.consumers=withhold``).

A stock consumer has no gate. So the leader serves such a consumer no batch of a leader epoch above the cap. An entry of
the lineage counts once it is satisfied for every group that reads the topic. The cap is just below the first entry that
does not count. ``progress`` decides which groups are waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

from anabranch.ordered_resize import earlier_records, lineage
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.facts import Facts, is_over
from anabranch.ordered_resize.progress import Pair, ReadProgress

K = TypeVar("K", bound=Hashable)


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
