"""The group's leader assigns marked partitions separately from other partitions (KIP-253, Proposed Changes 6)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.group.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    PartitionSpan,
    RangeAssignor,
    RoundRobinAssignor,
    spread,
)
from anabranch.protocol.types import TopicPartition

ASSIGNORS: list[Assignor] = [RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor()]


def member(*owned: int, topics: tuple[str, ...] = ("t",), generation: int = 1) -> MemberSubscription:
    return MemberSubscription(frozenset(topics), tuple(TopicPartition("t", p) for p in owned), generation)


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda a: a.name)
def test_marked_and_unmarked_partitions_are_each_spread_evenly(assignor: Assignor) -> None:
    given_out = spread(assignor, {"t": PartitionSpan(8, 4)}, {"a": member(), "b": member()})
    for tps in given_out.values():
        assert sum(tp.partition < 4 for tp in tps) == 2
        assert sum(tp.partition >= 4 for tp in tps) == 2


@pytest.mark.parametrize(
    ("partitions", "undeleted", "span"),
    [
        (range(4), 4, (4, 4)),
        (range(6), 4, (6, 4)),
        (range(6), -1, (6, 6)),
        (range(4), 6, (4, 4)),
        ([0, 1, 2, 3, 5], 8, (6, 6)),
    ],
    ids=["settled", "marked", "plain Kafka", "none created yet", "created in another order"],
)
def test_the_span_of_a_topic_covers_every_partition_that_exists(
    partitions: Iterable[int], undeleted: int, span: tuple[int, int]
) -> None:
    assert PartitionSpan.of(partitions, undeleted) == span


def test_sticky_members_keep_marked_partitions_too() -> None:
    members = {"a": member(0, 1, 5), "b": member(2, 3, 4)}
    given_out = spread(CooperativeStickyAssignor(), {"t": PartitionSpan(6, 4)}, members)
    assert {m: sorted(tp.partition for tp in tps) for m, tps in given_out.items()} == {"a": [0, 1, 5], "b": [2, 3, 4]}


def test_a_marked_partition_that_moves_is_revoked_first() -> None:
    members = {"a": member(0, 1, 4, 5), "b": member(2, 3)}
    given_out = spread(CooperativeStickyAssignor(), {"t": PartitionSpan(6, 4)}, members)
    kept = {m: sorted(tp.partition for tp in tps) for m, tps in given_out.items()}
    assert kept == {"a": [0, 1, 5], "b": [2, 3]}  # the next rebalance assigns 4 to b


@given(
    undeleted=st.integers(1, 9),
    marked=st.integers(0, 9),
    other=st.integers(1, 5),
    subscriptions=st.lists(st.sampled_from([("t",), ("u",), ("t", "u")]), min_size=1, max_size=5),
    which=st.sampled_from(range(3)),
)
def test_every_partition_goes_to_exactly_one_member_that_wants_it(
    undeleted: int, marked: int, other: int, subscriptions: list[tuple[str, ...]], which: int
) -> None:
    members = {f"m{n}": member(topics=topics, generation=-1) for n, topics in enumerate(subscriptions)}
    topics = {"t": PartitionSpan(undeleted + marked, undeleted), "u": PartitionSpan(other, other)}
    wanted = {name for names in subscriptions for name in names}
    given_out = spread(ASSIGNORS[which], topics, members)
    found = [tp for tps in given_out.values() for tp in tps]
    assert sorted(found) == [TopicPartition(name, p) for name in sorted(wanted) for p in range(topics[name].total)]
    assert all(tp.topic in members[m].topics for m, tps in given_out.items() for tp in tps)
