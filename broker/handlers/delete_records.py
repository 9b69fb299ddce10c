"""DeleteRecords (21): raise a partition's log start; -1 means up to the high watermark.

In a compacted topic, records are deleted only from a partition that is marked for deletion, and only with
``delete.latest.values.when.drained`` (KIP-253). A request that drains such a partition names its leader epoch (tag
10268). In another leader epoch the partition keeps its records, because it may not be marked for deletion any more. The
response has the low watermark, and is sent when the log of every live replica begins at that offset or later (KIP-107).
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.broker.replication.delayed_delete import DelayedDelete, Deleted, RecordDeletion
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.ordered_resize.delete_when_drained import Marked
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
    begun = [
        (topic.name, [(asked.partition_index, _delete(ctx, topic.name, asked)) for asked in topic.partitions])
        for topic in request.topics
    ]

    def respond(outcomes: Mapping[RecordDeletion, Deleted]) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=name,
                    partitions=[
                        _result(index, outcomes[found] if isinstance(found, RecordDeletion) else found)
                        for index, found in partitions
                    ],
                )
                for name, partitions in begun
            ]
        )

    deletions = [found for _, partitions in begun for _, found in partitions if isinstance(found, RecordDeletion)]
    deadline = ctx.node.env.clock.monotonic() + request.timeout_ms / 1000
    return DelayedDelete.park(ctx.node.purgatory, deadline, deletions, respond)


def _result(index: int, deleted: Deleted) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=deleted.low_watermark, error_code=deleted.error_code
    )


def _delete(ctx: RequestContext, topic: str, asked: DeleteRecordsPartition) -> RecordDeletion | Deleted:
    """Delete the records in this broker's log. If the deletion is refused, its outcome is set at once."""
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
        return Deleted(error.code)
    partition.notify()
    return RecordDeletion(partition, log_start_offset)
