"""Deletes topics: informs all brokers, waits until every replica is deleted, then removes the znodes.

``/admin/delete_topics`` names the topics to delete, so a new controller can continue. While a broker with a replica is
not registered, the deletion waits for it.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects, TopicDeletion
from anabranch.controller.events import BrokerAnswered, DeletionsChanged, RemovalDue, TopicChanged
from anabranch.controller.first_leader_epoch import raise_above
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.reads.deletion_requests import FoundDeletions, FoundZnodes
from anabranch.controller.states import PartitionStatus, ReplicaStatus
from anabranch.controller.stop_replica import deletions
from anabranch.controller.topics import on_topic_list_changed
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.sentinels import EPOCH_DURING_DELETE
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp, ZkOp
from anabranch.zk_schemas import paths

logger = structlog.get_logger(__name__)


def on_deletions_changed(context: Context, found: FoundDeletions) -> Decisions[None]:
    """Begin the deletions that are requested, and remove requests that cannot be carried out.

    If a request names a topic that the image lacks, new topics are loaded first. Then the requests are read again,
    because loading may write, and a request may be withdrawn meanwhile.
    """
    image = context.image
    if found.topics is not None:
        yield from on_topic_list_changed(context, found.topics)
        if found.topics.new:
            context.events.put(DeletionsChanged())
            return
    removed: list[list[ZkOp]] = []
    for name, request in found.requests.items():
        topic = image.topics.get(name)
        if topic is not None and context.config.delete_topic_enable:
            if request.zxid is not None:  # otherwise the request was withdrawn meanwhile
                yield decide_deletion(image, topic, request.zxid)
                logger.info("topic.deletion_started", topic=name)
        elif paths.topic(name) not in request.znodes:
            removed.append([*_leftovers(name, request.znodes)])
        elif topic is not None:
            logger.error("topic.deletion_refused", topic=name, reason="delete.topic.enable is false")
            removed.append([DeleteOp(paths.delete_topic(name))])
        else:
            logger.error(
                "topic.deletion_refused", topic=name, reason="the topic could not be loaded; repair or remove its znode"
            )
    yield Effects(groups=removed)
    for op in (op for group in removed for op in group):
        image.configs.pop(op.path, None)


def on_brokers_gone(context: Context, gone: Collection[int]) -> None:
    """Stop waiting for deletions on brokers that are gone, because their replicas cannot be deleted now."""
    for replicas in context.image.deletions.values():
        for key, status in replicas.items():
            if key[1] in gone and status is ReplicaStatus.DELETION_STARTED:
                replicas[key] = status.enter(ReplicaStatus.DELETION_INELIGIBLE)


def on_broker_joined(context: Context, broker: int) -> None:
    """Try again to delete the replicas that could not be deleted while the broker was not registered."""
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


def remove_znodes(context: Context, event: RemovalDue, found: FoundZnodes | None) -> Decisions[None]:
    """Remove the znodes that were read, and queue the others. The topic's own znodes go last.

    First, the leader epochs of later topics are raised above those of this topic, while its states are stored.
    """
    if found is None:
        return
    image, name = context.image, event.name
    if name in image.topics:  # otherwise its znode was removed by hand
        yield from raise_above(context, image.topics[name])
    yield Effects(groups=_removals(name, found), events=() if found.is_all else (event,))
    if not found.is_all:
        return
    replicas = image.deletions[name]
    for key, status in replicas.items():
        replicas[key] = status.enter(ReplicaStatus.NONEXISTENT)
    for partition in image.topics[name].partitions.values():
        partition.status = partition.status.enter(PartitionStatus.NONEXISTENT)
    del image.deletions[name], image.topics[name]
    image.configs.pop(paths.topic_config(name), None)
    context.events.forget_watch(TopicChanged(name))
    logger.info("topic.deleted", topic=name)


def _removals(name: str, found: FoundZnodes) -> list[list[ZkOp]]:
    """The operations that delete each partition's znodes, and if no others are left, the topic's other znodes."""
    groups: list[list[ZkOp]] = []
    for index, children in found.partitions.items():
        path = f"{paths.partitions(name)}/{index}"
        groups.append([*(DeleteOp(f"{path}/{child}") for child in children), DeleteOp(path)])
    if found.is_all:
        parents = [DeleteOp(paths.partitions(name))] if paths.partitions(name) in found.others else []
        groups.append([*parents, DeleteOp(paths.topic(name)), *_leftovers(name, found.others)])
    return groups


def _leftovers(name: str, existing: Collection[str]) -> list[DeleteOp]:
    """The operations that delete the topic's config and its deletion request, if they exist."""
    return [DeleteOp(path) for path in (paths.topic_config(name), paths.delete_topic(name)) if path in existing]
