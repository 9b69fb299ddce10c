"""The phases and steps of a resize in the design's example: 4 -> 6 -> 4 -> 8. Partitions 4 and 5 drain meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import pytest

from anabranch.ordered_resize import next_step
from anabranch.ordered_resize.next_step import STEPS
from anabranch.ordered_resize.removal import MAX_TOGETHER
from anabranch.ordered_resize.snapshot import Phase, Snapshot
from anabranch.protocol.sentinels import LEADER_DURING_DELETE, NO_LEADER
from anabranch.zk_schemas.partition_state import Before, LineageEntry, PartitionLayout, PartitionState
from tests.support.resize.resized_topic import NEXT_ID, Topic


def entry(epoch: int, losers: dict[int, int]) -> LineageEntry:
    return LineageEntry(epoch, losers)


def test_the_example_of_the_design_is_carried_out() -> None:
    t = Topic(4)
    t.ask(6)
    assert (t.topic.undeleted_partition_count, t.topic.previous_undeleted_partition_count) == (6, 4)
    assert t.topic.layout_version == 1 and t.topic.partitions[5] == [2, 1]
    t.carry_out()
    assert t.layout(1) == (1, PartitionLayout(6, 1), Before(PartitionLayout(4, 0), 0))
    assert t.layout(5) == (0, PartitionLayout(6, 1), None) and t.states[5].lineage == (entry(0, {1: 0}),)
    assert (t.states[5].leader, t.states[5].isr) == (2, [2, 1])

    t.ask(4)
    t.carry_out()
    assert t.layout(1) == (2, PartitionLayout(4, 2), Before(PartitionLayout(6, 1), 1)) and t.states[1].lineage == (
        entry(2, {5: 0}),
    )
    assert t.layout(5) == (1, PartitionLayout(4, 2), Before(PartitionLayout(6, 1), 0))
    assert t.states[2].lineage == () and t.states[2].layout == PartitionLayout(4, 2)

    t.ask(8)
    t.carry_out()
    assert t.layout(1) == (3, PartitionLayout(8, 3), Before(PartitionLayout(4, 2), 2))
    assert t.layout(5) == (2, PartitionLayout(8, 3), Before(PartitionLayout(4, 2), 1))
    assert t.states[5].lineage == (entry(0, {1: 0}), entry(2, {1: 2}))
    assert t.states[7].lineage == (entry(0, {3: 2}),)


def test_the_example_is_carried_out_when_partition_5_is_removed_before_the_second_grow() -> None:
    t = Topic(4)
    for count in (6, 4):
        t.ask(count)
        t.carry_out()
    t.carry_out(drained=[4, 5])
    assert {t.states[4].leader, t.states[5].leader} == {LEADER_DURING_DELETE}
    t.carry_out(deleted={4: 7, 5: 40})
    assert (t.topic.last_leader_epochs, t.topic.last_offsets) == ({4: 1, 5: 1}, {4: 7, 5: 40})
    assert sorted(t.topic.partitions) == sorted(t.states) == [0, 1, 2, 3] and t.topic.topic_id == NEXT_ID
    assert t.states[1].lineage == (entry(2, {5: 0}),)

    t.ask(8)
    t.carry_out()
    assert (t.topic.last_leader_epochs, t.topic.last_offsets) == ({4: 1, 5: 1}, {4: 7, 5: 40})
    assert t.states[5].leader_epoch == 2 and t.states[5].lineage == (entry(2, {1: 2}),)
    assert (t.states[1].lineage, t.states[1].floor) == ((), 2)  # partition 5 is over, because 1 >= 0


def test_a_new_partition_is_no_ancestor_of_another_new_one() -> None:
    """Hole 1: partition 8 splits from partition 0, because partition 4 is new as well. Later, 4 is the parent of 8."""
    t = Topic(4)
    t.ask(16)
    t.carry_out()
    assert {p: t.states[p].lineage for p in range(4, 16)} == {p: (entry(0, {p % 4: 0}),) for p in range(4, 16)}


def test_a_split_after_a_split_names_the_nearest_ancestor() -> None:
    t = Topic(4)
    for count in (8, 16):
        t.ask(count)
        t.carry_out()
    expected = {p: (entry(0, {p - 8: 1 if p - 8 < 4 else 0}),) for p in range(8, 16)}
    assert {p: t.states[p].lineage for p in range(8, 16)} == expected


def test_a_second_shrink_while_the_first_drains_keeps_the_first_lineage_entries() -> None:
    t = Topic(4)
    for count in (8, 6):
        t.ask(count)
        t.carry_out()
    first = {p: t.states[p].lineage for p in (2, 3, 6, 7)}
    assert first == {
        2: (entry(2, {6: 0}),),
        3: (entry(2, {7: 0}),),
        6: (entry(0, {2: 0}),),
        7: (entry(0, {3: 0}),),
    }
    t.ask(4)
    t.carry_out()
    assert {p: t.states[p].lineage for p in (2, 3, 6, 7)} == first
    assert (t.states[0].lineage, t.states[1].lineage) == ((entry(3, {4: 1}),), (entry(3, {5: 1}),))
    assert t.states[6].layout == t.states[7].layout == PartitionLayout(6, 2)
    t.carry_out(drained=range(4, 8), deleted=dict.fromkeys(range(4, 8), 40))
    assert t.topic.last_leader_epochs == {4: 2, 5: 2, 6: 1, 7: 1}


def test_a_thousand_partitions_become_two_thousand_in_one_resize() -> None:
    """Partition znodes stay below 1 KiB, and the topic's znode below 64 KiB."""
    t = Topic(4)
    t.electable = {p: [2, 1] for p in range(2000)}
    for count in (1000, 2000):
        t.ask(count)
        while steps := next_step.next_steps(t.snapshot()):
            for step in steps:
                t.write(step)
        assert next_step.is_settled(t.snapshot()) and len(t.states) == count
    topic = t.topic.replace(partitions={p: [1, 2, 3] for p in range(2000)})
    assert len(topic.encode()) < 64 * 1024
    assert max(len(state.encode()) for state in t.states.values()) < 1024


def found(snapshot: Snapshot) -> dict[int, Phase]:
    return next_step.phases(snapshot)


def test_a_gainer_waits_only_for_its_own_losers() -> None:
    t = Topic(4)
    t.ask(6)
    for p in (1, 2):
        t.write(STEPS[Phase.BUMP](t.snapshot(), p))
    assert [phase.name for phase in found(t.snapshot(silent=[1])).values()] == [
        "BUMP",
        "UNANSWERED",
        "SETTLED",
        "BUMP",
        "BEHIND",
        "BEHIND",
    ]
    assert found(t.snapshot())[5] is Phase.CREATE
    t.electable = {}
    assert found(t.snapshot())[5] is Phase.LEADERLESS
    assert {step.name for step in next_step.next_steps(t.snapshot())} == {"bump"}


@pytest.mark.parametrize(
    ("removed_at", "first", "epoch"), [(None, 0, 0), (None, 5, 5), (3, 0, 4), (3, 9, 9), (7, 5, 8)]
)
def test_a_created_partition_begins_above_all_epochs_of_its_number_and_of_deleted_topics(
    removed_at: int | None, first: int, epoch: int
) -> None:
    t = Topic(1)
    if removed_at is not None:
        t.topic = t.topic.replace(last_leader_epochs={1: removed_at})
    t.ask(2)
    t.write(STEPS[Phase.BUMP](t.snapshot(), 0))
    (step,) = next_step.next_steps(dataclasses.replace(t.snapshot(), first_leader_epoch=first))
    assert (step.states[1].leader_epoch, step.states[1].lineage) == (epoch, (entry(epoch, {0: 0}),))


def test_only_the_phases_that_do_not_wait_have_a_step() -> None:
    assert STEPS.keys() == {Phase.BUMP, Phase.GAIN, Phase.CREATE}


def test_a_bump_keeps_leader_and_unknown_fields_and_raises_only_its_epoch() -> None:
    t = Topic(1)
    t.states[0] = PartitionState(3, NO_LEADER, 5, [2], extra={"theirs": 1})
    t.topic = next_step.begun(t.snapshot(), 2, lambda new: {key: [1] for key in new})
    (step,) = next_step.next_steps(t.snapshot())
    bumped = step.states[0]
    assert (bumped.leader, bumped.isr, bumped.leader_epoch, bumped.controller_epoch) == (NO_LEADER, [2], 6, 4)
    assert bumped.extra == {"theirs": 1} and bumped.before == Before(PartitionLayout(1, 0), 5)


def test_each_entry_has_the_time_of_its_write_for_as_long_as_it_is_there() -> None:
    t = Topic(1)
    for t.now_ms, count in ((100, 2), (200, 1), (300, 2)):
        t.ask(count)
        t.carry_out()
    assert [entry.epoch for entry in t.states[1].lineage] == [0, 2]
    assert t.states[1].lineage_times == {0: 100, 2: 300} and t.states[0].lineage_times == {2: 200}
    t.now_ms = 400
    t.ask(1)
    t.carry_out()
    t.carry_out(drained=[1], deleted={1: 40})
    t.now_ms = 500
    t.ask(2)
    t.carry_out()
    assert t.states[0].lineage == () and t.states[0].lineage_times == {}
    assert list(t.states[1].lineage_times.values()) == [500]


def test_without_a_clock_and_in_states_of_earlier_releases_no_time_is_invented() -> None:
    t = Topic(1)
    for count, t.now_ms in ((2, -1), (1, -1), (2, 300)):
        t.ask(count)
        t.carry_out()
    assert [entry.epoch for entry in t.states[1].lineage] == [0, 2]
    assert t.states[1].lineage_times == {2: 300} and t.states[0].lineage_times == {}


def test_elections_change_neither_the_layout_nor_the_previous_layout() -> None:
    """A loser's last epoch under the old layout stays in the loser's znode, even if elections follow the bump."""
    t = Topic(1)
    t.ask(2)
    t.write(next_step.next_steps(t.snapshot())[0])
    t.states[0] = t.states[0].replace(leader_epoch=9)
    t.carry_out()
    assert t.states[1].lineage == (entry(0, {0: 0}),)


def test_a_topic_whose_partitions_were_never_led_is_not_settled() -> None:
    t = Topic(2)
    del t.states[1]
    assert found(t.snapshot())[1] is Phase.UNLED and not next_step.is_settled(t.snapshot())
    t.states[1] = PartitionState(3, NO_LEADER, -1, [])
    assert found(t.snapshot())[1] is Phase.UNLED and next_step.next_steps(t.snapshot()) == []


def test_the_last_of_several_requests_is_queued_and_a_request_for_the_goal_takes_it_back() -> None:
    t = Topic(2)
    t.ask(4)
    for count in (3, 7):
        t.ask(count)
        assert (t.topic.undeleted_partition_count, t.topic.wanted) == (4, count)
    t.ask(4)
    assert (t.topic.undeleted_partition_count, t.topic.wanted) == (4, None)


def test_a_resize_is_taken_back_until_a_gainer_is_bumped() -> None:
    t = Topic(2)
    t.ask(4)
    t.write(STEPS[Phase.BUMP](t.snapshot(), 0))
    t.ask(2)
    assert (t.topic.undeleted_partition_count, t.topic.previous_undeleted_partition_count) == (2, 2)
    assert t.topic.layout_version == 2 and sorted(t.topic.partitions) == [0, 1]
    t.carry_out()
    assert t.states[0].layout == t.states[1].layout == PartitionLayout(2, 2)
    assert not t.states[0].lineage and 2 not in t.states

    t.ask(4)
    t.write(STEPS[Phase.BUMP](t.snapshot(), 0))
    t.write(STEPS[Phase.CREATE](t.snapshot(), 2))
    t.ask(2)
    assert (t.topic.undeleted_partition_count, t.topic.wanted) == (4, 2)


def test_a_cancel_keeps_the_partitions_that_drain() -> None:
    t = Topic.split(2, 4)
    t.ask(2)
    t.carry_out()
    t.ask(6)
    t.ask(2)
    assert t.topic.layout_version == 4 and sorted(t.topic.partitions) == [0, 1, 2, 3]
    t.carry_out()
    assert t.states[2].layout == PartitionLayout(2, 2)  # still closed by the shrink


def drained(parts: int, **given: Collection[int]) -> list[int]:
    """Return the partitions whose removal begins in a topic that shrank from ``parts`` to 1."""
    t = Topic.split(1, parts)
    t.ask(1)
    t.carry_out()
    steps = next_step.next_steps(t.snapshot(**given))
    return sorted(steps[0].states) if steps else []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"drained": [4]}, [4]),
        ({"drained": [2, 4]}, [4]),
        ({"drained": [1, 2, 3, 4]}, [1, 2, 3, 4]),
        ({"drained": [3]}, []),
        ({"drained": [3, 4], "silent": [3]}, [4]),
    ],
)
def test_the_highest_drained_partitions_are_removed_first(
    given: dict[str, Collection[int]], expected: list[int]
) -> None:
    assert drained(5, **given) == expected


def test_nothing_is_removed_before_every_gainer_is_bumped() -> None:
    """Hole 13: a gainer reads a loser's last epoch from the loser's znode.

    Partition 5 is drained, while partition 0 still waits for partition 4.
    """
    t = Topic(4)
    for count in (6, 4):
        t.ask(count)
        t.carry_out(silent=[4] if count == 4 else [])
    assert (t.states[0].layout, t.states[1].layout) == (PartitionLayout(6, 1), PartitionLayout(4, 2))
    assert next_step.next_steps(t.snapshot(silent=[4], drained=[5])) == []
    t.carry_out()
    assert (t.states[0].lineage, t.states[1].lineage) == ((entry(2, {4: 0}),), (entry(2, {5: 0}),))
    (removal,) = next_step.next_steps(t.snapshot(drained=[5]))
    assert sorted(removal.states) == [5] and removal.states[5].leader == LEADER_DURING_DELETE


def test_removals_of_one_write_are_bounded() -> None:
    assert drained(150, drained=range(150)) == list(range(150 - MAX_TOGETHER, 150))


def test_the_removal_of_a_partition_that_the_next_resize_counts_does_not_begin() -> None:
    t = Topic.split(1, 3)
    t.ask(1)
    t.carry_out()
    t.topic = t.topic.replace(wanted=2)
    (step,) = next_step.next_steps(t.snapshot(drained=[1, 2]))
    assert sorted(step.states) == [2]


def test_the_end_of_a_resize_is_recorded_once_every_leader_has_answered() -> None:
    t = Topic(4)
    t.ask(6)
    t.carry_out(silent=[2])
    assert next_step.next_steps(t.snapshot(silent=[2])) == [] and not next_step.is_over(t.snapshot(silent=[2]))
    (step,) = next_step.next_steps(t.snapshot())
    assert (step.name, step.states, step.deleted) == ("finished", {}, ())
    assert step.topic == t.topic.replace(finished_layout_version=1)
    t.write(step)
    assert next_step.next_steps(t.snapshot()) == []


def test_a_recorded_end_does_not_begin_the_next_resize_while_a_leader_is_silent() -> None:
    """A leader that was elected after the end may still have an older layout (rule 4)."""
    t = Topic(4)
    t.ask(6)
    t.carry_out()
    assert next_step.is_over(t.snapshot(silent=[2])) and not next_step.may_begin(t.snapshot(silent=[2]), 8)


def test_a_topic_that_is_resized_again_is_not_over() -> None:
    t = Topic(4)
    for count in (6, 8):
        t.ask(count)
        assert not next_step.is_recorded(t.topic) and not next_step.is_over(t.snapshot())
        t.carry_out()
    t.ask(12)
    t.ask(8)
    assert (t.topic.layout_version, t.topic.finished_layout_version) == (4, 2), "cancelled, and not acknowledged yet"


def test_a_grow_waits_for_a_removal_that_has_begun_and_never_lowers_a_log_end() -> None:
    t = Topic.split(1, 2)
    t.topic = t.topic.replace(last_offsets={1: 60})
    t.ask(1)
    t.carry_out(drained=[1])
    t.ask(2)
    assert (t.topic.undeleted_partition_count, t.topic.wanted) == (1, 2)
    t.carry_out(deleted={1: 50})
    assert t.topic.last_offsets == {1: 60} and t.topic.wanted == 2
    assert next_step.may_begin(t.snapshot(), 2)
