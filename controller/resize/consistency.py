"""Whether the states of a topic's partitions agree with each other and with the topic: pure, for znodes that were read.

Anybody may edit a znode, and what two of them say of one thing, the initial count above all, places every key. Where
one state alone is at odds it is set aside, and resizes wait until it is repaired; where the topic is at odds with
several, ``controller.resize.unseen`` restores it; where nobody can say which of two is right nothing is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from controller.image import TopicImage
from controller.resize import unseen
from protocol.key_placement import ancestors
from zk_schemas.partition_state import PartitionState


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
        return Examined(against_told, is_told=True)
    is_absent = "initial_partition_count" in topic.znode.absent
    against_proven = _contradictions(topic, proven)
    if len(against_told) == 1 and against_proven and not is_absent:
        return Examined(against_told, is_told=True)
    was_resized = any(state.layout is not None for state in topic.states())
    if not against_proven and (is_absent or len(against_told) != 1 or not was_resized):
        return Examined({}, is_told=True)
    return Examined(against_told | against_proven, is_told=False)


def _contradictions(topic: TopicImage, initial: int) -> dict[int, str]:
    """The states that cannot be if the topic was created with ``initial`` partitions."""
    found = {}
    for index in sorted(topic.partitions):
        state = topic.state(index)
        if state is not None and (why := _contradiction(topic, index, state, initial)) is not None:
            found[index] = why
    return found


def _contradiction(topic: TopicImage, index: int, state: PartitionState, initial: int) -> str | None:
    created, deleted = state.leader_epoch_after_creation, state.leader_epoch_before_deletion
    if index >= initial and not created:
        return f"leaderEpochAfterCreation is missing, though the topic was created with {initial} partitions"
    if state.sealed_offset >= 0 and not deleted:
        return "sealed_offset is set without leaderEpochBeforeDeletion"
    for name, epochs in (("leaderEpochAfterCreation", created), ("leaderEpochBeforeDeletion", deleted)):
        if epochs and index < initial:
            return f"{name} is set, though the topic was created with {initial} partitions"
        if len(epochs) > 1:
            return f"{name} names {len(epochs)} partitions"
        for ancestor, epoch in epochs.items():
            if ancestor not in ancestors(index, initial):
                return f"{name} names partition {ancestor}, which is no ancestor of {index}"
            known = topic.state(ancestor)
            if known is not None and epoch > known.leader_epoch:
                return f"{name} names leader epoch {epoch} of partition {ancestor}, which is at {known.leader_epoch}"
    return None
