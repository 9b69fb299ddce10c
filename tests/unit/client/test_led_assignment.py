"""Changes of a topic's partitions that keep the assignment of a group's leader, and changes that need a rebalance."""

from __future__ import annotations

from dataclasses import replace

from anabranch.client.group.assignors import (
    CooperativeStickyAssignor,
    MemberSubscription,
    PartitionSpan,
    RangeAssignor,
)
from anabranch.client.group.led_assignment import LedAssignment
from anabranch.protocol.types import TopicPartition

MEMBERS = {name: MemberSubscription(frozenset("t")) for name in ("a", "b", "c")}


def assigned(total: int, undeleted: int) -> LedAssignment:
    return LedAssignment.make(CooperativeStickyAssignor(), MEMBERS, {"t": PartitionSpan(total, undeleted)})


def test_a_balanced_assignment_is_kept_at_a_merge_and_when_marked_partitions_open_again() -> None:
    led = assigned(6, 6)
    merged = led.for_spans({"t": PartitionSpan(6, 3)})
    assert merged is not None
    assert (merged.partitions, merged.has_marked()) == (led.partitions, True)
    opened = merged.for_spans({"t": PartitionSpan(6, 5)})
    assert opened is not None
    assert (opened.partitions, opened.spans) == (led.partitions, {"t": PartitionSpan(6, 5)})


def test_an_assignment_that_a_merge_makes_uneven_is_not_kept() -> None:
    held = {"a": [0, 1], "b": [2, 3], "c": [4, 5]}
    members = {
        name: MemberSubscription(frozenset("t"), tuple(TopicPartition("t", p) for p in partitions), generation_id=4)
        for name, partitions in held.items()
    }
    led = LedAssignment.make(CooperativeStickyAssignor(), members, {"t": PartitionSpan(6, 6)})
    assert led.owners() == {TopicPartition("t", p): name for name, partitions in held.items() for p in partitions}
    assert led.for_spans({"t": PartitionSpan(6, 4)}) is None, "c would have marked partitions only"


def test_new_and_removed_partitions_need_a_rebalance() -> None:
    led = assigned(6, 4)
    assert led.for_spans({"t": PartitionSpan(7, 7)}) is None
    assert led.for_spans({"t": PartitionSpan(5, 4)}) is None
    assert led.for_spans({"t": PartitionSpan(0, 0)}) is None


def test_a_partition_that_waits_for_its_revocation_is_assigned_by_a_rebalance() -> None:
    """The assignment left the partition out, because the partition moves to another member."""
    claims = MemberSubscription(frozenset("t"), (TopicPartition("t", 0), TopicPartition("t", 1)), generation_id=4)
    members = {"a": claims, "b": MemberSubscription(frozenset("t"))}
    led = LedAssignment.make(CooperativeStickyAssignor(), members, {"t": PartitionSpan(2, 2)})
    assert len(led.owners()) == 1
    assert led.for_spans({"t": PartitionSpan(2, 1)}) is None


def test_an_assignor_that_knows_no_owners_needs_a_rebalance() -> None:
    led = LedAssignment.make(RangeAssignor(), MEMBERS, {"t": PartitionSpan(3, 3)})
    assert led.for_spans({"t": PartitionSpan(3, 3)}) is led
    assert led.for_spans({"t": PartitionSpan(3, 2)}) is None


def test_a_cooperative_assignor_that_fails_needs_a_rebalance_which_shows_its_error() -> None:
    class Wrong(CooperativeStickyAssignor):
        def assign(self, *args: object, **kwargs: object) -> dict[str, list[TopicPartition]]:
            raise ValueError("wrong")

    led = replace(assigned(6, 6), assignor=Wrong())
    assert led.for_spans({"t": PartitionSpan(6, 3)}) is None
