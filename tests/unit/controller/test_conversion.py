"""State znodes of a release that resized by barriers are converted to lineage, if they can be judged."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

from anabranch.controller.resize.conversion import Converted, converted, held, is_old, judged
from anabranch.ordered_resize.consistency import contradictions
from anabranch.ordered_resize.resize import next_steps
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.zk_schemas.partition_state import Layout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.earlier_release import recorded

MANY = 1000


def old(epoch: int, layout: tuple[int, int], **fields: object) -> PartitionState:
    return PartitionState(1, 1, epoch, [1], layout=Layout(*layout)).replace(**fields)


def draining() -> tuple[TopicZnode, dict[int, PartitionState]]:
    """Return the example of the design: 4 partitions, grown to 6 and shrunk to 4. Partitions 4 and 5 drain."""
    topic = TopicZnode.new(uuid.UUID(int=1), {p: [1] for p in range(6)})
    topic = topic.replace(initial_partition_count=4, undeleted_partition_count=4, layout_version=2)
    states = {p: old(2, (4, 2)) for p in range(4)}
    for p in (4, 5):
        states[p] = old(1, (4, 2), sealed_offset=40, leader_epoch_after_creation={p - 4: 0})
        states[p] = states[p].replace(leader_epoch_before_deletion={p - 4: 1})
    return topic, states


def test_the_maps_of_an_earlier_release_become_lineage_entries_in_a_bump() -> None:
    topic, states = draining()
    after = converted(topic, states, 7).changed
    assert list(after) == list(range(6)), "counted partitions come first"
    assert [(state.leader_epoch, state.lineage) for state in after.values()] == [
        (3, ((2, {4: 0}),)),
        (3, ((2, {5: 0}),)),
        (3, ()),
        (3, ()),
        (2, ((0, {0: 0}),)),
        (2, ((0, {1: 0}),)),
    ]
    assert all(state.layout == Layout(4, 2) and state.initial_partition_count == 4 for state in after.values())
    assert not any(map(is_old, after.values())) and converted(topic, after, 8).changed == {}
    assert contradictions(Snapshot(topic, after)) == []


def test_several_merges_and_a_recreated_partition_are_converted() -> None:
    """8 -> 6 -> 4: first partition 6 merged into 2, and 7 into 3. Partition 5 was removed once, in epoch 3."""
    topic = TopicZnode.new(uuid.UUID(int=1), {p: [1] for p in range(8)})
    topic = topic.replace(
        initial_partition_count=2, undeleted_partition_count=4, layout_version=9, last_leader_epochs={5: 3}
    )
    states = {p: old(8, (4, 9), leader_epoch_after_creation={p - 2: 0} if p > 1 else {}) for p in range(4)}
    for p, epoch in ((4, 6), (5, 6), (6, 5), (7, 5)):
        states[p] = old(epoch, (4, 9) if p < 6 else (6, 8), sealed_offset=0, leader_epoch_after_creation={p - 4: 2})
        states[p] = states[p].replace(leader_epoch_before_deletion={p - 4: 7 if p < 6 else 6})
    after = converted(topic, states, 7).changed
    assert after[2].lineage == ((0, {0: 0}), (7, {6: 4}))
    assert after[1].lineage == ((8, {5: 5}),)
    assert after[5].lineage == ((4, {1: 2}),), (
        "the new incarnation began above the last leader epoch of the earlier one"
    )


def resized_so_far(name: str) -> Snapshot:
    return Snapshot(*recorded.topic(name), controller_epoch=7)


def applied(snapshot: Snapshot, found: Converted, writes: int = MANY) -> Snapshot:
    """Return the znodes after the first ``writes`` of a conversion."""
    states = dict(snapshot.states)
    changed = list(found.changed.items())[: max(0, writes - 1)]
    states |= dict(changed)
    for p in found.never_led[: max(0, writes - 1 - len(found.changed))]:
        del states[p]
    return dataclasses.replace(snapshot, topic=found.topic if writes else snapshot.topic, states=states)


def found_of(snapshot: Snapshot) -> Converted:
    found, why = judged(snapshot)
    assert found is not None, why
    return found


def completed(snapshot: Snapshot) -> Snapshot:
    """Return the topic after all due steps. The leaders answer at once."""
    for _ in range(20):
        replicas = {p: list(on) for p, on in snapshot.topic.partitions.items()}
        answered = set(snapshot.states)
        steps = next_steps(dataclasses.replace(snapshot, answered=answered, electable=replicas))
        if not steps:
            return snapshot
        for step in steps:
            states = {**snapshot.states, **step.states}
            snapshot = dataclasses.replace(snapshot, topic=step.topic or snapshot.topic, states=states)
    raise AssertionError("the steps never end")


def lineages(snapshot: Snapshot) -> list[list[dict[int, int]]]:
    """Return the losers in each partition's lineage, without the partition's own epochs, which elections raise, too."""
    return [[dict(entry.losers) for entry in state.lineage] for _, state in sorted(snapshot.states.items())]


RECORDED = [name for name in recorded.topics() if any(map(is_old, recorded.topic(name)[1].values()))]


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_resize_continues_after_any_write(name: str) -> None:
    """A recorded, unfinished resize continues after any number of the conversion's writes."""
    snapshot = resized_so_far(name)
    whole = applied(snapshot, found_of(snapshot))
    assert not any(map(is_old, whole.states.values()))
    assert contradictions(whole) == []
    after = completed(whole)
    count = recorded.goal(name)
    assert after.topic.undeleted_partition_count == count
    assert {after.stored(p) for p in range(count)} == {Layout(count, after.topic.layout_version)}
    assert contradictions(after) == []
    for writes in range(1 + len(whole.states) + len(snapshot.states)):
        half = applied(snapshot, found_of(snapshot), writes)
        if any(map(is_old, half.states.values())):
            half = applied(half, found_of(half))
        assert half == whole, f"after {writes} writes"


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith("at-")])
def test_a_resize_that_continues_gets_the_lineage_of_a_finished_one(name: str) -> None:
    """The entries name the last epochs in the recorded maps.

    For a partition that was not bumped yet, the entries name the epoch of the conversion.
    """
    after = completed(applied(resized_so_far(name), found_of(resized_so_far(name))))
    split = [[{p % 2: 0}] for p in (2, 3)]
    if "second" in name:
        not_bumped = {"at-second-grow-losers-first": (2, 1, 1)}.get(name, (1, 0, 0))
        gained = [[{q: f}] for q, f in enumerate((1, *not_bumped))]
        assert lineages(after) == [[], [], *split, *gained]
    elif "shrink" in name:
        assert [[set(losers) for losers in entries] for entries in lineages(after)] == [[{2}], [{3}], [{0}], [{1}]]
        ends = [entries[0][p + 2] for p, entries in enumerate(lineages(after)[:2])]
        assert all(end < after.states[p + 2].leader_epoch for p, end in enumerate(ends))
    else:
        assert lineages(after) == [[], [], *split]


@pytest.mark.parametrize(
    ("name", "partition", "change", "why"),
    [
        ("at-grow-losers", 3, {"layout": Layout(3, 1)}, "partition 2: an earlier release was adding it"),
        ("at-grow-counted", 3, {"layout": Layout(8, 1)}, "partition 2: an earlier release was adding it"),
        ("at-grow-counted", 3, {"leader_epoch_after_creation": {}}, "partition 2: an earlier release was adding it"),
        ("at-shrink-losers", 1, {"layout": Layout(6, 1)}, "partition 0: a resize that an earlier release began"),
        ("at-shrink-losers", 1, {"layout": Layout(4, 0)}, "partition 1: a resize that an earlier release began"),
        ("draining", 0, {"layout": None}, "partition 0: a resize that an earlier release began"),
        ("draining", 2, {"layout": Layout(4, 1)}, "partition 2: layout (4 partitions in version 1) counts the"),
    ],
)
def test_znodes_that_no_release_wrote_are_not_judged(
    name: str, partition: int, change: dict[str, object], why: str
) -> None:
    snapshot = resized_so_far(name)
    states = {**snapshot.states, partition: snapshot.states[partition].replace(**change)}
    edited = dataclasses.replace(snapshot, states=states)
    assert judged(edited)[0] is None
    assert held(edited).startswith(why)


def test_a_partition_without_a_state_is_not_judged() -> None:
    snapshot = resized_so_far("draining")
    gone = {p: state for p, state in snapshot.states.items() if p != 0}
    assert (
        held(dataclasses.replace(snapshot, states=gone))
        == "partition 0: undeleted_partition_count counts it, but it has no state"
    )


def test_a_resize_under_way_waits_until_the_level_is_finalized() -> None:
    assert "it goes on once level 2 of the feature ordered_resize" in held(resized_so_far("at-shrink-sealed"))
    assert held(resized_so_far("draining")) == "", "draining is not an unfinished resize"


def test_a_partition_that_is_being_removed_is_not_converted() -> None:
    topic, states = draining()
    states[5] = states[5].replace(leader=-2)
    after = converted(topic, states, 7).changed
    assert 5 not in after and after[1].lineage == ((2, {5: 0}),)
