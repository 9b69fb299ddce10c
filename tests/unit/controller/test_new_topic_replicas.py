"""Replica assignment as in Kafka's ``AdminUtils``; the expected values come from Kafka's documentation and tests."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.new_topic_replicas import alternate_racks, assign_replicas

NO_RACKS: dict[int, str | None] = dict.fromkeys(range(5))
RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


def test_an_assignment_equals_the_example_in_kafkas_documentation() -> None:
    assignment = assign_replicas(NO_RACKS, 10, 3, start_index=0, shift=0)
    assert assignment == {
        0: [0, 1, 2],
        1: [1, 2, 3],
        2: [2, 3, 4],
        3: [3, 4, 0],
        4: [4, 0, 1],
        5: [0, 2, 3],
        6: [1, 3, 4],
        7: [2, 4, 0],
        8: [3, 0, 1],
        9: [4, 1, 2],
    }


def test_the_order_of_brokers_alternates_between_racks() -> None:
    assert alternate_racks(RACKS) == [0, 3, 1, 5, 4, 2]


def test_an_assignment_over_racks_equals_that_of_kafkas_test() -> None:
    assignment = assign_replicas(RACKS, 7, 3, start_index=0, shift=0)
    assert assignment == {
        0: [0, 3, 1],
        1: [3, 1, 5],
        2: [1, 5, 4],
        3: [5, 4, 2],
        4: [4, 2, 0],
        5: [2, 0, 3],
        6: [0, 4, 2],
    }


def test_racks_are_ignored_when_one_broker_has_none() -> None:
    some = {0: "a", 1: None, 2: "a"}
    assert assign_replicas(some, 3, 2, start_index=0, shift=0) == {0: [0, 1], 1: [1, 2], 2: [2, 0]}


def test_the_assignment_of_new_partitions_continues_that_of_the_old_ones() -> None:
    whole = assign_replicas(NO_RACKS, 8, 2, start_index=2, shift=0)
    first = assign_replicas(NO_RACKS, 5, 2, start_index=2, shift=0)
    rest = assign_replicas(NO_RACKS, 3, 2, start_index=2, shift=0, first_partition=5)
    assert first | rest == whole


@pytest.mark.parametrize(("partitions", "factor"), [(0, 1), (1, 0), (1, 6)])
def test_impossible_counts_are_refused(partitions: int, factor: int) -> None:
    with pytest.raises(ValueError):
        assign_replicas(NO_RACKS, partitions, factor, start_index=0, shift=0)


@given(
    st.dictionaries(st.integers(0, 50), st.sampled_from("abc"), min_size=1, max_size=8),
    st.integers(1, 40),
    st.integers(0, 7),
    st.integers(0, 7),
    st.data(),
)
def test_replicas_and_leaders_are_spread_over_brokers_and_racks(
    brokers: dict[int, str], partitions: int, start: int, shift: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    assignment = assign_replicas(brokers, partitions, factor, start_index=start, shift=shift)
    assert list(assignment) == list(range(partitions))
    for replicas in assignment.values():
        assert len(set(replicas)) == factor
        assert len({brokers[replica] for replica in replicas}) == min(factor, len(set(brokers.values())))
    leaders = Counter(replicas[0] for replicas in assignment.values())
    assert max(leaders.values()) - min(leaders[broker] for broker in brokers) <= 1
