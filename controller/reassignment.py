"""Moves partitions to other replicas (KIP-455): a request begins a move, and the ISR decides when it ends.

A reassignment is two writes, each one multi over the topic znode and the states. The first write names all replicas,
old and new. The second write leaves only the target replicas, once all of them are in sync. Both raise the leader
epoch, so that every replica takes them over. The znodes have the whole progress, so a new controller can go on. A
replica whose StopReplica was lost is found as a stray when its broker next gets everything.

A topic is either reassigned or resized. During a reassignment a resize is refused with REASSIGNMENT_IN_PROGRESS. Until
every leader has acknowledged a resize, a reassignment is refused with POLICY_VIOLATION. While marked partitions only
drain, partitions may move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from anabranch.controller import leader_selection
from anabranch.controller.context import Context
from anabranch.controller.events import ReassignmentsDue
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import TopicImage
from anabranch.controller.replica_assignment import ReplicaAssignment, check_target, into
from anabranch.controller.resize import view
from anabranch.controller.state_writes import StateChange, take_state
from anabranch.controller.store import MAX_OPERATIONS
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import SetOp, ZkError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState

logger = structlog.get_logger(__name__)
PARTITIONS_PER_WRITE = MAX_OPERATIONS // 2
"""One multi has the topic znode and a state for each partition."""
TOPICS_AT_ONCE = 16
"""Topics whose reassignments begin or finish before other events are handled: each takes a multi of its own."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One partition's move from one assignment to the next."""

    tp: TopicPartition
    before: ReplicaAssignment
    after: ReplicaAssignment
    state: PartitionState


async def reassign(
    context: Context, wanted: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, KafkaError]:
    """Begin to move partitions to other replicas; None cancels a move. Returns the refused partitions.

    Raises ``ControllerMovedError``, ``ImageStaleError``.
    """
    refused: dict[TopicPartition, KafkaError] = {}
    steps = []
    for tp, target in wanted.items():
        try:
            step = _first_step(context, tp, target)
        except KafkaError as error:
            refused[tp] = error
            continue
        if step is not None:
            steps.append(step)
    for step, zk_error in await _write(context, steps):
        refused[step.tp] = KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(zk_error))
    return refused


async def advance(context: Context) -> None:
    """Finish reassignments whose target is in sync: a limited number now, the others by a later event."""
    found = (_last_step(context, tp, assignment, assignment) for tp, assignment in in_progress(context))
    steps: list[_Step] = []
    names: set[str] = set()
    is_all = True
    for step in (step for step in found if step is not None):
        names.add(step.tp.topic)
        if len(steps) == PARTITIONS_PER_WRITE or len(names) > TOPICS_AT_ONCE:
            is_all = False
            break
        steps.append(step)
    refused = await _write(context, steps)
    for step, error in refused:
        give_up(context, f"the end of the reassignment of {step.tp}", error)
    if not is_all and not refused:
        context.events.put(ReassignmentsDue())


def in_progress(context: Context) -> Iterator[tuple[TopicPartition, ReplicaAssignment]]:
    """Partitions that are being reassigned, in order."""
    image = context.image
    for name in sorted(image.topics):
        znode = image.topics[name].znode
        if name in image.deletions:
            continue
        for index in sorted(znode.adding_replicas.keys() | znode.removing_replicas.keys()):
            if image.partition(TopicPartition(name, index)) is not None:
                yield TopicPartition(name, index), ReplicaAssignment.of(znode, index)


def _first_step(context: Context, tp: TopicPartition, target: Sequence[int] | None) -> _Step | None:
    """The first step to ``target``; None if there is nothing to do. Raises ``KafkaError``."""
    image = context.image
    partition = image.partition(tp)
    if partition is None or partition.state is None or tp.topic in image.deletions or partition.state.being_removed:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    before = ReplicaAssignment.of(image.topics[tp.topic].znode, tp.partition)
    if target is None:
        if not before.in_progress:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
        target = before.origin
    elif why := image.topics[tp.topic].frozen:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{tp.topic} is frozen: {why}.")
    elif not view.is_settled(image.topics[tp.topic]):
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{tp.topic} is being resized: {view.unfinished(image.topics[tp.topic])}; reassign its partitions when that"
            " is done.",
        )
    check_target(before, target, image.brokers)
    after = before.reassign_to(target)
    if after == before:
        return None
    step = _last_step(context, tp, before, after)
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
    context: Context, tp: TopicPartition, before: ReplicaAssignment, assignment: ReplicaAssignment
) -> _Step | None:
    """The step that leaves only the target of ``assignment``; None while it has to wait."""
    image = context.image
    partition = image.partition(tp)
    assert partition is not None
    state = partition.state
    if state is None or state.being_removed or (assignment.in_progress and not assignment.complete(state.isr)):
        return None
    done = assignment.done()
    changed = leader_selection.reassigned(
        state, done.replicas, image.serving(tp), image.electable(tp), image.controller_epoch
    )
    return None if changed is None else _Step(tp, before, done, changed)


async def _write(context: Context, steps: Sequence[_Step]) -> list[tuple[_Step, ZkError]]:
    """Write the steps. Returns each step that ZooKeeper refuses, with the error."""
    by_topic: dict[str, list[_Step]] = {}
    for step in steps:
        by_topic.setdefault(step.tp.topic, []).append(step)
    refused: list[tuple[_Step, ZkError]] = []
    for name, of_topic in by_topic.items():
        for first in range(0, len(of_topic), PARTITIONS_PER_WRITE):
            some = of_topic[first : first + PARTITIONS_PER_WRITE]
            try:
                await _write_some(context, context.image.topics[name], some)
            except ZkError as error:
                refused += [(step, error) for step in some]
    return refused


async def _write_some(context: Context, topic: TopicImage, steps: Sequence[_Step]) -> None:
    znode = into(topic.znode, {step.tp.partition: step.after for step in steps})
    ops = [
        SetOp(paths.partition_state(*step.tp), step.state.encode(), topic.partitions[step.tp.partition].epoch)
        for step in steps
    ]
    versions = await context.store.write([SetOp(paths.topic(topic.name), znode.encode(), topic.version), *ops])
    topic.znode, topic.version = znode, versions[0]
    for step, version in zip(steps, versions[1:]):
        logger.info("reassignment.step", partition=str(step.tp), **_fields(step.after))
        take_state(context, StateChange(step.tp, step.state), version)
        for replica in step.before.dropped(step.after):
            context.batch.stop_replica(replica, step.tp, delete=True)


def _fields(assignment: ReplicaAssignment) -> dict[str, list[int]]:
    return {"replicas": assignment.replicas, "adding": assignment.adding, "removing": assignment.removing}


def is_due(topic: TopicImage, partition: int, isr: Sequence[int]) -> bool:
    """Whether this ISR completes a reassignment of the partition."""
    return topic.reassigning(partition) and ReplicaAssignment.of(topic.znode, partition).complete(isr)
