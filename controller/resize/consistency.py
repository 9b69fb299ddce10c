"""Whether the states of a topic's partitions agree with each other and with the topic: pure, for znodes that were read.

Anybody may edit a znode, and what two of them say of one thing, the initial count above all, places every key. Where
one state alone is at odds it is set aside, and resizes wait until it is repaired; so are both where one state says of
another what that denies. Where the topic is at odds with several, ``controller.resize.unseen`` restores it; where
nobody can say which of two is right nothing is decided.
"""

from __future__ import annotations

from collections import Counter
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
        marked = {} if against_told else _marks_at_odds(topic)
        return Examined(against_told or marked, is_told=not marked)
    is_absent = "initial_partition_count" in topic.znode.absent
    against_proven = _contradictions(topic, proven)
    if len(against_told) == 1 and against_proven and not is_absent:
        return Examined(against_told, is_told=True)
    if not is_absent and not against_told and (alone := _lone_proof(topic, proven)):
        return Examined(alone, is_told=False)
    if not against_proven and (is_absent or len(against_told) != 1 or not topic.has_layouts()):
        return Examined({}, is_told=True)
    return Examined(against_told | against_proven, is_told=False)


def _contradictions(topic: TopicImage, initial: int) -> dict[int, str]:
    """The states that cannot be if the topic was created with ``initial`` partitions."""
    found = _stray_layout(topic) | _stray_gainers(topic) | _led_too_early(topic)
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


def _topic_layout(topic: TopicImage) -> Layout:
    return Layout(topic.znode.undeleted_partition_count, topic.znode.layout_version)


def _states(topic: TopicImage) -> dict[int, PartitionState]:
    return {index: state for index in sorted(topic.partitions) if (state := topic.state(index)) is not None}


def _led(topic: TopicImage) -> dict[int, PartitionState]:
    """The states of partitions that were led."""
    return {index: state for index, state in _states(topic).items() if not state.never_led}


def _gainers_unreadable(topic: TopicImage) -> bool:
    return max(topic.unreadable, default=-1) >= topic.znode.undeleted_partition_count


def _stray_layout(topic: TopicImage) -> dict[int, str]:
    """A layout newer than that of the topic and of all other partitions, or one that nobody else has in its place."""
    agreed, states = _topic_layout(topic), _states(topic)
    if len(states) == 1 or topic.znode.absent & unseen.PROVEN:
        return {}
    if unseen.growing_to(topic) and all(topic.layout(index) != agreed for index in states):
        return {}  # nobody confirms the topic
    gainers = [index for index, state in states.items() if index >= agreed[0] and state.never_led]
    grown = {topic.layout(index) for index in gainers}  # who loses keys to them has it before the topic
    newer = [index for index in states if topic.layout(index)[1] > agreed[1] and topic.layout(index) not in grown]
    other = _unlike_others(topic)
    if len(newer) == 1 and not _gainers_unreadable(topic) and not _is_of_edited_shrink(topic, newer[0]):
        stray = newer + gainers if len(gainers) == 1 else newer
    elif len(other) == 1 and not _is_of_edited_shrink(topic, other[0]):
        stray = other
    else:
        return {}
    told = f"that of the topic and of the others {_shown(agreed)}"
    return {index: f"layout is {_shown(topic.layout(index))}, {told}" for index in stray}


def _unlike_others(topic: TopicImage) -> list[int]:
    """Partitions with another layout of the topic's version, or not with the topic's when all that are counted have it.

    They have it before what a grow adds is counted.
    """
    agreed, states = _topic_layout(topic), _states(topic)
    counted = {index: state for index, state in states.items() if index < agreed[0]}
    is_grown = any(state.never_led and state.layout == agreed for state in counted.values())
    are_alike = all(topic.layout(index) == agreed for index, state in counted.items() if not state.never_led)
    return [
        index
        for index, state in states.items()
        if topic.layout(index) != agreed
        and (
            (state.layout is not None and state.layout[1] == agreed[1])
            or (index in counted and (is_grown or (are_alike and state.never_led)))
        )
    ]


def _stray_gainers(topic: TopicImage) -> dict[int, str]:
    """Partitions never led that one grow cannot have added together; all when none of their layouts is the usual."""
    layouts = {index: state.layout for index, state in _states(topic).items() if state.never_led and state.layout}
    counted = Counter(layouts.values()).most_common(2)
    if len(counted) < 2:
        return {}
    usual = counted[0][0] if counted[0][1] > counted[1][1] else None
    return {
        index: f"layout is {_shown(layout)}, unlike that of the others that the grow adds"
        for index, layout in layouts.items()
        if layout != usual
    }


def _is_of_edited_shrink(topic: TopicImage, partition: int) -> bool:
    """Whether the layout of this partition may be that of a shrink under way, and the topic what was edited.

    A shrink marks all partitions beyond its count, and no others, before one of them gets its layout.
    """
    agreed, layout, led = _topic_layout(topic), topic.layout(partition), _led(topic)
    follows = layout[0] < agreed[0] and layout[1] == agreed[1] + 1
    marked = [index for index, state in led.items() if state.leader_epoch_before_deletion]
    beyond = [index for index in led if index >= layout[0]]
    return (follows or layout[1] == agreed[1]) and bool(marked) and marked == beyond


def _led_too_early(topic: TopicImage) -> dict[int, str]:
    """What a grow adds is not led before all who lose keys to it have the new layout, and the topic."""
    agreed, led = _topic_layout(topic), _led(topic)
    if all(topic.layout(index) != agreed for index in led if index < agreed.undeleted_partition_count):
        return {}
    return {
        index: "the partition is led, though the grow that adds it is not that far"
        for index, state in led.items()
        if agreed.undeleted_partition_count <= index < topic.layout(index).undeleted_partition_count
        and topic.layout(index).layout_version == agreed.layout_version + 1
        and state.leader_epoch_after_creation
        and not state.leader_epoch_before_deletion
    }


def _lone_proof(topic: TopicImage, initial: int) -> dict[int, str]:
    """The one state whose layout alone says that the topic was created with ``initial`` partitions."""
    newest = unseen.stored_layout(topic)
    storing = [index for index in topic.partitions if (state := topic.state(index)) and state.layout == newest]
    if len(storing) != 1 or any(state.leader_epoch_after_creation for state in topic.states()):
        return {}
    told = topic.znode.initial_partition_count
    return {storing[0]: f"layout is of {initial} partitions with none split off, though the topic began with {told}"}


def _marks_at_odds(topic: TopicImage) -> dict[int, str]:
    """Counted partitions that are marked for deletion though no shrink marks them, and gaps in what a shrink marks.

    The topic says first that there is a shrink, which marks from its count on. Where it tells of one that marks none,
    that was put back.
    """
    led = _led(topic)
    marked = [index for index, state in led.items() if state.leader_epoch_before_deletion]
    undeleted = _marked_from(topic, marked)
    is_proven = any(topic.layout(index) == _topic_layout(topic) for index in led)
    is_under_way = any(index >= undeleted and state.sealed_offset < 0 for index, state in led.items())
    if not (is_proven or is_under_way):
        return {}
    name = "leaderEpochBeforeDeletion"
    last = max((index for index in marked if led[index].sealed_offset < 0), default=-1)
    found = {index: f"{name} is set, though the topic counts the partition" for index in marked if index < undeleted}
    for index in led:
        if undeleted <= index < last and index not in marked:
            found[index] = f"{name} is missing, though partition {last} is marked"
            found[last] = f"{name} is set, though partition {index} is not marked"
    return found


def _marked_from(topic: TopicImage, marked: list[int]) -> int:
    """The count that the shrink under way leads to: the topic's, unless that was lowered since one was told."""
    undeleted, first, led = topic.znode.undeleted_partition_count, min(marked, default=-1), _led(topic)
    told = any(led[index].sealed_offset < 0 and topic.layout(index)[0] == first for index in marked)
    return first if told and any(undeleted <= index < first for index in led) else undeleted


def _shown(layout: Layout) -> str:
    return f"{layout.undeleted_partition_count} partitions in version {layout.layout_version}"
