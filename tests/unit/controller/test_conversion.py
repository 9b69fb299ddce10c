"""State znodes of a release that resized by barriers: what they say becomes lineage, or cannot be judged."""

from __future__ import annotations

import uuid

import pytest

from controller.resize.conversion import converted, is_old, unsettled
from ordered_resize.consistency import contradictions
from ordered_resize.snapshot import Snapshot
from zk_schemas.partition_state import Layout, PartitionState
from zk_schemas.topic import TopicZnode


def old(epoch: int, layout: tuple[int, int], **fields: object) -> PartitionState:
    return PartitionState(1, 1, epoch, [1], layout=Layout(*layout)).replace(**fields)


def draining() -> tuple[TopicZnode, dict[int, PartitionState]]:
    """Created with 4 partitions, grown to 6, shrunk to 4: 4 and 5 drain. The example of the design."""
    topic = TopicZnode.new(uuid.UUID(int=1), {p: [1] for p in range(6)})
    topic = topic.replace(initial_partition_count=4, undeleted_partition_count=4, layout_version=2)
    states = {p: old(2, (4, 2)) for p in range(4)}
    for p in (4, 5):
        states[p] = old(1, (4, 2), sealed_offset=40, leader_epoch_after_creation={p - 4: 0})
        states[p] = states[p].replace(leader_epoch_before_deletion={p - 4: 1})
    return topic, states


def test_maps_become_entries_in_a_bump() -> None:
    topic, states = draining()
    assert unsettled(topic, states) == ""
    after = converted(topic, states, 7)
    assert list(after) == list(range(6)), "what is counted goes first"
    assert [(state.leader_epoch, state.lineage) for state in after.values()] == [
        (3, ((2, {4: 0}),)),
        (3, ((2, {5: 0}),)),
        (3, ()),
        (3, ()),
        (2, ((0, {0: 0}),)),
        (2, ((0, {1: 0}),)),
    ]
    assert all(state.layout == Layout(4, 2) and state.initial_partition_count == 4 for state in after.values())
    assert not any(map(is_old, after.values())) and converted(topic, after, 8) == {}
    assert contradictions(Snapshot(topic, after)) == []


def test_a_controller_that_died_in_between_is_followed() -> None:
    topic, states = draining()
    whole = converted(topic, states, 7)
    for done in range(7):
        half = states | dict(list(whole.items())[:done])
        assert unsettled(topic, half) == ""
        assert half | converted(topic, half, 7) == whole


def test_several_merges_and_a_second_life() -> None:
    """8 -> 6 -> 4: partitions 6 and 7 merged into 2 and 3 first. 5 was removed once, in epoch 3."""
    topic = TopicZnode.new(uuid.UUID(int=1), {p: [1] for p in range(8)})
    topic = topic.replace(
        initial_partition_count=2, undeleted_partition_count=4, layout_version=9, last_leader_epochs={5: 3}
    )
    states = {p: old(8, (4, 9), leader_epoch_after_creation={p - 2: 0} if p > 1 else {}) for p in range(4)}
    for p, epoch in ((4, 6), (5, 6), (6, 5), (7, 5)):
        states[p] = old(epoch, (4, 9) if p < 6 else (6, 8), sealed_offset=0, leader_epoch_after_creation={p - 4: 2})
        states[p] = states[p].replace(leader_epoch_before_deletion={p - 4: 7 if p < 6 else 6})
    after = converted(topic, states, 7)
    assert after[2].lineage == ((0, {0: 0}), (7, {6: 4}))
    assert after[1].lineage == ((8, {5: 5}),)
    assert after[5].lineage == ((4, {1: 2}),), "its life began above the last leader epoch of the one before"


@pytest.mark.parametrize(
    ("partition", "change"),
    [
        (4, {"sealed_offset": -1}),
        (0, {"layout": Layout(6, 1)}),
        (3, {"layout": None}),
    ],
    ids=["unsealed", "survivor-behind", "survivor-never-told"],
)
def test_a_resize_that_is_unfinished_is_not_judged(partition: int, change: dict[str, object]) -> None:
    topic, states = draining()
    states[partition] = states[partition].replace(**change)
    assert unsettled(topic, states).startswith(f"partition {partition}: a resize that an earlier release began")
    del states[partition]
    assert unsettled(topic, states).startswith(f"partition {partition}: ")


def test_what_is_being_removed_goes_as_it_is() -> None:
    topic, states = draining()
    states[5] = states[5].replace(leader=-2)
    after = converted(topic, states, 7)
    assert 5 not in after and after[1].lineage == ((2, {5: 0}),)
