"""The partition of a key under a layout, and the keys that a resize moves."""

from __future__ import annotations

import pytest

from anabranch.ordered_resize.layout import Layout, moves
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import NO_ID


def test_a_layout_comes_from_the_topic_and_is_stored_without_its_initial_count() -> None:
    goal = Layout.goal(TopicZnode(NO_ID, {p: [1] for p in range(6)}, 4, 6, 3))
    assert goal == Layout(6, 3, 4)
    assert goal.stored == StoredLayout(6, 3)


def test_the_owner_of_a_key_is_that_of_linear_hashing() -> None:
    assert [Layout(count, 0, 4).owner(5) for count in (4, 5, 6, 8)] == [1, 1, 5, 5]


def test_a_partition_at_or_above_the_count_is_closed() -> None:
    assert Layout(6, 1, 4).counts(5)
    assert not Layout(6, 1, 4).counts(6)


@pytest.mark.parametrize(
    ("initial", "before", "after", "losers_of"),
    [
        (4, 4, 6, {4: (0,), 5: (1,)}),
        (4, 6, 4, {0: (4,), 1: (5,)}),
        (4, 4, 8, {4: (0,), 5: (1,), 6: (2,), 7: (3,)}),
        (1, 1, 4, {1: (0,), 2: (0,), 3: (0,)}),
        (1, 4, 1, {0: (1, 2, 3)}),
        (1, 4, 3, {1: (3,)}),
        (4, 6, 6, {}),
    ],
)
def test_each_gainer_gets_keys_from_its_losers(
    initial: int, before: int, after: int, losers_of: dict[int, tuple[int, ...]]
) -> None:
    found = moves(initial, before, after)
    assert found.losers_of == losers_of
    assert found.losers == {q for losers in losers_of.values() for q in losers}


@pytest.mark.parametrize(
    ("partition", "named", "expected"),
    [(5, (6, 3), True), (5, (6, 1), False), (5, (8, 3), False), (6, (6, 3), False)],
)
def test_a_partition_takes_batches_of_its_own_layout_while_it_is_counted(
    partition: int, named: tuple[int, int], expected: bool
) -> None:
    assert Layout(6, 3, 4).takes(partition, StoredLayout(*named)) is expected
