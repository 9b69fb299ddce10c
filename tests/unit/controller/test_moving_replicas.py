"""Replicas during the move from one assignment to another (KIP-455)."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.moving_replicas import ReplicaAssignment, check_target, into
from anabranch.zk_schemas.topic import TopicZnode

REPLICAS = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True)


def settled(*replicas: int) -> ReplicaAssignment:
    return ReplicaAssignment(list(replicas), [], [])


@pytest.mark.parametrize(
    ("before", "target", "after"),
    [
        (settled(1, 2, 3), [1, 2, 3, 4], ReplicaAssignment([1, 2, 3, 4], [4], [])),
        (settled(1, 2, 3), [4, 5, 6], ReplicaAssignment([4, 5, 6, 1, 2, 3], [4, 5, 6], [1, 2, 3])),
        (settled(1, 2, 3), [1], ReplicaAssignment([1, 2, 3], [], [2, 3])),
        (settled(1, 2, 3), [3, 2, 1], settled(3, 2, 1)),
        (ReplicaAssignment([4, 2, 1], [4], [1]), [5, 2], ReplicaAssignment([5, 2, 1], [5], [1])),
        (ReplicaAssignment([4, 2, 1], [4], [1]), [2, 1], settled(2, 1)),
    ],
)
def test_a_reassignment_names_old_and_new_replicas(
    before: ReplicaAssignment, target: list[int], after: ReplicaAssignment
) -> None:
    assert before.reassign_to(target) == after
    assert after.target == target


@given(REPLICAS, st.lists(REPLICAS, min_size=1, max_size=4))
def test_however_often_the_target_changes_the_origin_stays_until_the_end(
    origin: list[int], targets: list[list[int]]
) -> None:
    """The simple second implementation uses sets."""
    assignment = settled(*origin)
    for target in targets:
        assignment = assignment.reassign_to(target)
        assert set(assignment.replicas) == set(origin) | set(target)
        assert set(assignment.adding) == set(target) - set(origin)
        assert set(assignment.removing) == set(origin) - set(target)
        assert assignment.target == target
        assert sorted(assignment.origin) == sorted(origin)
        assert assignment.in_progress == (set(origin) != set(target))
        assert assignment.complete(target)
        assert not assignment.complete(target[1:])
    assert assignment.done() == settled(*targets[-1])
    assert sorted(assignment.reassign_to(assignment.origin).replicas) == sorted(origin)


def test_a_reassignment_is_stored_in_the_topic_znode_until_it_is_done() -> None:
    topic = TopicZnode.new(uuid.UUID(int=1), {0: [1, 2], 1: [2, 3]})
    moving = ReplicaAssignment.of(topic, 1).reassign_to([2, 4])
    under_way = into(topic, {1: moving})
    assert ReplicaAssignment.of(TopicZnode.decode("/t", under_way.encode()), 1) == moving
    assert ReplicaAssignment.of(under_way, 0) == settled(1, 2)
    done = into(under_way, {1: moving.done()})
    assert done == topic.replace(partitions={0: [1, 2], 1: [2, 4]})


def test_only_new_replicas_have_to_be_live() -> None:
    check_target(settled(1, 2), [2, 3], {3})
