"""DescribeLogDirs (35), versions 1-2: every log dir with the sizes of its replicas; those on their way into it too.

Of partitions led here version 2 says what retention by time leaves there for a group (tag 10272).

AlterReplicaLogDirs (34), versions 1-2 (KIP-113): move replicas between the log dirs of this broker. One that is not
here yet is answered REPLICA_NOT_AVAILABLE, and created in the dir that was asked for. A partition that the cluster does
not have is answered UNKNOWN_TOPIC_OR_PARTITION: what is remembered stays within the cluster's size.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from typing import TYPE_CHECKING

from anabranch.broker.log.slices import TimeSlice, in_slices
from anabranch.broker.request_context import Answer, RequestContext
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from anabranch.protocol.generated.describe_log_dirs import (
    DescribeLogDirsHeldRecords,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from anabranch.protocol.types import TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.log.log_moves import FutureReplica


PARTITIONS_AT_ONCE = 256
"""Replicas that are looked at in one step."""


def describe_log_dirs(ctx: RequestContext, request: DescribeLogDirsRequest) -> Answer:
    work = _described(ctx, request)
    return ctx.node.later(
        lambda: in_slices(work, TimeSlice(ctx.node.env.clock)), lambda _error: DescribeLogDirsResponse(results=[])
    )


def _described(ctx: RequestContext, request: DescribeLogDirsRequest) -> Generator[None, None, DescribeLogDirsResponse]:
    wanted: set[TopicPartition] | None = None
    if request.topics is not None:
        named = (TopicPartition(asked.topic, index) for asked in request.topics for index in asked.partitions)
        wanted = set()
        while some := set(islice(named, PARTITIONS_AT_ONCE)):
            wanted |= some
            yield
    results = []
    for directory in ctx.node.logs.log_dirs():
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        for number, (key, size_bytes) in enumerate(sorted(directory.size_bytes.items()), 1):
            if wanted is None or key in wanted:
                shown = DescribeLogDirsPartition(
                    partition_index=key.partition, partition_size=size_bytes, held=_held(ctx, key)
                )
                topics.setdefault(key.topic, []).append(shown)
            if number % PARTITIONS_AT_ONCE == 0:
                yield
        for future in directory.futures:
            if wanted is None or future.partition in wanted:
                topics.setdefault(future.partition.topic, []).append(_future(future))
        results.append(
            DescribeLogDirsResult(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR if directory.is_lost else ErrorCode.NONE,
                log_dir=directory.path,
                topics=[DescribeLogDirsTopic(name=name, partitions=shown) for name, shown in topics.items()],
            )
        )
    return DescribeLogDirsResponse(results=results)


def _held(ctx: RequestContext, key: TopicPartition) -> DescribeLogDirsHeldRecords | None:
    log = ctx.node.logs.get(key)
    held = None if log is None else ctx.node.retention_holds.held_back(log)
    if held is None:
        return None
    hold, found = held
    return DescribeLogDirsHeldRecords(**found._asdict(), group_id=hold.group or "")


def _future(future: FutureReplica) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=future.partition.partition,
        partition_size=future.size_bytes,
        offset_lag=future.offset_lag,
        is_future_key=True,
    )


def alter_replica_log_dirs(ctx: RequestContext, request: AlterReplicaLogDirsRequest) -> Answer:
    work = _altered(ctx, request)
    return ctx.node.later(
        lambda: in_slices(work, TimeSlice(ctx.node.env.clock)), lambda _error: AlterReplicaLogDirsResponse(results=[])
    )


def _altered(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    """One step for each partition."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = _move(ctx, TopicPartition(topic.name, index), directory.path)
                result = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                results.setdefault(topic.name, []).append(result)
                yield
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=found) for name, found in results.items()]
    )


def _move(ctx: RequestContext, partition: TopicPartition, path: str) -> ErrorCode:
    try:
        ctx.node.logs.moves.request(partition, path, exists=ctx.node.metadata.contains(*partition))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
