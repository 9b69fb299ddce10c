"""Whether the states of a topic's partitions agree with each other and with the topic: pure, for znodes that were read.

Anybody may edit a znode, and what two of them say of one thing, the initial count above all, places every key. Where
one state alone is at odds it is set aside, and resizes wait until it is repaired; so are both where one state says of
another what that denies. Where the topic is at odds with several, ``controller.resize.unseen`` restores it; where
nobody can say which of two is right nothing is decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from controller.image import TopicImage
from controller.resize import unseen
from protocol.key_placement import ancestors
from zk_schemas.partition_state import Layout, PartitionState


class Examined(NamedTuple):
    """What is at odds, by partition, and how, in words."""

    wrong: Mapping[int, str]
    is_told: bool
    """Whether it is these states that are wrong. If not it may as well be the topic."""


def examine(topic: TopicImage) -> Examined:
    """Of a topic that was just read, before what was edited in its own znode is undone."""
    told, proven = topic.znode.initial_partition_count, unseen.initial_count(topic)
    against_told = _contradictions(topic, told)
    if proven == told or topic.unreadable:
        marked = {} if against_told else _marked_by_nobody(topic)
        return Examined(against_told or marked, is_told=not marked)
    is_absent = "initial_partition_count" in topic.znode.absent
    against_proven = _contradictions(topic, proven)
    if len(against_told) == 1 and against_proven and not is_absent:
        return Examined(against_told, is_told=True)
    was_resized = any(state.layout is not None for state in topic.states())
    if not is_absent and not against_told and (alone := _lone_proof(topic, proven)):
        return Examined(alone, is_told=False)
    if not against_proven and (is_absent or len(against_told) != 1 or not was_resized):
        return Examined({}, is_told=True)
    return Examined(against_told | against_proven, is_told=False)


def _contradictions(topic: TopicImage, initial: int) -> dict[int, str]:
    """The states that cannot be if the topic was created with ``initial`` partitions."""
    found = _stray_layout(topic)
    for index in sorted(topic.partitions):
        state = topic.state(index)
        for partition, why in () if state is None else _against(topic, index, state, initial):
            found.setdefault(partition, why)
    return found


def _against(topic: TopicImage, index: int, state: PartitionState, initial: int) -> Iterator[tuple[int, str]]:
    """What speaks against this state, or against another that it names."""
    created, deleted = state.leader_epoch_after_creation, state.leader_epoch_before_deletion
    if index >= initial and not created:
        yield index, f"leaderEpochAfterCreation is missing, though the topic was created with {initial} partitions"
    if state.sealed_offset >= 0 and not deleted:
        yield index, "sealed_offset is set without leaderEpochBeforeDeletion"
    if state.being_removed and state.sealed_offset < 0:
        yield index, f"leader is {state.leader}, that of a partition being removed, without sealed_offset"
    if state.never_led and _was_led(topic, index, state, initial):
        yield index, f"isr is empty, though the partition was led, at last in leader epoch {state.leader_epoch}"
    for name, epochs in (("leaderEpochAfterCreation", created), ("leaderEpochBeforeDeletion", deleted)):
        if epochs and index < initial:
            yield index, f"{name} is set, though the topic was created with {initial} partitions"
        elif epochs and state.layout is None:
            yield index, f"{name} is set without layout"
        for ancestor, epoch in epochs.items():
            known = topic.state(ancestor)
            if index < initial or ancestor not in ancestors(index, initial):
                yield index, f"{name} names partition {ancestor}, which is no ancestor of {index}"
            elif known is not None and epoch > known.leader_epoch:
                at = known.leader_epoch
                yield index, f"{name} names leader epoch {epoch} of partition {ancestor}, which is at {at}"
                yield ancestor, f"leader_epoch is {at}, though {name} of partition {index} names {epoch}"


def _was_led(topic: TopicImage, index: int, state: PartitionState, initial: int) -> bool:
    """What a grow adds is not led before it is counted, and goes on from the last epoch of a predecessor."""
    if index < initial:
        return True
    is_known = "last_leader_epochs" not in topic.znode.absent
    return is_known and state.leader_epoch != topic.znode.last_leader_epochs.get(index, -1)


def _agreed(topic: TopicImage) -> tuple[Layout, dict[int, Layout]]:
    """The topic's layout, and those of the partitions that take records; none while a grow is under way."""
    layout = Layout(topic.znode.undeleted_partition_count, topic.znode.layout_version)
    if any(state.never_led for state in topic.states()):
        return layout, {}
    return layout, {index: topic.layout(index) for index in range(layout[0]) if topic.state(index) is not None}


def _stray_layout(topic: TopicImage) -> dict[int, str]:
    """A layout newer than that of the topic and of all other partitions."""
    agreed, counted = _agreed(topic)
    stray = [index for index, layout in counted.items() if layout != agreed]
    if len(stray) != 1 or len(counted) == 1:
        return {}
    layout = counted[stray[0]]
    if layout.layout_version < agreed.layout_version:
        return {}
    return {stray[0]: f"layout is {_shown(layout)}, that of the topic and of the other partitions {_shown(agreed)}"}


def _lone_proof(topic: TopicImage, initial: int) -> dict[int, str]:
    """The one state whose layout alone says that the topic was created with ``initial`` partitions."""
    newest = unseen.stored_layout(topic)
    storing = [index for index in topic.partitions if (state := topic.state(index)) and state.layout == newest]
    if len(storing) != 1 or any(state.leader_epoch_after_creation for state in topic.states()):
        return {}
    told = topic.znode.initial_partition_count
    return {storing[0]: f"layout is of {initial} partitions with none split off, though the topic began with {told}"}


def _marked_by_nobody(topic: TopicImage) -> dict[int, str]:
    """Counted partitions that are marked for deletion though no shrink is under way: the topic says so first."""
    agreed, counted = _agreed(topic)
    if any(layout != agreed for layout in counted.values()):
        return {}
    marked = [index for index in counted if (state := topic.state(index)) and state.leader_epoch_before_deletion]
    return dict.fromkeys(marked, "leaderEpochBeforeDeletion is set, though the topic counts the partition")


def _shown(layout: Layout) -> str:
    return f"{layout.undeleted_partition_count} partitions in version {layout.layout_version}"
