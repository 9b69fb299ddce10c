"""The decisions that wait for groups are compared with their rules, group by group and record by record."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.ordered_resize.facts import Facts
from anabranch.ordered_resize.progress import Pair, Reader, ReadProgress, retained_from
from anabranch.ordered_resize.removal import drain_wait, removal_wait
from tests.property.ordered_resize.test_stock_consumers_naive import drawn
from tests.support.resize.resize_histories import History, histories

Data = st.DataObject


def drawn_readers(data: Data, numbers: list[int]) -> list[Reader]:
    offsets = st.dictionaries(st.sampled_from(numbers), st.integers(0, 13))
    return [
        Reader(
            f"group{at}",
            positions=data.draw(offsets),
            reporting=frozenset(data.draw(st.sets(st.sampled_from(numbers)))),
            commits=data.draw(offsets),
            is_reading=data.draw(st.booleans()),
            has_committed=data.draw(st.booleans()),
            is_settled=bool(data.draw(st.integers(0, 5))),
            missing=data.draw(st.sampled_from(["", "a fact"])),
        )
        for at in range(data.draw(st.integers(0, 3)))
    ]


class Case:
    """Groups that read a topic, and a pair of that topic."""

    def __init__(self, taken: list[History], data: Data) -> None:
        self.naive, self.facts = drawn(taken, data)
        numbers = sorted(set().union(*(history.parts for history in taken)))
        self.readers = drawn_readers(data, numbers)
        self.pair = Pair(data.draw(st.sampled_from(numbers)), data.draw(st.integers(0, 11)))
        self.progress = ReadProgress(self.facts, self.readers)

    @property
    def is_known(self) -> bool:
        q, f = self.pair
        return q in self.naive.lineage and self.naive.lineage[q][0] >= f

    def is_processed(self, reader: Reader) -> bool:
        return self.is_known and self.naive.is_past(reader, *self.pair)

    def is_committed(self, reader: Reader) -> bool:
        return self.is_known and self.naive.is_past(Reader("", positions=reader.commits), *self.pair)

    def unread(self, reader: Reader) -> set[int]:
        """The awaited offsets that exist and that the group has not committed."""
        start = max(self.naive.start.get(self.pair.partition, 0), reader.commits.get(self.pair.partition, 0))
        return set(range(start, self.naive.ends[self.pair]))


@settings(max_examples=300)
@given(histories(), st.data())
def test_a_partition_is_drained_when_each_group_has_committed_and_processed_it(
    taken: list[History], data: Data
) -> None:
    case = Case(taken, data)
    late = {r.group for r in case.readers if not (r.is_settled and case.is_committed(r) and case.is_processed(r))}
    wait = drain_wait(case.progress, case.pair)
    assert (wait is None) == (bool(case.readers) and not late)
    if wait is not None and case.readers:
        certain = late & {reader.group for reader in case.readers if reader.is_reading}
        assert wait.group in (certain or late) and wait.why


@settings(max_examples=300)
@given(histories(), st.data())
def test_a_partition_is_removed_when_each_group_has_processed_it(taken: list[History], data: Data) -> None:
    case = Case(taken, data)
    late = {reader.group for reader in case.readers if not (reader.is_settled and case.is_processed(reader))}
    wait = removal_wait(case.progress, case.pair)
    assert (wait is None) == (not late)
    assert wait is None or wait.group in late


@settings(max_examples=300)
@given(histories(), st.data())
def test_the_first_record_that_is_awaited_and_unread_is_kept(taken: list[History], data: Data) -> None:
    case = Case(taken, data)
    committers = [reader for reader in case.readers if reader.has_committed]
    kept = retained_from(case.progress, case.pair)
    if any(not reader.is_settled for reader in case.readers if not reader.has_committed):
        assert kept == (0, "")
    elif case.is_known and case.pair in case.naive.ends:
        assert kept == min(((o, r.group) for r in committers for o in case.unread(r)), default=None)
    elif kept is None:
        assert all(case.is_committed(reader) for reader in committers)
    else:
        assert kept == (0, "") or (not case.is_known and case.pair in case.naive.ends)


def test_without_a_group_nothing_is_drained_and_nothing_is_kept() -> None:
    progress = ReadProgress(Facts(), [])
    wait = drain_wait(progress, Pair(1, 0))
    assert wait is not None and wait.why == "a group that reads the topic"
    assert removal_wait(progress, Pair(1, 0)) is None and retained_from(progress, Pair(1, 0)) is None
