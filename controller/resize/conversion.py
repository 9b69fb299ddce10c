"""Converts state znodes of releases that resized by barriers (feature level 1) to lineages. Pure.

Such a state has a layout and no ``initial_partition_count``. It names the partitions from which its partition was
split, or into which it was merged. A bump (a write with leader epoch + 1) converts the state, so that a client that has
read the old state asks again.

A resize in progress continues. Its goal and its previous count follow from the stored layouts. The last epochs of the
previous layout follow from the maps in the old states. The old release first wrote the states of a grow's new
partitions, and counted the partitions later. This release writes the goal first, and creates a partition with its first
leader.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.controller.effects import Effects
from anabranch.controller.reads.topics import FoundTopic
from anabranch.ordered_resize.consistency import contradictions
from anabranch.ordered_resize.judgement import proven
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.key_placement import ancestor_below
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.runtime.env import DeleteOp, SetOp, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.features import LINEAGE_LEVEL, ORDERED_RESIZE
from anabranch.zk_schemas.partition_state import Before, Layout, LineageEntry, PartitionState
from anabranch.zk_schemas.topic import TopicZnode


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted topic. Its znode is written first, then its states; the states of ``never_led`` are deleted last.

    The conversion of the other states needs facts from the states of ``never_led``. Because of this order, the next
    controller can convert the rest if a controller dies in between.
    """

    topic: TopicZnode
    changed: Mapping[int, PartitionState]
    never_led: tuple[int, ...] = ()
    """New partitions of a grow in progress."""


class UnfinishedError(Exception):
    """A resize in progress that cannot go on; the text is the reason."""


def is_old(state: PartitionState) -> bool:
    """Whether an earlier release wrote the layout. A state that is being removed is not converted."""
    return state.layout is not None and state.initial_partition_count is None and not state.being_removed


def judged(snapshot: Snapshot) -> tuple[Converted | None, str]:
    """The converted topic; or None and the reason why the topic cannot be converted, such as a contradiction."""
    try:
        found = converted(snapshot.topic, snapshot.states, snapshot.controller_epoch)
    except UnfinishedError as error:
        return None, str(error)
    states = {p: state for p, state in snapshot.states.items() if p not in found.never_led}
    after = dataclasses.replace(snapshot, topic=found.topic, states={**states, **found.changed})
    wrong = contradictions(proven(after))
    return (None, wrong[0]) if wrong else (found, "")


def held(snapshot: Snapshot) -> str:
    """The reason why a topic with unconverted states is not resized; empty if no resize is in progress."""
    found, why = judged(snapshot)
    if found is None or found.topic == snapshot.topic:
        return why
    return (
        "a resize that an earlier release began is unfinished; it goes on once level"
        f" {LINEAGE_LEVEL} of the feature {ORDERED_RESIZE} is finalized"
    )


def converted(topic: TopicZnode, states: Mapping[int, PartitionState], controller_epoch: int) -> Converted:
    """Convert a topic znode and its states. Raises ``UnfinishedError``."""
    never_led = tuple(p for p, state in sorted(states.items()) if is_old(state) and state.never_led)
    led = {p: state for p, state in sorted(states.items()) if p not in never_led}
    topic = _of_grow(topic, states, never_led) if never_led else _of_shrink(topic, led)
    return Converted(
        topic,
        {
            p: state.replace(
                controller_epoch=controller_epoch,
                leader_epoch=state.leader_epoch + 1,
                initial_partition_count=topic.initial_partition_count,
                before=_before(topic, states, p),
                lineage=_lineage(topic, led, p),
                leader_epoch_after_creation={},
                leader_epoch_before_deletion={},
                sealed_offset=NO_OFFSET,
            )
            for p, state in led.items()
            if is_old(state)
        },
        never_led,
    )


def writing(found: FoundTopic, result: Converted) -> Effects:
    """The effects that write lineages into the topic's znode and its partition states."""
    name = found.name
    groups: list[list[ZkOp]] = [[SetOp(paths.topic(name), result.topic.encode(), found.read.version)]]
    for p, state in result.changed.items():
        read = found.states[p]
        assert read is not None
        groups.append([SetOp(paths.partition_state(name, p), state.encode(), read.version)])
    for p in result.never_led:
        groups.append([DeleteOp(paths.partition_state(name, p)), DeleteOp(paths.partition(name, p))])
    return Effects(groups=groups)


def written(found: FoundTopic, result: Converted) -> FoundTopic:
    """The topic as ``writing`` leaves it. Each write raised the version of its znode by one."""
    gone = {str(p) for p in result.never_led}
    states = {p: znode for p, znode in found.states.items() if p not in result.never_led}
    for p, state in result.changed.items():
        read = states[p]
        assert read is not None
        states[p] = dataclasses.replace(read, data=state.encode(), version=read.version + 1)
    return dataclasses.replace(
        found,
        read=dataclasses.replace(found.read, data=result.topic.encode(), version=found.read.version + 1),
        znode=result.topic.replace(absent=frozenset()),
        present={name for name in found.present if name not in gone},
        states=states,
        present_after={name for name in found.present_after if name not in gone},
    )


def _goal(topic: TopicZnode) -> Layout:
    return Layout(topic.undeleted_partition_count, topic.layout_version)


def _of_grow(topic: TopicZnode, states: Mapping[int, PartitionState], never_led: tuple[int, ...]) -> TopicZnode:
    """The topic znode with the goal of a grow in progress.

    A znode that has the goal, but no previous count, gets the highest previous count that fits. A count fits if each
    new partition then has the ancestor that its state names. New partitions with a leader may lie below this count,
    because they have gained keys already.
    """
    goals = {layout for p in never_led if (layout := states[p].layout) is not None}
    goal = max(goals)
    before = topic.undeleted_partition_count
    if _goal(topic) == goal and topic.previous_undeleted_partition_count is not None:
        before = topic.previous_undeleted_partition_count
    elif _goal(topic) == goal:
        initial = topic.initial_partition_count
        named = {p: set(states[p].leader_epoch_after_creation) for p in never_led}
        fitting = [
            count
            for count in range(initial, never_led[0] + 1)
            if all({ancestor_below(p, initial, count)} == found for p, found in named.items())
        ]
        before = max(fitting, default=goal.undeleted_partition_count)
    count = goal.undeleted_partition_count
    if len(goals) > 1 or not before <= never_led[0] <= never_led[-1] < count <= len(topic.partitions):
        raise UnfinishedError(
            f"partition {never_led[0]}: an earlier release was adding it, but the states of the added partitions name"
            " no single possible count"
        )
    return topic.replace(**goal._asdict(), previous_undeleted_partition_count=before)


def _of_shrink(topic: TopicZnode, states: Mapping[int, PartitionState]) -> TopicZnode:
    """The topic znode with the previous count of a shrink in progress, from a survivor without the new layout."""
    goal, first = _goal(topic), Layout(topic.initial_partition_count, 0)
    counted = {p: states[p].layout or first for p in range(goal.undeleted_partition_count) if p in states}
    prior = {p: layout for p, layout in counted.items() if layout != goal}
    if not prior:
        return topic
    p, layout = min(prior.items(), key=lambda found: found[1].layout_version)
    is_shrink = layout.undeleted_partition_count > goal.undeleted_partition_count
    if set(prior.values()) != {Layout(layout.undeleted_partition_count, goal.layout_version - 1)} or not is_shrink:
        raise UnfinishedError(
            f"partition {p}: a resize that an earlier release began is unfinished, but it cannot have begun with"
            f" {layout.undeleted_partition_count} partitions in version {layout.layout_version}"
        )
    return topic.replace(previous_undeleted_partition_count=layout.undeleted_partition_count)


def _before(topic: TopicZnode, states: Mapping[int, PartitionState], partition: int) -> Before | None:
    """The layout that the bump of the resize in progress replaced, with the last epoch of this layout.

    If another partition waits for this partition, the waiting partition's map has the last epoch. If no partition
    waits, any later epoch is right. For a marked partition any later epoch is right too, because the partition has
    taken no records since.
    """
    previous, state = topic.previous_undeleted_partition_count, states[partition]
    if previous is None or partition >= previous or state.layout != _goal(topic):
        return None
    marked = range(topic.undeleted_partition_count, previous)
    maps = [states[p].leader_epoch_before_deletion for p in marked if p in states]
    maps += [states[p].leader_epoch_after_creation for p in range(previous, len(topic.partitions)) if p in states]
    named = [epochs[partition] for epochs in maps if partition in epochs]
    return Before(Layout(previous, topic.layout_version - 1), min(named, default=state.leader_epoch))


def _lineage(topic: TopicZnode, states: Mapping[int, PartitionState], partition: int) -> tuple[LineageEntry, ...]:
    """The lineage of a partition: its ancestor, and the partitions that merged into it.

    The ancestor's entry begins with the partition's first epoch. The entry of a merged partition begins after the last
    epoch before the merge. A marked partition takes no records after its seal, so all its later epochs end at the seal.
    If a shrink in progress merges partitions, their entry is part of the bump that is not written yet.
    """
    found: dict[int, dict[int, int]] = {}
    layout, created = states[partition].layout, states[partition].leader_epoch_after_creation
    if created:
        found[topic.last_leader_epochs.get(partition, -1) + 1] = dict(created)
    for p, state in states.items():
        survivor_epoch = state.leader_epoch_before_deletion.get(partition)
        if survivor_epoch is not None and layout is not None and p >= layout.undeleted_partition_count:
            found.setdefault(survivor_epoch + 1, {})[p] = state.leader_epoch - 1
    return tuple(LineageEntry(epoch, losers) for epoch, losers in sorted(found.items()))
