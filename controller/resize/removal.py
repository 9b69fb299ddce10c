"""Removing drained partitions, the highest first (KIP-253, Proposed Changes 3).

A run of drained partitions at the end of the assignment goes together: their states say so first, so that from then on
only the removal is resumed; then every replica is deleted; then one multi takes them out of the assignment, deletes
their states, keeps their last leader epochs and where their logs ended, and gives the topic a new id, without which
running producers of some clients would not lower their count (holes 11, 13 and 20).

A partition that is created again goes on there (``base_offset``): with offsets that begin anew, a position or a commit
of before would skip its first records. Its replicas report their ends when they are deleted, for markers of
transactions may follow the seal. A broker that deleted its replica and restarted before its answer arrived does not
know the end any more; the seal, which the state holds, and the end of the incarnation before are the least it can be.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from controller.context import Context
from controller.events import BrokerAnswered, ResizesDue
from controller.image import TopicImage
from controller.partitions import StateChange, write_states
from controller.resize import owners, plan
from controller.resize.ends import ending_of
from controller.resize.step_log import log_step
from controller.stop_replica import deletions
from controller.topic_id import new_topic_id
from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from runtime.env import DeleteOp, SetOp, ZkOp
from zk_schemas import paths

_log = logging.getLogger(__name__)
MAX_TOGETHER = 100
"""Partitions of one run: each takes two operations of the multi that ends them."""


async def advance(context: Context, topic: TopicImage) -> None:
    """Begin, go on with or finish the removal of the run at the end. Every survivor has answered."""
    run = _run(topic)
    if not run:
        return
    begun = []
    for index in run:
        state = topic.state(index)
        assert state is not None
        if not state.being_removed:
            change = plan.removed(state, context.image.controller_epoch)
            begun.append(StateChange(TopicPartition(topic.name, index), change))
    if await write_states(context, begun):
        return
    if begun:
        log_step(context, topic, "removal-begins", [change.tp.partition for change in begun])
    for index in run:
        _stop(context, topic, index)
    if all(_is_stopped(topic, index) for index in run):
        await _forget(context, topic, run)


def on_stop_replica_answered(context: Context, event: BrokerAnswered) -> None:
    """Take in which replicas are deleted. The answer to one of an earlier leader epoch is of a reassignment."""
    for tp, broker, leader_epoch, incarnation, error, log_end_offset in deletions(event):
        partition = context.image.partition(tp)
        state = partition.state if partition is not None else None
        if partition is None or state is None or not state.being_removed or incarnation != partition.incarnation:
            continue
        if leader_epoch < state.leader_epoch:
            continue
        if error == ErrorCode.NONE:
            ending = ending_of(partition)
            ending.stopped.add(broker)
            ending.deleted_end_offset = max(ending.deleted_end_offset, log_end_offset)
            context.events.put(ResizesDue())
        else:
            _log.error("broker %s did not delete %s: error %s; it is asked again", broker, tp, error)


def _run(topic: TopicImage) -> list[int]:
    """Partitions at the end of the assignment that are empty and processed, or being removed, ascending."""
    run: list[int] = []
    for index in reversed(plan.marked(topic)):
        partition = topic.partitions[index]
        state = partition.state
        if state is None or len(run) == MAX_TOGETHER or (not run and index != len(topic.znode.partitions) - 1):
            break
        if not state.being_removed and not (owners.is_empty(topic, index) and owners.is_processed(topic, index)):
            break
        run.append(index)
    run.reverse()
    return run


def _stop(context: Context, topic: TopicImage, index: int) -> None:
    ending = ending_of(topic.partitions[index])
    for replica in topic.replicas(index):
        broker = context.image.brokers.get(replica)
        if broker is None or replica in ending.stopped or ending.stop_sent.get(replica) == broker.epoch:
            continue
        ending.stop_sent[replica] = broker.epoch
        context.batch.stop_replica(replica, TopicPartition(topic.name, index), delete=True)


def _is_stopped(topic: TopicImage, index: int) -> bool:
    return ending_of(topic.partitions[index]).stopped.issuperset(topic.replicas(index))


def _last_offsets(topic: TopicImage, run: Iterable[int]) -> dict[int, int]:
    ends = dict(topic.znode.last_offsets)
    for index in run:
        partition = topic.partitions[index]
        assert partition.state is not None
        reported = ending_of(partition).deleted_end_offset
        end = max(topic.znode.base_offset(index), partition.state.sealed_offset, reported)
        if end > 0:
            ends[index] = end
    return ends


async def _forget(context: Context, topic: TopicImage, run: list[int]) -> None:
    znode = topic.znode
    epochs = {index: state.leader_epoch for index in run if (state := topic.state(index)) is not None}
    left = znode.replace(
        partitions={index: replicas for index, replicas in znode.partitions.items() if index not in epochs},
        adding_replicas={index: added for index, added in znode.adding_replicas.items() if index not in epochs},
        removing_replicas={index: gone for index, gone in znode.removing_replicas.items() if index not in epochs},
        last_leader_epochs={**znode.last_leader_epochs, **epochs},
        last_offsets=_last_offsets(topic, run),
        topic_id=new_topic_id(context.rng),
    )
    ops: list[ZkOp] = [SetOp(paths.topic(topic.name), left.encode(), topic.version)]
    for index in run:
        ops += [DeleteOp(paths.partition_state(topic.name, index)), DeleteOp(paths.partition(topic.name, index))]
    topic.version = (await context.store.write(ops))[0]
    topic.znode = left
    for index in run:
        del topic.partitions[index]
    for index in sorted(topic.partitions):
        context.batch.leader_and_isr(TopicPartition(topic.name, index))
    log_step(context, topic, "removal-ends", run)
    context.events.put(ResizesDue())
