"""AlterReplicaLogDirs (34): move replicas between the log dirs of this broker (KIP-113).

If the replica does not exist here yet, the answer is REPLICA_NOT_AVAILABLE, and the replica will be created in the
requested dir. If the cluster does not have the partition, the answer is UNKNOWN_TOPIC_OR_PARTITION. So at most one
request for each partition of the cluster is remembered.
"""

from __future__ import annotations

from collections.abc import Generator

from anabranch.broker.log.slices import TimeSlice, in_slices
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from anabranch.protocol.types import TopicPartition


def handle(ctx: RequestContext, request: AlterReplicaLogDirsRequest) -> Answer:
    work = _altered(ctx, request)
    return ctx.node.later(
        lambda: in_slices(work, TimeSlice(ctx.node.env.clock)), lambda _error: AlterReplicaLogDirsResponse(results=[])
    )


def _altered(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    """Answer the request, one partition a step. The last answer to a partition counts."""
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    known: dict[TopicPartition, AlterReplicaLogDirPartitionResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                partition = TopicPartition(topic.name, index)
                if partition not in known:
                    known[partition] = AlterReplicaLogDirPartitionResult(partition_index=index)
                    named = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
                    named.partitions.append(known[partition])
                known[partition].error_code = _move(ctx, partition, directory.path)
                yield
            yield
        yield
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _move(ctx: RequestContext, partition: TopicPartition, path: str) -> ErrorCode:
    try:
        ctx.node.logs.moves.request(partition, path, exists=ctx.node.metadata.contains(*partition))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
