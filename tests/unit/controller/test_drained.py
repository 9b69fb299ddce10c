"""When a group is done with a partition that is marked for deletion."""

from __future__ import annotations

import pytest

from controller.resize.draining import Leftover, read_by_all
from controller.resize.groups import Group
from protocol.types import TopicPartition

TP = TopicPartition("t", 3)
LEFT = Leftover(TP, leader=1, incarnation=9, sealed_offset=5)


@pytest.mark.parametrize(
    ("group", "is_done"),
    [
        (Group("g", {TP: (5, 9)}), True),
        (Group("g", {TP: (4, 9)}), False),
        (Group("g", {TP: (5, 8)}), False),
        (Group("g", {}, {"t"}), False),
        (Group("g", {TP: (5, 9)}, waited_for={TP: 5}), True),
        (Group("g", {TP: (5, 9)}, waited_for={TP: 4}), False),
        (Group("g", {TP: (5, 9)}, waited_for={TP: -1}), False),
        (Group("g", {TP: (5, 9)}, is_rebalancing=True), False),
    ],
    ids=["committed", "not read", "another life", "subscribed", "said so", "behind", "said nothing", "rebalancing"],
)
def test_a_group_that_is_done_has_committed_and_its_owner_has_flushed(group: Group, is_done: bool) -> None:
    """Were the records deleted at the commit, who waits for the flush would take the log's start for it."""
    assert read_by_all([group], LEFT) is is_done


def test_a_topic_that_nobody_reads_is_not_drained() -> None:
    assert not read_by_all([], LEFT)
