"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ended (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

from broker.request_context import Answer, RequestContext
from protocol.errors import KafkaError
from protocol.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from protocol.types import TopicPartition


def handle(ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> Answer:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_find(ctx, topic.topic, asked) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _find(ctx: RequestContext, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = ctx.node.replicas.leader(TopicPartition(topic, asked.partition), asked.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=asked.partition)
    epoch, end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
