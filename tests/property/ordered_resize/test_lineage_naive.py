"""Compares the package with the plain recursion of the design, on lineages of random resizes and arbitrary facts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.ordered_resize import earlier_records
from anabranch.ordered_resize.facts import Facts, Lineage
from anabranch.zk_schemas.partition_state import LineageEntry
from tests.support.resize.resize_histories import History, histories

Data = st.DataObject


class Naive:
    """Facts in plain dictionaries. Every decision is computed from scratch."""

    def __init__(self) -> None:
        self.lineage: dict[int, tuple[int, list[tuple[int, dict[int, int]]]]] = {}
        self.over: dict[int, int] = {}
        self.ends: dict[tuple[int, int], int] = {}
        self.position: dict[int, int] = {}
        self.start: dict[int, int] = {}
        self.unowned: set[int] = set()

    def satisfied(self, q: int, f: int) -> bool:
        if self.over.get(q, -1) >= f:
            return True
        if q not in self.lineage or self.lineage[q][0] < f:
            return False
        reached = self.position.get(q, -1)
        if q in self.unowned:
            reached = max(reached, self.start.get(q, -1))
        if not any(reached >= end for (r, g), end in self.ends.items() if r == q and g >= f):
            return False
        return all(self.satisfied(r, g) for e, losers in self.lineage[q][1] if e <= f for r, g in losers.items())

    def may_deliver(self, p: int, b: int) -> bool:
        if p not in self.lineage or self.lineage[p][0] < b:
            return False
        return all(self.satisfied(q, f) for e, losers in self.lineage[p][1] if e <= b for q, f in losers.items())


def read(naive: Naive, facts: Facts, history: History, p: int) -> None:
    """Give both implementations the response to request 25301 for a partition in this state of the topic."""
    over, part = history.over.get(p, -1), history.parts.get(p)
    naive.over[p] = max(over, naive.over.get(p, -1))
    answer = None
    if part is not None:
        answer = Lineage(part.epoch, -1, tuple(LineageEntry(e, losers) for e, losers in part.entries))
        if p not in naive.lineage or naive.lineage[p][0] <= part.epoch:
            naive.lineage[p] = (part.epoch, part.entries)
    facts.on_lineage(p, answer, over)


def compare(naive: Naive, facts: Facts, numbers: set[int]) -> None:
    for p in sorted(numbers):
        for b in range(naive.lineage.get(p, (0,))[0] + 2):
            assert earlier_records.may_deliver(facts, p, b) == naive.may_deliver(p, b), (p, b)


@settings(max_examples=150)
@given(histories(), st.data())
def test_facts_of_any_kind_and_age_lead_to_the_same_decision_as_the_plain_recursion(
    taken: list[History], data: Data
) -> None:
    naive, facts = Naive(), Facts()
    numbers = set().union(*(history.parts for history in taken))
    for p in sorted(numbers):
        if data.draw(st.integers(0, 9)):
            read(naive, facts, data.draw(st.sampled_from([*taken, taken[-1], taken[-1], taken[-1]])), p)
        if data.draw(st.booleans()):
            naive.start[p] = data.draw(st.integers(0, 6))
            naive.unowned.add(p)
            facts.on_log_start(p, naive.start[p])
            facts.on_owner(p, is_owned=False)
        if (position := data.draw(st.integers(-1, 40))) >= 0:
            naive.position[p] = position
            facts.on_position(p, position)
        for e in range(8):
            if data.draw(st.integers(0, 9)):
                naive.ends[p, e] = e + 1
                facts.on_end(p, e, e + 1)
    compare(naive, facts, numbers)


@settings(max_examples=100)
@given(histories(), st.data())
def test_rising_and_falling_positions_lead_to_the_same_decision_as_the_plain_recursion(
    taken: list[History], data: Data
) -> None:
    """After positions rise and fall, incremental decisions equal recomputed ones. All ends are reported repeatedly."""
    naive, facts = Naive(), Facts()
    history = taken[-1]
    numbers = sorted(history.parts)
    for p in range(16):
        read(naive, facts, history, p)
        naive.ends |= {(p, e): e + 1 for e in range(12)}
        for e in range(12):
            facts.on_end(p, e, e + 1)
        naive.position[p] = 12
        facts.on_position(p, 12)
    compare(naive, facts, set(numbers))
    for _ in range(data.draw(st.integers(1, 15))):
        p = data.draw(st.sampled_from(numbers))
        naive.position[p] = data.draw(st.sampled_from([*range(13), *[12] * 13]))
        facts.on_position(p, naive.position[p])
        for (q, e), end in naive.ends.items():
            facts.on_end(q, e, end)
        compare(naive, facts, set(numbers))
