"""State znodes of releases that resized by barriers (feature level 1), as lineages. Pure.

Such a state has a layout and no ``initial_partition_count``, and says whom it was split from or merged into. Each is
converted by a bump, so that who read it before asks again. What is counted goes first: what merged into a partition is
told by the state of the partition that is marked. A controller that dies in between leaves what its successor converts.
"""

from __future__ import annotations

from collections.abc import Mapping

from zk_schemas.partition_state import Layout, LineageEntry, PartitionState
from zk_schemas.topic import TopicZnode


def is_old(state: PartitionState) -> bool:
    """Whether a release before wrote the layout. What is being removed goes as it is."""
    return state.layout is not None and state.initial_partition_count is None and not state.being_removed


def unsettled(topic: TopicZnode, states: Mapping[int, PartitionState]) -> str:
    """Why a topic with such states cannot be converted; empty: it can."""
    goal = Layout(topic.undeleted_partition_count, topic.layout_version)
    behind = [p for p in range(goal.undeleted_partition_count) if p not in states or states[p].layout != goal]
    going = range(goal.undeleted_partition_count, len(topic.partitions))
    behind += [p for p in going if p not in states or (is_old(states[p]) and states[p].sealed_offset < 0)]
    if not behind:
        return ""
    return (
        f"partition {behind[0]}: a resize that an earlier release began is unfinished; let that release finish it, or"
        " create the topic anew"
    )


def converted(
    topic: TopicZnode, states: Mapping[int, PartitionState], controller_epoch: int
) -> dict[int, PartitionState]:
    """The states to be written, in this order. The topic is settled."""
    return {
        p: state.replace(
            controller_epoch=controller_epoch,
            leader_epoch=state.leader_epoch + 1,
            initial_partition_count=topic.initial_partition_count,
            lineage=_lineage(topic, states, p),
            leader_epoch_after_creation={},
            leader_epoch_before_deletion={},
            sealed_offset=-1,
        )
        for p, state in sorted(states.items())
        if is_old(state)
    }


def _lineage(topic: TopicZnode, states: Mapping[int, PartitionState], partition: int) -> tuple[LineageEntry, ...]:
    """From its ancestor since its first epoch, and from each partition that merged into it since the epoch after the
    last before. A marked partition has no records above its seal, so each of its later epochs ends there.
    """
    found: dict[int, dict[int, int]] = {}
    created = states[partition].leader_epoch_after_creation
    if created:
        found[topic.last_leader_epochs.get(partition, -1) + 1] = dict(created)
    for p, state in states.items():
        survivor_epoch = state.leader_epoch_before_deletion.get(partition)
        if survivor_epoch is not None:
            found.setdefault(survivor_epoch + 1, {})[p] = state.leader_epoch - 1
    return tuple(LineageEntry(epoch, losers) for epoch, losers in sorted(found.items()))
