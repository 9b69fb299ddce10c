"""Moves partitions to other replicas (KIP-455): a request begins a move, and the ISR decides when the move ends.

A reassignment is two writes. Each write is one multi over the topic znode and the states. The first write names all
replicas, old and new. The second write leaves only the target replicas, once all of them are in sync. Both writes raise
the leader epoch, so that every replica takes over the new assignment. The znodes have the whole progress, so a new
controller can go on. If a StopReplica was lost, the broker finds the replica as a stray when it next gets a full
LeaderAndIsr.

A topic is either reassigned or resized. During a reassignment a resize is refused with REASSIGNMENT_IN_PROGRESS. Until
every leader has acknowledged a resize, a reassignment is refused with POLICY_VIOLATION. While marked partitions only
drain, partitions may move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from anabranch.controller import leader_selection, view
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import ReassignmentsDue
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.moving_replicas import ReplicaAssignment, check_target, into
from anabranch.controller.state_writes import StateChange
from anabranch.controller.store import MAX_OPERATIONS
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import SetOp, ZkError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode

logger = structlog.get_logger(__name__)
PARTITIONS_PER_WRITE = MAX_OPERATIONS // 2
"""Limit for one multi, which has the topic znode and a state for each partition."""
TOPICS_AT_ONCE = 16
"""Topics whose reassignments begin or finish before other events are handled: each takes a multi of its own."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One partition's move from one assignment to the next."""

    tp: TopicPartition
    before: ReplicaAssignment
    after: ReplicaAssignment
    state: PartitionState


def move(context: Context, effects: Effects) -> Decisions[None]:
    """Write and log the steps of one topic. Raises ``ControllerMovedError``, ``ImageStaleError``, ``ZkError``."""
    yield effects
    for tp in moved(effects):
        found = ReplicaAssignment.of(context.image.topics[tp.topic].znode, tp.partition)
        fields = {"replicas": found.replicas, "adding": found.adding, "removing": found.removing}
        logger.info("reassignment.step", partition=str(tp), **fields)


def moved(effects: Effects) -> list[TopicPartition]:
    """The partitions of the steps."""
    return [change.tp for group in effects.states for change in group]


def advance(context: Context) -> Decisions[None]:
    """Finish reassignments whose target is in sync: a limited number now, the others by a later event."""
    due, is_all = decide_due(context.image)
    is_refused = False
    for effects in due:
        try:
            yield from move(context, effects)
        except ZkError as error:
            is_refused = True
            for tp in moved(effects):
                give_up(context, f"the end of the reassignment of {tp}", error)
    if not is_all and not is_refused:
        context.events.put(ReassignmentsDue())


def decide(image: ClusterImage, topic: str, targets: Mapping[int, Sequence[int] | None]) -> Effects:
    """The effects of moving partitions of a topic to other replicas; None cancels a move.

    ``response`` has the error of each partition that is refused.
    """
    refused: dict[TopicPartition, KafkaError] = {}
    steps = []
    for partition, target in targets.items():
        tp = TopicPartition(topic, partition)
        try:
            step = _first_step(image, tp, target)
        except KafkaError as error:
            refused[tp] = error.with_traceback(None)  # the traceback refers to this dict
            continue
        if step is not None:
            steps.append(step)
    return replace(_together(image, topic, steps), response=refused)


def decide_due(image: ClusterImage) -> tuple[list[Effects], bool]:
    """The effects that finish reassignments, one for each topic, and whether they finish all that are due."""
    found = (_last_step(image, tp, assignment, assignment) for tp, assignment in in_progress(image))
    by_topic: dict[str, list[_Step]] = {}
    is_all = True
    for count, step in enumerate(step for step in found if step is not None):
        is_new = step.tp.topic not in by_topic
        if count == PARTITIONS_PER_WRITE or (is_new and len(by_topic) == TOPICS_AT_ONCE):
            is_all = False
            break
        by_topic.setdefault(step.tp.topic, []).append(step)
    return [_together(image, name, steps) for name, steps in by_topic.items()], is_all


def in_progress(image: ClusterImage) -> Iterator[tuple[TopicPartition, ReplicaAssignment]]:
    """Partitions that are being reassigned, in order."""
    for name in sorted(image.topics):
        for index in moving_partitions(image.topics[name].znode):
            assignment = reassignment_of(image, TopicPartition(name, index))
            if assignment is not None:
                yield TopicPartition(name, index), assignment


def moving_partitions(znode: TopicZnode) -> list[int]:
    """The partitions of a topic that are being reassigned, in order."""
    return sorted(znode.adding_replicas.keys() | znode.removing_replicas.keys())


def reassignment_of(image: ClusterImage, tp: TopicPartition) -> ReplicaAssignment | None:
    """The assignment of a partition that is being reassigned; None for any other partition."""
    if tp.topic in image.deletions or image.partition(tp) is None:
        return None
    assignment = ReplicaAssignment.of(image.topics[tp.topic].znode, tp.partition)
    return assignment if assignment.in_progress else None


def _first_step(image: ClusterImage, tp: TopicPartition, target: Sequence[int] | None) -> _Step | None:
    """The first step to ``target``; None if there is nothing to do. Raises ``KafkaError``."""
    partition = image.partition(tp)
    if partition is None or partition.state is None or tp.topic in image.deletions or partition.state.being_removed:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if partition.state.newer_log:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{tp}: {partition.state.newer_log}.")
    before = ReplicaAssignment.of(image.topics[tp.topic].znode, tp.partition)
    if target is None:
        if not before.in_progress:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
        target = before.origin
    elif why := image.topics[tp.topic].frozen:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{tp.topic} is frozen: {why}.")
    elif not view.is_over(image.topics[tp.topic]):
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{tp.topic} is being resized: {view.unfinished(image.topics[tp.topic])}; reassign its partitions when that"
            " is done.",
        )
    check_target(before, target, image.brokers)
    after = before.reassign_to(target)
    if after == before:
        return None
    step = _last_step(image, tp, before, after)
    if step is not None:
        return step
    state = partition.state
    electable = image.electable(tp)
    changed = leader_selection.reassigned(state, after.replicas, image.serving(tp), electable, image.controller_epoch)
    if changed is None and state.leader not in image.brokers and set(state.isr) <= set(after.replicas):
        changed = leader_selection.offline(state, image.controller_epoch)
    if changed is None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"None of the replicas {after.replicas} is in sync (ISR {state.isr}) and available to lead: the"
            " reassignment would need an unclean election.",
        )
    return _Step(tp, before, after, changed)


def _last_step(
    image: ClusterImage, tp: TopicPartition, before: ReplicaAssignment, assignment: ReplicaAssignment
) -> _Step | None:
    """The step that leaves only the target of ``assignment``; None while this step has to wait."""
    partition = image.partition(tp)
    assert partition is not None
    state = partition.state
    if state is None or state.being_removed or state.newer_log:
        return None
    if assignment.in_progress and not assignment.complete(state.isr):
        return None
    done = assignment.done()
    changed = leader_selection.reassigned(
        state, done.replicas, image.serving(tp), image.electable(tp), image.controller_epoch
    )
    return None if changed is None else _Step(tp, before, done, changed)


def _together(image: ClusterImage, name: str, steps: Sequence[_Step]) -> Effects:
    """The effects of at most ``PARTITIONS_PER_WRITE`` steps of a topic: one multi over its znode and the states."""
    if not steps:
        return Effects(name)
    topic = image.topics[name]
    znode = into(topic.znode, {step.tp.partition: step.after for step in steps})
    ops = [
        SetOp(paths.partition_state(*step.tp), step.state.encode(), topic.partitions[step.tp.partition].epoch)
        for step in steps
    ]
    return Effects(
        name,
        znode,
        writes=[SetOp(paths.topic(name), znode.encode(), topic.version), *ops],
        states=[[StateChange(step.tp, step.state) for step in steps]],
        stops=[(replica, step.tp) for step in steps for replica in step.before.dropped(step.after)],
    )


def is_due(topic: TopicImage, partition: int, isr: Sequence[int]) -> bool:
    """Whether this ISR completes a reassignment of the partition."""
    return topic.reassigning(partition) and ReplicaAssignment.of(topic.znode, partition).complete(isr)
