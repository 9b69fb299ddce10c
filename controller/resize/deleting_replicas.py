"""Deletes every replica of drained partitions (KIP-253, Proposed Changes 3).

``ordered_resize`` decides when a removal begins and ends. A replica reports its log end when it is deleted, because
transaction markers may follow the end that the leader reported. If the partition is created again, its log begins at
the highest of these ends (``base_offset``).
"""

from __future__ import annotations

import structlog

from anabranch.controller import view
from anabranch.controller.context import Context
from anabranch.controller.events import BrokerAnswered, ResizesDue
from anabranch.controller.image import TopicImage
from anabranch.controller.stop_replica import deletions
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.types import TopicPartition

logger = structlog.get_logger(__name__)


def stop(context: Context, topic: TopicImage) -> None:
    """Send StopReplica for replicas of partitions that are being removed: once for each registration of a broker."""
    for p, left in view.left_on(topic).items():
        ending = topic.partitions[p].ending_of_leader()
        for replica in left:
            broker = context.image.brokers.get(replica)
            if broker is not None and ending.stop_sent.get(replica) != broker.epoch:
                ending.stop_sent[replica] = broker.epoch
                context.batch.stop_replica(replica, TopicPartition(topic.name, p), delete=True)


def on_stop_replica_answered(context: Context, event: BrokerAnswered) -> None:
    """Record the deleted replicas. A response for an earlier leader epoch belongs to a reassignment."""
    for tp, broker, leader_epoch, incarnation, error, log_end_offset in deletions(event):
        partition = context.image.partition(tp)
        state = partition.state if partition is not None else None
        if partition is None or state is None or not state.being_removed or incarnation != partition.incarnation:
            continue
        if leader_epoch < state.leader_epoch:
            continue
        if error == ErrorCode.NONE:
            ending = partition.ending_of_leader()
            ending.stopped.add(broker)
            ending.deleted_end_offset = max(ending.deleted_end_offset, log_end_offset)
            context.events.put(ResizesDue())
        else:
            logger.error("replica.not_deleted", broker=broker, partition=str(tp), error=ErrorCode.of(error).name)
