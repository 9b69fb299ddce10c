"""The delivery gate, event by event: one test for each rule and each hole of ordered resize that it closes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from client.cluster import TopicInfo
from client.ordered_delivery.barriers import CLOSED, NO_LIMIT, BarrierKind, Missing, PartitionMap
from client.ordered_delivery.gate import DeliveryGate
from protocol.types import TopicPartition
from tests.layouts import topic, tp

FROM_1 = PartitionMap(105, created_from=1, epoch_after_creation=0)
"""The map of 5 after the design's example: 4 -> 6, partition 1 bumped from epoch 0."""
MERGED = PartitionMap(105, 1, 0, merged_into=1, epoch_before_deletion=1, sealed_offset=40)
"""The same after 6 -> 4: sealed at 40, partition 1's epoch 1 was the last of the old layout."""


def grown() -> TopicInfo:
    """4 -> 6: partitions 0 to 3 were bumped to epoch 1."""
    return topic(4, 6, [1, 1, 1, 1, 0, 0])


def shrunk() -> TopicInfo:
    """6 -> 4: 4 and 5 were sealed in epoch 1, the survivors bumped to 2."""
    return topic(4, 4, [2, 2, 2, 2, 1, 1], version=2)


class Gate:
    """A gate, with ``caps`` as the tests read it: the callbacks return at once."""

    def __init__(self, info: TopicInfo, *partitions: int) -> None:
        self.gate = DeliveryGate()
        self.told: list[tuple[str, int]] = []
        self.topics = {"t": info}
        self.gate.assign([tp(p) for p in partitions], self.topics)
        self.run()

    def run(self) -> None:
        self.gate.evaluate()
        revoked = self.gate.keys_revoked()
        self.told += [("revoked", p.partition) for p in revoked]
        self.gate.revoked(revoked)
        assigned = self.gate.keys_assigned()
        self.told += [("assigned", p.partition) for p in assigned]
        self.gate.announced(assigned)

    def metadata(self, info: TopicInfo) -> None:
        self.topics = {"t": info}
        self.gate.on_metadata(self.topics)
        self.run()

    def map(self, p: int, answer: PartitionMap) -> None:
        self.gate.on_map(tp(p), answer)
        self.run()

    def end(self, p: int, epoch: int, leader_epoch: int, end: int) -> None:
        self.gate.on_end_offset(tp(p), epoch, leader_epoch, end)
        self.run()

    def position(self, p: int, position: int, incarnation: int | None = None) -> None:
        self.gate.on_position(tp(p), 100 + p if incarnation is None else incarnation, position)
        self.run()

    def start(self, p: int, offset: int) -> None:
        self.gate.on_log_start(tp(p), 100 + p, offset)
        self.run()

    def cap(self, p: int) -> int:
        return self.gate.cap(tp(p))

    def missing(self) -> list[tuple[int, Missing]]:
        return [(b.on.partition, b.missing) for blocked in self.gate.blocked() for b in blocked.barriers]


def created() -> Gate:
    """5 after the grow, its map and its threshold of 100 known."""
    gate = Gate(grown(), 5)
    gate.map(5, FROM_1)
    gate.end(1, 0, 1, 100)
    return gate


def merged(sealed: PartitionMap = MERGED) -> Gate:
    """1 after the shrink, the map of 5 known."""
    gate = Gate(shrunk(), 1)
    gate.map(5, sealed)
    return gate


def test_a_topic_without_ordered_delivery_is_open() -> None:
    gate = Gate(topic(4, 6, [1] * 6, ordered=False), 1, 5)
    assert (gate.cap(1), gate.cap(5)) == (NO_LIMIT, NO_LIMIT)
    assert not gate.told and not gate.gate.questions().positions


def test_a_topic_never_resized_asks_nothing_and_knows_its_epoch() -> None:
    gate = Gate(topic(4, 4, [0, 3, 0, 0], version=0), 0, 1)
    assert (gate.cap(0), gate.cap(1)) == (0, 3)
    asked = gate.gate.questions()
    assert not asked.any_to_ask and not asked.positions and not gate.gate.blocked()


def test_no_batch_is_newer_than_the_layout_decided_by() -> None:
    gate = Gate(topic(4, 4, [0] * 4, version=0), 1)
    assert gate.cap(1) == 0
    gate.metadata(topic(4, 6, [1, 1, 1, 1, 0, 0]))
    assert gate.cap(1) == 1


def test_an_unknown_topic_is_closed() -> None:
    gate = DeliveryGate()
    gate.assign([tp(0)], {})
    gate.evaluate()
    assert gate.cap(tp(0)) == CLOSED


def test_the_creation_barrier_asks_step_by_step() -> None:
    gate = Gate(grown(), 5)
    assert (gate.cap(5), gate.missing()) == (CLOSED, [(5, Missing.MAP)])
    assert gate.gate.questions().maps == {tp(5): 105}
    gate.map(5, FROM_1)
    assert gate.missing() == [(1, Missing.END_OFFSET)]
    assert list(gate.gate.questions().end_offsets) == [(tp(1), 0)]
    assert gate.gate.questions().positions == {tp(1): 101}
    gate.end(1, 0, 1, 100)
    assert list(gate.gate.questions().log_starts) == [tp(1)]
    gate.position(1, 99)
    assert gate.gate.blocked()[0].barriers[0][1:] == (5, tp(1), Missing.POSITION, 99, 100)
    assert gate.cap(5) == CLOSED and not gate.told
    gate.position(1, 100)
    assert gate.cap(5) == 0 and gate.told == [("assigned", 5)]
    assert gate.gate.questions().positions == {tp(1): 101}  # a rewind must be heard of


def test_the_end_of_the_current_epoch_does_not_count() -> None:
    gate = Gate(topic(4, 6, [1, 0, 1, 1, 0, 0]), 5)
    gate.map(5, FROM_1)
    gate.end(1, 0, 0, 100)
    gate.position(1, 100)
    assert gate.missing() == [(1, Missing.LEADER_EPOCH)] and gate.cap(5) == CLOSED
    assert list(gate.gate.questions().metadata) == ["t"]


def test_an_end_is_asked_for_again_after_a_leader_change() -> None:
    gate = created()
    gate.metadata(topic(4, 6, [1, 2, 1, 1, 0, 0]))
    gate.position(1, 100)
    assert gate.missing() == [(1, Missing.END_OFFSET)]
    assert list(gate.gate.questions().end_offsets) == [(tp(1), 0)]
    gate.end(1, 0, 2, 90)  # an unclean election took ten records
    assert gate.cap(5) == 0


@pytest.mark.parametrize("answer", [PartitionMap(105), PartitionMap(105, created_from=1), PartitionMap(105, -1, 0)])
def test_a_map_without_an_entry_or_epoch_is_not_yet(answer: PartitionMap) -> None:
    gate = Gate(grown(), 5)
    gate.map(5, answer)
    gate.end(1, 0, 1, 100)
    gate.position(1, 100)
    assert gate.missing() == [(5, Missing.MAP)] and gate.cap(5) == CLOSED
    assert gate.gate.questions().maps == {tp(5): 105}


def test_an_unknown_end_is_not_yet() -> None:
    gate = Gate(grown(), 5)
    gate.map(5, FROM_1)
    gate.end(1, 0, 1, -1)
    gate.position(1, 100)
    assert gate.missing() == [(1, Missing.END_OFFSET)]


def test_hole_5_an_empty_blocked_parent_does_not_free_its_child() -> None:
    """Pulsar #26274: 1 -> 2 -> 4. Partition 1 is empty and blocked by 0; 3, split off 1, must wait for 0 as well."""
    gate = Gate(topic(1, 4, [2, 1, 0, 0], version=2), 3)
    gate.map(3, PartitionMap(103, created_from=1, epoch_after_creation=0))
    gate.map(1, PartitionMap(101, created_from=0, epoch_after_creation=0))
    gate.end(1, 0, 1, 0)
    gate.end(0, 0, 2, 50)
    gate.position(1, 0)
    assert gate.missing() == [(0, Missing.POSITION)] and gate.cap(3) == CLOSED
    gate.position(0, 50)
    assert gate.cap(3) == 0


def test_a_log_start_past_the_threshold_counts_as_reached() -> None:
    gate = created()
    gate.start(1, 99)
    assert gate.cap(5) == CLOSED
    gate.start(1, 100)
    assert gate.cap(5) == 0
    survivor = merged()
    survivor.start(5, 40)
    assert survivor.cap(1) == 2


@pytest.mark.parametrize(("barrier", "p", "waiter", "open_at"), [(created, 1, 5, 0), (merged, 5, 1, 2)])
def test_a_log_start_counts_only_where_no_live_member_is_to_report(
    barrier: Callable[[], Gate], p: int, waiter: int, open_at: int
) -> None:
    """Its records may be with the owner's user, not flushed. Each generation has to be told anew."""
    gate = barrier()
    closed_at = gate.cap(waiter)
    gate.gate.await_owners()
    gate.start(p, 100)
    assert gate.cap(waiter) == closed_at and tp(p) not in gate.gate.questions().log_starts
    gate.gate.on_owner(tp(p), awaits_report=True)
    gate.run()
    assert gate.cap(waiter) == closed_at
    gate.gate.on_owner(tp(p), awaits_report=False)
    gate.gate.on_owner(tp(p), awaits_report=True)
    gate.run()
    assert gate.cap(waiter) == closed_at
    gate.gate.on_owner(tp(p), awaits_report=False)
    gate.gate.await_owners()
    gate.run()
    assert gate.cap(waiter) == closed_at
    gate.gate.on_owner(tp(p), awaits_report=False)
    gate.run()
    assert gate.cap(waiter) == open_at


def test_hole_9_a_map_of_another_incarnation_is_not_used() -> None:
    info = topic(4, 6, [1, 1, 1, 1, 0, 0], incarnations={5: 205})
    gate = Gate(info, 5)
    gate.map(5, FROM_1)  # from a broker that lags: the partition of before it was removed
    assert gate.missing() == [(5, Missing.MAP)]
    gate.map(5, FROM_1._replace(incarnation=205))
    assert gate.missing() == [(1, Missing.END_OFFSET)]
    gate.metadata(topic(4, 6, [1, 1, 1, 1, 0, 0], incarnations={5: 305}))
    assert gate.missing() == [(5, Missing.MAP)]


def test_hole_9_a_position_of_another_incarnation_does_not_count() -> None:
    gate = created()
    gate.position(1, 100, incarnation=7)
    assert gate.cap(5) == CLOSED
    gate.position(1, 100, incarnation=101)
    assert gate.cap(5) == 0


def test_metadata_without_an_incarnation_blocks() -> None:
    gate = Gate(topic(4, 6, [1, 1, 1, 1, 0, 0], incarnations={5: -1}), 5)
    assert not gate.gate.questions().maps and list(gate.gate.questions().metadata) == ["t"]
    gate.map(5, FROM_1._replace(incarnation=-1))
    assert gate.missing() == [(5, Missing.MAP)]


def test_a_partition_created_again_starts_anew() -> None:
    gate = created()
    gate.position(1, 100)
    assert gate.cap(5) == 0
    gate.metadata(topic(4, 6, [3, 3, 3, 3, 2, 2], version=3, incarnations={4: 204, 5: 205}))
    assert gate.cap(5) == CLOSED
    gate.map(5, PartitionMap(205, created_from=1, epoch_after_creation=2))
    gate.end(1, 2, 3, 200)
    assert gate.missing() == [(1, Missing.POSITION)]


def test_what_the_user_has_of_a_partition_is_flushed_when_it_is_created_again() -> None:
    """A member that was away meanwhile goes on with a partition that those keys moved to."""
    gate = created()
    gate.position(1, 100)
    assert gate.told == [("assigned", 5)]
    gate.metadata(topic(4, 6, [3, 3, 3, 3, 2, 2], version=3, incarnations={4: 204, 5: 205}))
    assert gate.told[1:] == [("revoked", 5)]


def test_what_is_marked_when_a_partition_is_created_again_is_told_of_when_it_is_gone() -> None:
    """Its map never came, and the states were loaded before it was flushed."""
    gate = Gate(topic(1, 2, [1, 0], version=1), 1)
    gate.map(1, PartitionMap(101, 0, 0))
    gate.end(0, 0, 1, 10)
    gate.position(0, 10)
    assert gate.told == [("assigned", 1)]
    again = {1: 201, 2: 202, 3: 203}
    gate.metadata(topic(1, 3, [4, 3, 3, 3], version=4, incarnations=again))  # 2 -> 1 -> 4 -> 3: 3 is merged into 1
    gate.map(1, PartitionMap(201, 0, 2))
    gate.end(0, 2, 4, 20)
    gate.position(0, 20)
    assert gate.told[1:] == [("revoked", 1), ("assigned", 1)]
    gate.metadata(topic(1, 3, [4, 3, 3], version=4, incarnations=again))
    assert gate.told[3:] == [("assigned", 1)]


def test_what_was_marked_at_the_assignment_is_told_of_when_it_is_there_again() -> None:
    """6 -> 4 -> 6: its map never came, and when it was gone the topic grew."""
    gate = DeliveryGate()
    gate.assign([tp(1)], {"t": shrunk()})
    gate.evaluate()
    gate.on_metadata({"t": topic(4, 6, [3, 3, 3, 3, 2, 2], version=3, incarnations={4: 204, 5: 205})})
    gate.evaluate()
    assert gate.keys_assigned() == [tp(1)] and gate.cap(tp(1)) == CLOSED


def test_retention_frees_nobody_from_what_this_consumer_reads_itself() -> None:
    """It may have fetched what is gone since, and may not have flushed what it delivered."""
    parent = Gate(grown(), 1, 5)
    parent.map(5, FROM_1)
    parent.end(1, 0, 1, 100)
    parent.position(1, 30)
    parent.start(1, 100)
    assert parent.cap(5) == CLOSED and tp(1) not in parent.gate.questions().log_starts
    parent.position(1, 100)
    assert parent.cap(5) == 0

    marked = Gate(shrunk(), 1, 5)
    marked.map(5, MERGED)
    marked.position(5, 30)
    marked.start(5, 40)
    assert marked.cap(1) == 1
    marked.position(5, 40)
    assert marked.cap(1) == 2


def test_the_deletion_barrier_holds_only_newer_epochs() -> None:
    gate = merged()
    assert gate.cap(1) == 1  # what was written before the merge goes on
    gate.position(5, 39)
    assert gate.gate.blocked()[0].barriers[0] == (BarrierKind.DELETION, 5, tp(5), Missing.POSITION, 39, 40)
    gate.position(5, 40)
    assert gate.cap(1) == 2 and gate.told == [("assigned", 1)]


def test_without_the_map_of_a_marked_partition_nothing_newer_is_delivered() -> None:
    gate = Gate(topic(4, 6, [1, 1, 1, 1, 0, 0]), 1)
    assert gate.cap(1) == 1
    gate.metadata(shrunk())
    assert gate.cap(1) == 1 and gate.missing() == [(5, Missing.MAP)]  # goes on by what was decided before
    assert Gate(shrunk(), 1).cap(1) == CLOSED
    gate.map(5, MERGED)
    assert gate.cap(1) == 1 and gate.missing() == [(5, Missing.POSITION)]


def test_a_partition_not_sealed_yet_blocks_and_is_asked_for_again() -> None:
    gate = merged(MERGED._replace(sealed_offset=-1))
    gate.position(5, 1000)
    assert gate.cap(1) == 1 and gate.missing() == [(5, Missing.SEALED_OFFSET)]
    assert gate.gate.questions().maps == {tp(5): 105}
    gate.map(5, MERGED)
    assert gate.cap(1) == 2


def test_the_lowest_recorded_epoch_counts_until_every_marked_descendant_is_processed() -> None:
    gate = Gate(topic(1, 1, [5, 1, 1, 1], version=2), 0)
    gate.map(1, PartitionMap(101, 0, 0, 0, 4, 10))
    gate.map(2, PartitionMap(102, 0, 0, 0, 3, 20))
    assert gate.cap(0) == CLOSED
    gate.map(3, PartitionMap(103, 1, 0, 0, 4, 30))
    assert gate.cap(0) == 3
    for p, end in ((2, 20), (1, 10)):
        gate.position(p, end)
        assert gate.cap(0) == 3
    gate.position(3, 30)
    assert gate.cap(0) == 5


def test_a_marked_descendant_that_another_survivor_gained_counts_as_well() -> None:
    """4 -> 3 -> 1: 3 was merged into 1, then 1 into 0. 0 waits for 3 too: keys of 3 went to 1 and now come to 0."""
    gate = Gate(topic(1, 1, [4, 3, 2, 2], version=3), 0)
    gate.map(1, PartitionMap(101, 0, 0, 0, 3, 10))
    gate.map(2, PartitionMap(102, 0, 0, 0, 3, 20))
    gate.map(3, PartitionMap(103, 1, 0, 1, 1, 30))
    gate.position(1, 10)
    gate.position(2, 20)
    assert gate.cap(0) == 3 and gate.missing() == [(3, Missing.POSITION)]
    gate.position(3, 30)
    assert gate.cap(0) == 4


def test_a_marked_partition_still_waits_for_what_an_earlier_merge_brought_it() -> None:
    """4 -> 3 -> 1: keys of 3 went to 1, which is marked now; what 1 got of them waits for 3 as before."""
    of_3 = PartitionMap(103, 1, 0, merged_into=1, epoch_before_deletion=1, sealed_offset=40)
    gate = Gate(topic(1, 3, [2, 2, 2, 1], version=2), 1)
    gate.map(1, PartitionMap(101, created_from=0, epoch_after_creation=0))
    gate.end(0, 0, 2, 0)
    gate.position(0, 0)
    gate.map(3, of_3)
    assert gate.cap(1) == 1
    gate.metadata(topic(1, 1, [3, 3, 3, 1], version=3))
    gate.map(1, PartitionMap(101, 0, 0, merged_into=0, epoch_before_deletion=2, sealed_offset=50))
    gate.map(2, PartitionMap(102, 0, 0, merged_into=0, epoch_before_deletion=2, sealed_offset=0))
    assert gate.cap(1) == 1
    gate.position(3, 40)
    assert gate.cap(1) == 3


@pytest.mark.parametrize(
    ("seen", "now"),
    [
        (grown(), topic(4, 4, [2] * 4, version=2)),
        (topic(4, 4, [0] * 4, version=0), topic(4, 4, [2] * 4, version=2)),
        (topic(4, 4, [0] * 4, version=0), topic(4, 6, [3, 3, 3, 3, 2, 2], version=3)),
    ],
    ids=["merged and removed", "split, merged and removed", "split again since"],
)
def test_the_user_is_told_of_keys_that_came_by_a_merge_nobody_saw(seen: TopicInfo, now: TopicInfo) -> None:
    """What is removed was processed and flushed by the group; the next owner of its keys still has to load them."""
    gate = DeliveryGate()
    gate.assign([tp(1)], {"t": seen})
    gate.evaluate()
    before = gate.cap(tp(1))
    gate.on_metadata({"t": now})
    gate.evaluate()
    assert gate.cap(tp(1)) == before and gate.keys_assigned() == [tp(1)]
    gate.announced([tp(1)])
    gate.evaluate()
    assert gate.cap(tp(1)) == now.partitions[1].leader_epoch and not gate.keys_assigned()
    gate.recheck()
    gate.evaluate()
    assert not gate.keys_assigned()


@pytest.mark.parametrize("seen", [grown(), topic(4, 4, [2, 2, 2, 2, 1, 1], version=2)], ids=["unmarked", "marked"])
def test_what_was_there_at_the_assignment_is_told_of_though_it_is_gone_at_the_first_look(seen: TopicInfo) -> None:
    """The states that the user loads for an assignment lack what is flushed while that goes on, or a map is missing."""
    gate = DeliveryGate()
    gate.assign([tp(1)], {"t": seen})
    if seen.undeleted_partition_count == 4:
        gate.evaluate()
    gate.on_metadata({"t": topic(4, 4, [2] * 4, version=2)})
    gate.evaluate()
    assert gate.cap(tp(1)) == CLOSED and gate.keys_assigned() == [tp(1)]
    gate.announced([tp(1)])
    gate.evaluate()
    assert gate.cap(tp(1)) == 2 and not gate.keys_assigned()


def test_a_merge_nobody_saw_is_told_of_beside_one_that_is_waited_for() -> None:
    """6 -> 9 -> 6 -> 5, of which 9 was not seen: what came and went meanwhile does not wait for 5."""
    gate = DeliveryGate()
    gate.assign([tp(1)], {"t": grown()})
    gate.evaluate()
    gate.on_metadata({"t": topic(4, 5, [3, 3, 3, 3, 2, 2], version=4)})
    gate.on_map(tp(5), PartitionMap(105, 1, 0, merged_into=1, epoch_before_deletion=2, sealed_offset=40))
    gate.evaluate()
    assert gate.cap(tp(1)) == 1 and gate.keys_assigned() == [tp(1)]
    gate.announced([tp(1)])
    gate.evaluate()
    assert gate.cap(tp(1)) == 2 and not gate.keys_assigned()
    gate.on_position(tp(5), 105, 40)
    gate.evaluate()
    assert gate.keys_assigned() == [tp(1)]


def test_a_grow_takes_no_callback_of_a_partition_that_gains_nothing() -> None:
    gate = Gate(grown(), 1)
    gate.metadata(topic(4, 9, [2] * 6 + [0] * 3, version=2))
    assert gate.cap(1) == 2 and not gate.told


def test_an_ancestor_into_which_nothing_merges_is_not_held_back() -> None:
    """4 -> 3 of an initial count of 1: 3 merges into 1; 0, its grandparent, gains nothing and asks for no position."""
    gate = Gate(topic(1, 3, [3, 3, 2, 2], version=3), 0)
    gate.map(3, PartitionMap(103, 1, 0, 1, 1, 30))
    assert gate.cap(0) == 3 and not gate.gate.blocked() and not gate.gate.questions().positions


def test_hole_15_a_sealed_offset_that_was_lowered_is_asked_for_after_a_leader_change() -> None:
    """An unclean election of the marked partition cut it below its seal: nobody will ever be at 40."""
    gate = merged()
    gate.position(5, 35)
    assert not gate.gate.questions().maps
    gate.metadata(topic(4, 4, [2, 2, 2, 2, 1, 2], version=2))
    assert gate.gate.questions().maps == {tp(5): 105} and gate.cap(1) == 1
    gate.map(5, MERGED._replace(sealed_offset=35))
    assert gate.cap(1) == 2 and not gate.gate.questions().maps


def test_a_recheck_asks_again_for_what_changes_without_a_leader_change() -> None:
    survivor, child = merged(), created()
    for gate in (survivor, child):
        gate.start(1, 0)
        gate.start(5, 0)
        assert not gate.gate.questions().any_to_ask
        gate.gate.recheck()
        gate.gate.evaluate()
    asked = survivor.gate.questions()
    assert list(asked.maps) == [tp(5)] and list(asked.log_starts) == [tp(5)]
    asked = child.gate.questions()
    assert list(asked.end_offsets) == [(tp(1), 0)] and list(asked.log_starts) == [tp(1)]


def test_hole_18_a_rewound_parent_revokes_its_child() -> None:
    gate = created()
    gate.position(1, 100)
    gate.position(1, 60)
    assert gate.cap(5) == CLOSED and gate.told == [("assigned", 5), ("revoked", 5)]
    gate.position(1, 100)
    assert gate.cap(5) == 0 and gate.told[2:] == [("assigned", 5)]


def test_hole_18_a_rewound_marked_partition_takes_back_what_its_survivor_gained() -> None:
    gate = merged()
    gate.position(5, 40)
    gate.position(5, 12)
    assert gate.cap(1) == 1 and gate.told == [("assigned", 1), ("revoked", 1)]
    gate.position(5, 40)
    assert gate.cap(1) == 2 and gate.told[2:] == [("assigned", 1)]


def test_hole_19_a_position_that_is_no_longer_known_takes_nothing_back() -> None:
    """A new coordinator, or a new generation, knows nothing until the owner reports again."""
    child, survivor = created(), merged()
    child.position(1, 100)
    survivor.position(5, 40)
    for gate in (child, survivor):
        gate.gate.forget_positions()
        gate.run()
    assert (child.cap(5), survivor.cap(1)) == (0, 2)
    child.position(1, -1)
    assert child.cap(5) == 0


def test_hole_19_a_partition_taken_over_is_checked_again_with_positions_of_its_own_time() -> None:
    gate = created()
    gate.position(1, 100)
    gate.gate.forget_positions()
    gate.gate.assign([], gate.topics)
    gate.gate.assign([tp(5)], gate.topics)
    gate.run()
    assert gate.cap(5) == CLOSED


def test_nothing_new_is_delivered_before_the_callback_returned() -> None:
    child, survivor = created(), merged()
    child.gate.on_position(tp(1), 101, 100)
    survivor.gate.on_position(tp(5), 105, 40)
    for gate in (child.gate, survivor.gate):
        gate.evaluate()
    assert (child.gate.keys_assigned(), survivor.gate.keys_assigned()) == ([tp(5)], [tp(1)])
    assert (child.cap(5), survivor.cap(1)) == (CLOSED, 1)
    child.gate.announced([tp(5)])
    survivor.gate.announced([tp(1)])
    assert (child.cap(5), survivor.cap(1)) == (0, 2)
    assert not child.gate.keys_assigned() and not survivor.gate.keys_assigned()


def test_a_partition_blocked_again_during_the_callback_stays_closed() -> None:
    gate = created()
    gate.gate.on_position(tp(1), 101, 100)
    gate.gate.evaluate()
    told = gate.gate.keys_assigned()
    gate.gate.on_position(tp(1), 101, 10)
    gate.gate.evaluate()
    gate.gate.announced(told)
    assert gate.cap(5) == CLOSED and not gate.gate.keys_revoked()


def test_a_merge_that_was_passed_stays_passed_when_another_follows() -> None:
    gate = Gate(topic(1, 2, [3, 2, 2], version=2), 0)
    gate.map(2, PartitionMap(102, 0, 0, merged_into=0, epoch_before_deletion=2, sealed_offset=20))
    gate.position(2, 20)
    assert gate.cap(0) == 3
    gate.metadata(topic(1, 1, [4, 3, 2], version=3))
    gate.map(1, PartitionMap(101, 0, 0, merged_into=0, epoch_before_deletion=3, sealed_offset=10))
    assert gate.cap(0) == 3 and gate.told == [("assigned", 0)]
    gate.position(1, 10)
    assert gate.cap(0) == 4 and gate.told == [("assigned", 0), ("assigned", 0)]


def test_a_merged_partition_that_was_removed_before_the_user_was_told_waits_only_for_that() -> None:
    gate = Gate(topic(1, 3, [3, 2, 2, 2], version=2), 1)
    gate.gate.assign([tp(0)], gate.topics)
    gate.gate.evaluate()
    gate.metadata(topic(1, 1, [4, 3, 3, 2, 2], version=3))
    for p, epoch in ((1, 3), (2, 3), (4, 2)):
        gate.gate.on_map(tp(p), PartitionMap(100 + p, 0, 0, 0, epoch, 10))
    gate.map(3, PartitionMap(103, 1, 0, 1, 1, 10))
    assert gate.cap(0) == 2
    gate.metadata(topic(1, 1, [4, 3, 3, 2], version=3))
    gate.run()
    assert gate.cap(0) == 3 and gate.told == [("assigned", 0)]


def test_removal_of_the_marked_partitions_frees_and_tells() -> None:
    gate = merged()
    gate.metadata(topic(4, 4, [2, 2, 2, 2], version=2))
    assert gate.cap(1) == 2 and gate.told == [("assigned", 1)]


def test_a_survivor_is_told_once_per_merge() -> None:
    gate = merged()
    gate.position(5, 40)
    gate.metadata(topic(4, 4, [3, 3, 3, 3, 2, 2], version=2))
    gate.map(5, MERGED)
    gate.metadata(topic(4, 4, [3, 3, 3, 3], version=2))
    assert gate.told == [("assigned", 1)]


def test_metadata_of_a_broker_that_does_not_know_the_topic_changes_nothing() -> None:
    gate = created()
    gate.position(1, 100)
    gate.metadata(topic(4, 6, []))
    assert gate.cap(5) == 0


def test_facts_of_topics_given_up_are_forgotten() -> None:
    gate = created()
    gate.position(1, 100)
    gate.gate.assign([], gate.topics)
    facts: list[Mapping[object, object]] = [
        gate.gate._maps,
        gate.gate._end_offsets,
        gate.gate._positions,
        gate.gate._log_starts,
        gate.gate._questions,
    ]
    assert not any(facts)
    assert gate.cap(5) == CLOSED


def test_partitions_of_two_topics_do_not_meet() -> None:
    other = topic(4, 6, [1, 1, 1, 1, 0, 0], name="u")
    gate = DeliveryGate()
    gate.assign([tp(5), TopicPartition("u", 5)], {"t": grown(), "u": other})
    gate.on_map(tp(5), FROM_1)
    gate.on_end_offset(tp(1), 0, 1, 100)
    gate.on_position(tp(1), 101, 100)
    gate.evaluate()
    assert gate.keys_assigned() == [tp(5)]
    assert list(gate.questions().maps) == [TopicPartition("u", 5)]
