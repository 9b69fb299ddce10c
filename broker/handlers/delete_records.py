"""DeleteRecords (21), versions 0-2: raise a partition's log start; -1 means up to the high watermark.

With one replica the low watermark is the log start, so nothing is waited for.
"""

from __future__ import annotations

from broker.request_context import Answer, RequestContext
from protocol.errors import KafkaError
from protocol.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from protocol.types import TopicPartition


def handle(ctx: RequestContext, request: DeleteRecordsRequest) -> Answer:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_delete(ctx, topic.name, asked) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _delete(ctx: RequestContext, topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    index = asked.partition_index
    try:
        partition = ctx.node.replicas.leader(TopicPartition(topic, index))
        low_watermark = partition.log.delete_records_before(asked.offset)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1, error_code=error.code)
    partition.notify()
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark)
