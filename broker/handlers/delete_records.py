"""DeleteRecords (21): raise a partition's log start; -1 means up to the high watermark.

In a compacted topic only a partition that is marked for deletion loses records, with
``delete.latest.values.when.drained`` (KIP-253). A request that drains such a partition names its leader epoch (tag
10268). In another leader epoch the partition keeps its records, because it may be counted again. The response has the
low watermark, and is sent when the log of every live replica begins there or later (KIP-107).
"""

from __future__ import annotations

from anabranch.broker.replication.delayed_delete import DelayedDelete, Waiting
from anabranch.broker.request_context import Answer, RequestContext
from anabranch.ordered_resize.marked import Marked
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from anabranch.protocol.types import TopicPartition


def handle(ctx: RequestContext, request: DeleteRecordsRequest) -> Answer:
    waiting: Waiting = []
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_delete(ctx, topic.name, asked, waiting) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )
    deadline = ctx.node.env.clock.monotonic() + request.timeout_ms / 1000
    return DelayedDelete.park(ctx.node.purgatory, deadline, waiting, response)


def _delete(
    ctx: RequestContext, topic: str, asked: DeleteRecordsPartition, waiting: Waiting
) -> DeleteRecordsPartitionResult:
    index = asked.partition_index
    try:
        partition = ctx.node.replicas.leader(TopicPartition(topic, index), asked.leader_epoch)
        is_closed = partition.layout.closes(index)
        if asked.leader_epoch >= 0 and not is_closed:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{partition.key} is not marked for deletion")
        may_lose = is_closed and ctx.node.dynamic.marked(topic) is Marked.DRAINED
        if asked.leader_epoch >= 0 and partition.log.config.compacts and not may_lose:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{partition.key} is compacted and keeps its records (delete.latest.values.when.drained=false)",
            )
        log_start_offset = partition.log.delete_records_before(asked.offset, even_if_compacted=may_lose)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1, error_code=error.code)
    partition.notify()
    result = DeleteRecordsPartitionResult(partition_index=index)
    waiting.append((partition, log_start_offset, result))
    return result
