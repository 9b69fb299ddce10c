"""Carries out the effects of decisions: writes first, then changes the image and the batch of requests to brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from anabranch.controller import appended_bytes, config_writes, stock_producer_reports
from anabranch.controller.context import Context
from anabranch.controller.effects import AskedReport, Decisions, Effects, R
from anabranch.controller.events import ResizesDue, WatchedStateChanged
from anabranch.controller.state_writes import take_state, write_states, write_together
from anabranch.controller.states import PartitionStatus
from anabranch.controller.step_log import log_step
from anabranch.controller.store import chunks
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp
from anabranch.zk_schemas import paths

_ASK = {
    AskedReport.STOCK_PRODUCERS: stock_producer_reports.ask,
    AskedReport.APPENDED_BYTES: appended_bytes.ask_for_some_time,
}


async def carry_out_all(context: Context, decisions: Decisions[R]) -> R:
    """Carry out decisions in order, and return their result. An error is raised inside the decisions, which may go on.

    Raises ``ControllerMovedError``, ``ImageStaleError``, ``ZkError``.
    """
    decide: Callable[[], Effects] = partial(next, decisions)
    while True:
        try:
            effects = decide()
        except StopIteration as end:
            result: R = end.value
            return result
        try:
            decide = partial(decisions.send, await carry_out(context, effects))
        except Exception as error:
            decide = partial(decisions.throw, error)


async def carry_out(context: Context, effects: Effects) -> set[TopicPartition]:
    """Write, then change the image and the batch. Returns the partitions of ``independent`` that ZooKeeper refused.

    Raises ``ControllerMovedError``, ``ImageStaleError``, ``ZkError``. If the only multi is refused, nothing changes. If
    one of several multis is refused, the image has the states of the earlier ones. Notifications and watches come last:
    an error of one of them does not undo the writes.
    """
    version = effects.version
    refused: set[TopicPartition] = set()
    versions: Sequence[int] = ()
    if effects.writes:
        versions = await context.store.write(effects.writes)
        version = versions[0]  # the topic's znode is the first of the writes
    elif effects.states:
        await write_together(context, effects.states)
    elif effects.groups:
        for ops in chunks(effects.groups):
            await context.store.write(ops)
    else:
        refused = await write_states(context, effects.independent)
        if effects.confirms_office and len(refused) == len(effects.independent):
            await context.store.confirm_office()
    context.image.shutting_down.update(effects.shutting_down)
    _take_topic(context, effects, version)
    _take_written(context, effects, versions)
    _mark(context, effects)
    for entity in effects.notify:
        await config_writes.notify(context, entity)
    for tp, at_version in effects.watches:
        await _watch(context, tp, at_version)
    return refused


def _take_topic(context: Context, effects: Effects, version: int) -> None:
    """Store the topic's znode or its deletion in the image, and ask brokers about it. ``version`` is the zkVersion."""
    if effects.created:
        context.image.created[effects.topic] = effects.created
    topic = context.image.topics.get(effects.topic)
    if topic is None:
        return  # the effects are those of a config, or of a topic that does not exist
    for ask in effects.asks:
        _ASK[ask](context, topic)
    for p in effects.removed:
        del topic.partitions[p]
    if effects.deletion is not None:
        topic.deletion_zxid = effects.deletion.zxid
        context.image.deletions[topic.name] = dict(effects.deletion.replicas)
        for partition in topic.partitions.values():
            partition.status = partition.status.enter(PartitionStatus.OFFLINE)
    if effects.znode is not None:
        is_resize = ResizesDue() in effects.events
        if is_resize and effects.znode is not topic.znode:
            topic.wait_logged = ""
        topic.adopt(effects.znode, version)


def _take_written(context: Context, effects: Effects, versions: Sequence[int]) -> None:
    """Store what was written besides the topic's znode.

    The requests about a state use the topic's new znode.
    """
    states = {paths.partition_state(*change.tp): change for group in effects.states for change in group}
    for op, version in zip(effects.writes, versions):
        if isinstance(op, DeleteOp):
            continue
        if op.path in states:
            take_state(context, states[op.path], version)
        elif op.path.startswith(f"{paths.CONFIG}/"):
            config_writes.take(context.image, op.path, op.data, version)
    if effects.features is not None:
        context.image.features, context.image.features_epoch = effects.features, versions[-1]
    if effects.first_leader_epoch is not None:
        context.image.first_leader_epoch = effects.first_leader_epoch
        context.image.first_leader_epoch_version = versions[-1]


def _mark(context: Context, effects: Effects) -> None:
    """Put the requests into the batch and the events into the queue, and log the step."""
    for tp in effects.leader_and_isr:
        context.batch.leader_and_isr(tp)
    for broker, tp in effects.stops:
        context.batch.stop_replica(broker, tp, delete=True)
    if effects.metadata:
        context.batch.metadata(effects.metadata)
    for event in effects.events:
        context.events.put(event)
    if effects.step:
        log_step(context, context.image.topics[effects.topic], effects.step, effects.stepped)


async def _watch(context: Context, tp: TopicPartition, version: int) -> None:
    """Watch a state that was read at ``version``. If the state changes, everything is read again."""
    path = paths.partition_state(*tp)
    context.image.suspects.add(path)
    watched = await context.store.get(path, context.events.watch(WatchedStateChanged(tp)))
    if watched is None or watched.version != version:
        context.events.put(WatchedStateChanged(tp))
