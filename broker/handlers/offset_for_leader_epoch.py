"""OffsetForLeaderEpoch (23): the end offset of a leader epoch (KIP-101, KIP-279, KIP-320).

Consumers of a resized topic need the ends of the epochs of earlier layouts to decide which records they may deliver
(KIP-253). For such an epoch the error is OFFSET_NOT_AVAILABLE while an in-sync replica may have records of the epoch
that this leader lacks: if that replica becomes the leader, the epoch ends at a higher offset.
"""

from __future__ import annotations

from anabranch.broker.replication.partition import Partition
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from anabranch.protocol.types import TopicPartition


def handle(ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> Answer:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_find(ctx, request, topic.topic, asked) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _find(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest, topic: str, asked: OffsetForLeaderPartition
) -> EpochEndOffset:
    try:
        partition = ctx.node.replicas.leader(TopicPartition(topic, asked.partition), asked.current_leader_epoch)
        if request.replica_id < 0 and may_have_more(partition, asked.leader_epoch):
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{partition.key}: an in-sync replica may have more records of leader epoch {asked.leader_epoch}",
            )
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=asked.partition)
    epoch, end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


def may_have_more(partition: Partition, leader_epoch: int) -> bool:
    """Whether an epoch of an earlier layout may have more records than this leader has."""
    history = partition.log.layouts.entries
    layout_since = history[-1].leader_epoch if history else partition.leader_epoch
    return partition.layout.layout_version > 0 and leader_epoch < layout_since and not partition.is_followed
