"""What a decision leads to, and the one function that carries it out.

A decision is a plain function of the image: it awaits nothing and changes nothing. What it leads to is written first,
then taken into the image, then told to brokers.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.controller import appended_bytes, config_writes, stock_producers
from anabranch.controller.admin.outcome import Wait
from anabranch.controller.context import Context
from anabranch.controller.events import ResizesDue
from anabranch.controller.image import PartitionImage, TopicImage
from anabranch.controller.partitions import StateChange, take_state, write_together
from anabranch.controller.resize.step_log import log_step
from anabranch.controller.states import PartitionStatus
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import CreateOp, DeleteOp, SetOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.topic import TopicZnode


class Ask(enum.Enum):
    """What brokers are asked to report of the topic."""

    STOCK_PRODUCERS = enum.auto()
    APPENDED_BYTES = enum.auto()


_ASK = {Ask.STOCK_PRODUCERS: stock_producers.ask, Ask.APPENDED_BYTES: appended_bytes.ask_for_some_time}


@dataclass(frozen=True, slots=True)
class Effects:
    """What one decision leads to. By default nothing happens."""

    topic: str = ""
    """The topic that the decision is about; empty: it is about a config."""
    znode: TopicZnode | None = None
    """What the image is to have as its znode; None: what it has."""
    version: int = -1
    """The zkVersion of ``znode`` where it is stored already."""
    created: int = 0
    """Partitions of the topic where it is new. It is in the image once its znode is read."""
    writes: Sequence[CreateOp | SetOp | DeleteOp] = ()
    """One multi: ``znode`` first, or a config, or the config and the znode of a new topic; empty: all is stored."""
    states: Sequence[Sequence[StateChange]] = ()
    """Partition states. With ``writes`` they are among these; else each group is whole in one multi, several groups may
    share one."""
    notify: Sequence[str] = ()
    """Configs that brokers are to read again, like ``topics/t``."""
    asks: Sequence[Ask] = ()
    leader_and_isr: Sequence[TopicPartition] = ()
    """Partitions whose replicas are told their leader."""
    metadata: Sequence[TopicPartition] = ()
    """Partitions that every broker is told about."""
    events: Sequence[ResizesDue] = ()
    step: str = ""
    """The step of a resize that is logged and counted; empty: none."""
    stepped: Sequence[int] = ()
    """The partitions that ``step`` is logged with."""
    response: Any = None
    waits: Sequence[Wait] = ()
    """What has to happen before ``response`` may be sent."""


async def carry_out(context: Context, effects: Effects) -> None:
    """Write, then change the image and the batch. Raises ``ControllerMovedError``, ``ImageStaleError``, ``ZkError``;
    then nothing was written, and the image and the batch are as they were. Only of states without ``writes`` those of
    the multis before may be written; these are in the image.
    """
    version = effects.version
    if effects.writes:
        versions = await context.store.write(effects.writes)
        version = versions[0]
        _take_written(context, effects, versions)
    else:
        await write_together(context, effects.states)
    apply(context, effects, version)
    for entity in effects.notify:
        await config_writes.notify(context, entity)


def _take_written(context: Context, effects: Effects, versions: Sequence[int]) -> None:
    """Take over the configs and states that are written; the znode of the topic is taken over after them."""
    states = {paths.partition_state(*change.tp): change for group in effects.states for change in group}
    for op, version in zip(effects.writes, versions):
        if isinstance(op, DeleteOp):
            continue
        if op.path in states:
            take_state(context, states[op.path], version)
        elif op.path.startswith(f"{paths.CONFIG}/"):
            config_writes.take(context.image, op.path, op.data, version)


def apply(context: Context, effects: Effects, version: int) -> None:
    """Take over what is written; ``version`` is the zkVersion of the topic's znode."""
    if effects.created:
        context.image.created[effects.topic] = effects.created
    topic = context.image.topics.get(effects.topic)
    if topic is None:
        return  # a config, or the topic does not exist, which the response says
    for ask in effects.asks:
        _ASK[ask](context, topic)
    if effects.znode is not None:
        if effects.znode is not topic.znode:
            topic.wait_logged = ""
        adopt(topic, effects.znode, version)
    for tp in effects.leader_and_isr:
        context.batch.leader_and_isr(tp)
    if effects.metadata:
        context.batch.metadata(effects.metadata)
    for event in effects.events:
        context.events.put(event)
    if effects.step:
        log_step(context, topic, effects.step, effects.stepped)


def adopt(topic: TopicImage, znode: TopicZnode, version: int) -> None:
    """Have the image of a topic as its znode is: some partitions may be assigned now, or not any more."""
    topic.znode, topic.version = znode, version
    for p in sorted(znode.partitions.keys() - topic.partitions.keys() - topic.unreadable):
        topic.partitions[p] = PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
    for p in topic.partitions.keys() - znode.partitions.keys():
        del topic.partitions[p]
