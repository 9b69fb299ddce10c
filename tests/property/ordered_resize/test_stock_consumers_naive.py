"""The cap for consumers without a gate is compared with the plain recursion of the design."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.ordered_resize.facts import Facts
from anabranch.ordered_resize.progress import ANY_GROUP, Reader, ReadProgress
from anabranch.ordered_resize.withheld_from_stock_consumers import Patience, Requirements
from tests.property.ordered_resize.test_lineage_naive import Naive, read
from tests.support.resize.resize_histories import History, histories

Data = st.DataObject
Key = tuple[str, int, int, int]
"""The key of a wait."""


class Groups(Naive):
    """Several groups that read one topic, each with its positions.

    A partition without a position is read from its beginning.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Reader] = []
        self.released: set[Key] = set()

    def is_past(self, reader: Reader, q: int, f: int) -> bool:
        reached = reader.positions.get(q, 0)
        if q in self.start and q not in reader.reporting:
            reached = max(reached, self.start[q])
        return any(reached >= end for (r, g), end in self.ends.items() if r == q and g >= f)

    def holds(self, reader: Reader, q: int, f: int) -> bool:
        if self.over.get(q, -1) >= f:
            return False
        entries = self.lineage[q][1] if q in self.lineage else []
        is_known = q in self.lineage and self.lineage[q][0] >= f
        if (reader.group, reader.life, q, f) not in self.released and not (is_known and self.is_past(reader, q, f)):
            return True
        return any(self.holds(reader, r, g) for e, losers in entries if e <= f for r, g in losers.items())

    def serves(self, p: int, b: int) -> bool:
        """Whether a batch of leader epoch ``b`` may be served."""
        if p not in self.lineage or self.lineage[p][0] < b:
            return False
        named = [(q, f) for e, losers in self.lineage[p][1] if e <= b for q, f in losers.items()]
        return not any(self.holds(reader, q, f) for reader in self.readers for q, f in named)


def drawn_readers(data: Data, numbers: list[int]) -> list[Reader]:
    readers = []
    for at in range(data.draw(st.integers(0, 3))):
        positions = {
            p: data.draw(st.sampled_from([*range(13), *[12] * 13])) for p in numbers if data.draw(st.booleans())
        }
        reporting = frozenset(p for p in numbers if not data.draw(st.integers(0, 3)))
        readers.append(Reader(f"group{at}", data.draw(st.integers(0, 1)), positions, reporting))
    return readers


def drawn(taken: list[History], data: Data) -> tuple[Groups, Facts]:
    naive, facts = Groups(), Facts()
    for p in sorted(set().union(*(history.parts for history in taken))):
        if data.draw(st.integers(0, 9)):
            read(naive, facts, data.draw(st.sampled_from([*taken, *[taken[-1]] * 3])), p)
        if data.draw(st.booleans()):
            naive.start[p] = data.draw(st.sampled_from([0, 0, 3, 12]))
            facts.on_log_start(p, naive.start[p])
        for e in range(12):
            if data.draw(st.integers(0, 19)):
                naive.ends[p, e] = e + 1
                facts.on_end(p, e, e + 1)
    return naive, facts


@settings(max_examples=200)
@given(histories(), st.data())
def test_batches_are_served_as_by_the_plain_recursion(taken: list[History], data: Data) -> None:
    naive, facts = drawn(taken, data)
    numbers = sorted(set().union(*(history.parts for history in taken)))
    naive.readers = drawn_readers(data, numbers)
    requirements = Requirements(facts, numbers)
    waits = {wait.key: wait for wait in requirements.waits(ReadProgress(facts, naive.readers))}
    for released in (set[Key](), {key for key in waits if data.draw(st.booleans())}, set(waits)):
        naive.released = released
        found = requirements.caps(facts, [wait for key, wait in waits.items() if key not in released])
        for p in numbers:
            for b in range(naive.lineage.get(p, (0,))[0] + 2):
                assert (b <= found[p]) == naive.serves(p, b), (p, b)


@settings(max_examples=100)
@given(histories(), st.data())
def test_without_waits_every_batch_is_served(taken: list[History], data: Data) -> None:
    """A partition is held only if it waits for a group. All lineages and ends are known here."""
    naive, facts = drawn([taken[-1]], data)
    numbers = sorted(taken[-1].parts)
    for p in range(16):
        read(naive, facts, taken[-1], p)
        for e in range(12):
            facts.on_end(p, e, e + 1)
    readers = drawn_readers(data, numbers)
    as_of = {p: taken[-1].parts[p].epoch for p in numbers}
    requirements = Requirements(facts, numbers)
    progress = ReadProgress(facts, readers)
    waits = requirements.waits(progress)
    held = {p for p, cap in requirements.caps(facts, waits).items() if cap < as_of[p]}
    assert held == {p for p in numbers if Requirements(facts, [p]).waits(progress)}
    assert requirements.caps(facts, []) == as_of


@settings(max_examples=100)
@given(histories(), st.data())
def test_the_cap_for_any_group_is_at_most_the_cap_for_the_known_groups(taken: list[History], data: Data) -> None:
    _, facts = drawn(taken, data)
    numbers = sorted(set().union(*(history.parts for history in taken)))
    readers = [reader._replace(reporting=frozenset()) for reader in drawn_readers(data, numbers)]
    requirements = Requirements(facts, numbers)
    to_any_group = requirements.caps(facts, requirements.waits(ReadProgress(facts, [ANY_GROUP])))
    found = requirements.caps(facts, requirements.waits(ReadProgress(facts, readers)))
    assert all(to_any_group[p] <= found[p] for p in numbers)


@given(st.lists(st.tuples(st.sets(st.integers(0, 3)), st.floats(0.1, 4)), max_size=12))
def test_each_wait_is_released_after_its_own_time_limit(looks: list[tuple[set[int], float]]) -> None:
    patience, since, now, released_before = Patience[int](), dict[int, float](), 0.0, set[int]()
    for waits, passes in looks:
        now += passes
        since = {wait: since.get(wait, now) for wait in waits}
        released_before &= waits
        new = patience.look(sorted(waits), now, 5.0)
        assert patience.released == {wait for wait in waits if now - since[wait] >= 5}
        assert set(new) == patience.released - released_before
        released_before |= set(new)
        assert all(patience.since(wait) == since[wait] for wait in waits)
