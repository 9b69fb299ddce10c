"""Lineages after a history of resizes, computed without the package under test. A resize is one step."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field

from hypothesis import strategies as st


def nearest_ancestor(p: int, initial: int, below: int) -> int:
    while p >= below:
        step = initial
        while step * 2 <= p:
            step *= 2
        p -= step
    return p


@dataclass
class Part:
    epoch: int = 0
    entries: list[tuple[int, dict[int, int]]] = field(default_factory=list)


@dataclass
class History:
    """Leader epochs, unpruned lineages and removed partitions of a topic with ``count`` partitions."""

    initial: int
    count: int
    parts: dict[int, Part] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)

    @classmethod
    def new(cls, initial: int) -> History:
        return cls(initial, initial, {p: Part() for p in range(initial)})

    def copy(self) -> History:
        parts = {p: Part(part.epoch, list(part.entries)) for p, part in self.parts.items()}
        return dataclasses.replace(self, parts=parts, over=copy.copy(self.over))

    def resize(self, count: int) -> None:
        before, self.count = self.count, count
        losers_of: dict[int, list[int]] = {}
        for p in range(before, count):
            losers_of[p] = [nearest_ancestor(p, self.initial, before)]
        for p in range(count, before):
            losers_of.setdefault(nearest_ancestor(p, self.initial, count), []).append(p)
        last = {p: part.epoch for p, part in self.parts.items()}
        for p in {*range(count), *range(before)} & self.parts.keys():
            self.parts[p].epoch += 1
        for p, losers in losers_of.items():
            part = self.parts.setdefault(p, Part(self.over.get(p, -1) + 1))
            part.entries.append((part.epoch, {q: last[q] for q in losers}))

    def elect(self, p: int) -> None:
        self.parts[p].epoch += 1

    def removable(self) -> bool:
        return max(self.parts) >= self.count

    def remove_highest(self) -> int:
        p = max(self.parts)
        self.over[p] = self.parts.pop(p).epoch
        return p


@st.composite
def histories(draw: st.DrawFn) -> list[History]:
    """The states of a topic after each step of a random history."""
    initial = draw(st.integers(1, 3))
    history = History.new(initial)
    taken = [history.copy()]
    for _ in range(draw(st.integers(1, 6))):
        history.resize(draw(st.integers(initial, initial + 7)))
        for _ in range(draw(st.integers(0, 8))):
            if history.removable():
                history.remove_highest()
        for _ in range(draw(st.integers(0, 2))):
            history.elect(draw(st.sampled_from(sorted(history.parts))))
        taken.append(history.copy())
    return taken
