"""The effects of a decision, and the one function that carries them out.

A decision is a plain function of the image: it awaits nothing and changes nothing. The decision's effects are first
written, then stored in the image, then sent to brokers.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from anabranch.controller import appended_bytes, config_writes, stock_producers
from anabranch.controller.context import Context
from anabranch.controller.events import Mark, ResizesDue
from anabranch.controller.image import PartitionImage, TopicImage
from anabranch.controller.outcome import ResponseWait
from anabranch.controller.state_writes import StateChange, take_state, write_states, write_together
from anabranch.controller.states import PartitionStatus, ReplicaStatus
from anabranch.controller.step_log import log_step
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import CreateOp, DeleteOp, SetOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.features import Features
from anabranch.zk_schemas.topic import TopicZnode


class Ask(enum.Enum):
    """A report about the topic for which brokers are asked."""

    STOCK_PRODUCERS = enum.auto()
    APPENDED_BYTES = enum.auto()


class TopicDeletion(NamedTuple):
    """The beginning of a topic's deletion."""

    zxid: int
    """The czxid of the deletion request."""
    replicas: Mapping[tuple[int, int], ReplicaStatus]
    """The status of each replica: ``{(partition, broker): status}``."""


_ASK = {Ask.STOCK_PRODUCERS: stock_producers.ask, Ask.APPENDED_BYTES: appended_bytes.ask_for_some_time}


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one decision. By default nothing happens."""

    topic: str = ""
    """The topic of the decision; empty if the decision is about a config."""
    znode: TopicZnode | None = None
    """The topic's new znode in the image; None if the image keeps the old znode."""
    version: int = -1
    """The zkVersion of ``znode``, if ``znode`` is stored already."""
    created: int = 0
    """Number of partitions of a new topic. A new topic gets into the image when its znode is read."""
    writes: Sequence[CreateOp | SetOp | DeleteOp] = ()
    """The operations of one multi: ``znode`` and then others, a config, or a new topic's config and znode."""
    states: Sequence[Sequence[StateChange]] = ()
    """Partition states to write, in groups. If there are ``writes``, their operations include these states.

    If there are no ``writes``, each group is in one multi, and several groups may share a multi.
    """
    independent: Sequence[StateChange] = ()
    """Partition states, each written even if ZooKeeper refuses others. ``writes`` and ``states`` are then empty."""
    confirms_office: bool = False
    """Whether the controller epoch is checked even if no state of ``independent`` is written."""
    removed: Sequence[int] = ()
    """Partitions whose state znodes ``writes`` deletes. A partition that stays assigned then has status NEW."""
    deletion: TopicDeletion | None = None
    """The beginning of the topic's deletion; its partitions are offline from then on."""
    features: Features | None = None
    """The finalized features in ``/features``, which is the last of ``writes``."""
    shutting_down: Sequence[int] = ()
    """Brokers that stop: they become leader of no partition and join no ISR."""
    notify: Sequence[str] = ()
    """Configs that brokers are to read again, like ``topics/t``."""
    asks: Sequence[Ask] = ()
    leader_and_isr: Sequence[TopicPartition] = ()
    """Partitions whose replicas get a LeaderAndIsr request."""
    stops: Sequence[tuple[int, TopicPartition]] = ()
    """Replicas that are deleted, each with its broker."""
    metadata: Sequence[TopicPartition] = ()
    """Partitions that every broker gets in an UpdateMetadata request."""
    events: Sequence[Mark] = ()
    step: str = ""
    """The step of a resize that is logged and counted; empty for none."""
    stepped: Sequence[int] = ()
    """The partitions in the log line of ``step``."""
    response: Any = None
    waits: Sequence[ResponseWait] = ()
    """Parts of ``response`` that must be complete, or time out, before ``response`` is sent."""


async def carry_out(context: Context, effects: Effects) -> set[TopicPartition]:
    """Write, then change the image and the batch. Returns the partitions of ``independent`` that ZooKeeper refused.

    Raises ``ControllerMovedError``, ``ImageStaleError``, ``ZkError``. After an error nothing is written, and the image
    and the batch are unchanged. Exception: states without ``writes`` may be written in part. Then the states of the
    multis before the failed multi are also in the image.
    """
    version, refused = effects.version, set[TopicPartition]()
    versions: Sequence[int] = ()
    if effects.writes:
        versions = await context.store.write(effects.writes)
        version = versions[0]
    elif effects.states:
        await write_together(context, effects.states)
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
    return refused


def _take_topic(context: Context, effects: Effects, version: int) -> None:
    """Store the topic's znode or its deletion in the image. ``version`` is the znode's zkVersion."""
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
        if ResizesDue() in effects.events and effects.znode is not topic.znode:
            topic.wait_logged = ""
        adopt(topic, effects.znode, version)


def _take_written(context: Context, effects: Effects, versions: Sequence[int]) -> None:
    """Store the written configs, states and features. The requests about a state use the topic's new znode."""
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


def adopt(topic: TopicImage, znode: TopicZnode, version: int) -> None:
    """Store a znode in the image of its topic. Add or remove partitions to match the znode's assignment."""
    topic.znode, topic.version = znode, version
    for p in sorted(znode.partitions.keys() - topic.partitions.keys() - topic.unreadable):
        topic.partitions[p] = PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
    for p in topic.partitions.keys() - znode.partitions.keys():
        del topic.partitions[p]
