"""Deletes topics: informs all brokers, waits until every replica is deleted, then removes the znodes.

``/admin/delete_topics`` names the topics to delete, so a new controller can continue. While a broker with a replica is
away, the deletion waits for the broker.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from anabranch.controller.context import Context
from anabranch.controller.effects import Effects, TopicDeletion, carry_out
from anabranch.controller.events import BrokerAnswered, DeletionsChanged, RemovalDue, TopicChanged
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.states import PartitionStatus, ReplicaStatus
from anabranch.controller.stop_replica import deletions
from anabranch.controller.store import MAX_OPERATIONS, chunks, read_each
from anabranch.controller.topics import on_topic_list_changed
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.sentinels import EPOCH_DURING_DELETE
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp, ZkOp
from anabranch.zk_schemas import paths

logger = structlog.get_logger(__name__)
REMOVED_AT_ONCE = MAX_OPERATIONS // 2 - 1
"""Partitions whose znodes are removed before other events are handled: each takes two operations of a multi."""


async def on_deletions_changed(context: Context) -> None:
    """Read the topics to delete, and begin to delete the new ones."""
    image = context.image
    names = await context.store.children(paths.DELETE_TOPICS, context.events.watch(DeletionsChanged()))
    started = [name for name in names if name not in image.deletions]
    if any(name not in image.topics for name in started):
        await on_topic_list_changed(context)
    for name in started:
        topic = image.topics.get(name)
        if topic is not None and context.config.delete_topic_enable:
            await _start(context, topic)
        elif await context.store.exists(paths.topic(name)) is None:
            await context.store.write(await _leftovers(context, name))
            image.configs.pop(paths.topic_config(name), None)
        elif topic is not None:
            logger.error("topic.deletion_refused", topic=name, reason="delete.topic.enable is false")
            await context.store.write([DeleteOp(paths.delete_topic(name))])
        else:
            logger.error(
                "topic.deletion_refused", topic=name, reason="the topic could not be loaded; repair or remove its znode"
            )


def on_brokers_gone(context: Context, gone: Collection[int]) -> None:
    """Stop waiting for deletions on brokers that are gone, because their replicas cannot be deleted now."""
    for replicas in context.image.deletions.values():
        for key, status in replicas.items():
            if key[1] in gone and status is ReplicaStatus.DELETION_STARTED:
                replicas[key] = status.enter(ReplicaStatus.DELETION_INELIGIBLE)


def on_broker_joined(context: Context, broker: int) -> None:
    """Try again to delete the replicas that could not be deleted while the broker was away."""
    for name, replicas in context.image.deletions.items():
        for (partition, replica), status in replicas.items():
            if replica == broker and status is ReplicaStatus.DELETION_INELIGIBLE:
                replicas[partition, replica] = status.enter(ReplicaStatus.OFFLINE).enter(ReplicaStatus.DELETION_STARTED)
                context.batch.stop_replica(broker, TopicPartition(name, partition), delete=True)


def on_stop_replica_answered(context: Context, event: BrokerAnswered) -> None:
    """Process a response to StopReplica. A topic whose replicas are all deleted loses its znodes.

    A response about a replica that a reassignment dropped is ignored: the replica may have been added again since.
    """
    touched: dict[str, None] = {}
    for tp, broker, leader_epoch, _, error, _ in deletions(event):
        replicas = context.image.deletions.get(tp.topic)
        key = (tp.partition, broker)
        if (
            leader_epoch != EPOCH_DURING_DELETE
            or replicas is None
            or replicas.get(key) is not ReplicaStatus.DELETION_STARTED
        ):
            continue
        touched[tp.topic] = None
        if error == ErrorCode.NONE:
            replicas[key] = replicas[key].enter(ReplicaStatus.DELETION_SUCCESSFUL)
        else:
            replicas[key] = replicas[key].enter(ReplicaStatus.DELETION_INELIGIBLE)
            logger.error("replica.not_deleted", broker=broker, partition=str(tp), error=ErrorCode.of(error).name)
    for name in touched:
        _finish_when_deleted(context, name)


async def _start(context: Context, topic: TopicImage) -> None:
    request = await context.store.exists(paths.delete_topic(topic.name))
    if request is None:
        return  # the request was withdrawn meanwhile
    await carry_out(context, decide_deletion(context.image, topic, request.czxid))
    logger.info("topic.deletion_started", topic=topic.name)


def decide_deletion(image: ClusterImage, topic: TopicImage, zxid: int) -> Effects:
    """The effects that begin the deletion of a topic; ``zxid`` is the czxid of the request.

    Every live broker is asked to delete its replicas.
    """
    replicas: dict[tuple[int, int], ReplicaStatus] = {}
    for index in sorted(topic.znode.partitions):
        for broker in topic.replicas(index):
            live = broker in image.brokers
            status = ReplicaStatus.ONLINE if live else ReplicaStatus.OFFLINE
            next_status = ReplicaStatus.DELETION_STARTED if live else ReplicaStatus.DELETION_INELIGIBLE
            replicas[index, broker] = status.enter(ReplicaStatus.OFFLINE).enter(next_status)
    return Effects(
        topic.name,
        deletion=TopicDeletion(zxid, replicas),
        stops=[(broker, TopicPartition(topic.name, p)) for p, broker in replicas if broker in image.brokers],
        metadata=[TopicPartition(topic.name, p) for p in sorted(topic.partitions)],
    )


def _finish_when_deleted(context: Context, name: str) -> None:
    """Queue the removal of a topic's znodes once every replica is deleted."""
    if all(status is ReplicaStatus.DELETION_SUCCESSFUL for status in context.image.deletions[name].values()):
        context.events.put(RemovalDue(name))


async def remove_znodes(context: Context, name: str) -> None:
    """Remove a limited number of partition znodes, and queue the others. The topic's own znodes go last."""
    image = context.image
    replicas = image.deletions.get(name)
    if replicas is None or any(status is not ReplicaStatus.DELETION_SUCCESSFUL for status in replicas.values()):
        return  # the cluster was read again, and the deletion began again
    indexes = await context.store.children(paths.partitions(name))
    now, later = indexes[:REMOVED_AT_ONCE], indexes[REMOVED_AT_ONCE:]
    groups: dict[str, list[ZkOp]] = {}

    async def look(index: str) -> None:
        path = paths.partitions(name) + f"/{index}"
        children = await context.store.children(path)
        groups[index] = [*(DeleteOp(f"{path}/{child}") for child in children), DeleteOp(path)]

    await read_each(now, look)
    last = [] if later else await _topic_znodes(context, name)
    for ops in chunks([*(groups[index] for index in now), last]):
        await context.store.write(ops)
    if later:
        context.events.put(RemovalDue(name))
        return
    for key, status in replicas.items():
        replicas[key] = status.enter(ReplicaStatus.NONEXISTENT)
    for partition in image.topics[name].partitions.values():
        partition.status = partition.status.enter(PartitionStatus.NONEXISTENT)
    del image.deletions[name], image.topics[name]
    image.configs.pop(paths.topic_config(name), None)
    context.events.forget_watch(TopicChanged(name))
    logger.info("topic.deleted", topic=name)


async def _topic_znodes(context: Context, name: str) -> list[ZkOp]:
    last = await _leftovers(context, name)
    if await context.store.exists(paths.partitions(name)) is None:
        return [DeleteOp(paths.topic(name)), *last]
    return [DeleteOp(paths.partitions(name)), DeleteOp(paths.topic(name)), *last]


async def _leftovers(context: Context, name: str) -> list[ZkOp]:
    """The operations that delete the topic's config and its deletion request, if they exist."""
    found: list[ZkOp] = []
    for path in (paths.topic_config(name), paths.delete_topic(name)):
        if await context.store.exists(path) is not None:
            found.append(DeleteOp(path))
    return found
