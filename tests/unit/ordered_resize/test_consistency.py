"""Each false claim that an edited lineage may make is refused with a reason; no lineage of real resizes is refused."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings

from anabranch.ordered_resize.consistency import lineage_contradictions
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.zk_schemas.partition_state import LineageEntry, PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.resize.resize_histories import History, histories

Entries = list[tuple[int, dict[int, int]]]


def snapshot(
    epochs: dict[int, int], lineages: dict[int, Entries], *, initial: int = 1, over: dict[int, int] | None = None
) -> Snapshot:
    count = max(epochs) + 1
    topic = TopicZnode(uuid.UUID(int=7), {p: [1] for p in range(count)}, initial, count, 3, over or {})
    states = {
        p: PartitionState(1, 1, epoch, [1], lineage=tuple(LineageEntry(e, d) for e, d in lineages.get(p, ())))
        for p, epoch in epochs.items()
    }
    return Snapshot(topic, states)


@pytest.mark.parametrize(
    ("lineages", "words"),
    [
        ({1: [(1, {1: 0})]}, "lineage of partition 1: from leader epoch 1 on it names partition 1, itself"),
        (
            {1: [(1, {9: 0})]},
            "lineage of partition 1: from leader epoch 1 on it names partition 9, which never existed",
        ),
        ({1: [(1, {2: 0})]}, "names partition 2, which never has a key of partition 1"),
        (
            {1: [(1, {0: 5})]},
            "names partition 0, up to leader epoch 5, which has not ended: partition 0 is at leader epoch 5",
        ),
        (
            {1: [(1, {0: 9})]},
            "names partition 0, up to leader epoch 9, which has not ended: partition 0 is at leader epoch 5",
        ),
        (
            {0: [(2, {1: 3})], 1: [(3, {0: 2})]},
            "its entries wait for each other: partition 0 from leader epoch 2 on,"
            " then partition 1 from leader epoch 3 on, then partition 0 from leader epoch 2 on",
        ),
        ({0: [(2, {1: 2})], 1: [(1, {0: 4})]}, "its entries wait for each other"),
        ({0: [(2, {3: 2})], 1: [(1, {0: 4})], 3: [(1, {1: 4})]}, "its entries wait for each other"),
    ],
)
def test_an_impossible_lineage_is_refused_with_a_reason(lineages: dict[int, Entries], words: str) -> None:
    found = lineage_contradictions(snapshot({0: 5, 1: 5, 2: 5, 3: 5}, lineages))
    assert len(found) == 1 and words in found[0], found


def test_a_cycle_through_older_entries_is_refused() -> None:
    """Entry 4 of partition 0 is valid by itself, but needs entry 2 of partition 0.

    Entry 2 needs partition 1, and partition 1 needs entry 2 of partition 0 again.
    """
    lineages: dict[int, Entries] = {0: [(2, {1: 1}), (4, {2: 1})], 1: [(1, {0: 2})]}
    assert "its entries wait for each other" in lineage_contradictions(snapshot({0: 5, 1: 5, 2: 5}, lineages))[0]


def test_an_entry_may_name_a_removed_partition_and_an_ended_one_closes_no_cycle() -> None:
    assert not lineage_contradictions(snapshot({0: 3}, {0: [(2, {1: 0})]}, over={1: 1}))
    assert "not ended" in lineage_contradictions(snapshot({0: 3}, {0: [(2, {1: 1})]}, over={1: 1}))[0]
    again: dict[int, Entries] = {0: [(2, {1: 1})], 1: [(2, {0: 1})]}
    assert not lineage_contradictions(snapshot({0: 3, 1: 3}, again, over={1: 1}))


def test_an_entry_that_names_an_unreadable_partition_is_not_judged() -> None:
    known = snapshot({0: 5}, {0: [(2, {1: 0})]})
    assert lineage_contradictions(known)
    assert not lineage_contradictions(Snapshot(known.topic, known.states, unreadable={1}))


@settings(max_examples=100)
@given(histories())
def test_no_lineage_of_real_resizes_is_refused(taken: list[History]) -> None:
    for history in taken:
        lineages = {p: part.entries for p, part in history.parts.items()}
        epochs = {p: part.epoch for p, part in history.parts.items()}
        assert not lineage_contradictions(snapshot(epochs, lineages, initial=history.initial, over=history.over))
