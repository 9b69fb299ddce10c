"""DescribeLogDirs (35): every log dir, with the sizes of its replicas and of the copies that move into it.

For partitions led here, version 2 has the records that retention by time keeps for a group (tag 10272). Version 4 has
the size and the free bytes of the file system (KIP-827); -1 if they are not known.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice

from anabranch.broker.log.log_moves import FutureReplica
from anabranch.broker.log.slices import TimeSlice, in_slices
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsRetained,
    DescribeLogDirsTopic,
)
from anabranch.protocol.types import TopicPartition

PARTITIONS_AT_ONCE = 256
"""The number of replicas that are looked at in one step."""


def handle(ctx: RequestContext, request: DescribeLogDirsRequest) -> Answer:
    work = _described(ctx, request)
    return ctx.node.later(
        lambda: in_slices(work, TimeSlice(ctx.node.env.clock)),
        lambda error: DescribeLogDirsResponse(error_code=error.code),
        may_stop=True,
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
                    partition_index=key.partition, partition_size=size_bytes, retained=_retained(ctx, key)
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
                total_bytes=directory.total_bytes,
                usable_bytes=directory.usable_bytes,
            )
        )
    return DescribeLogDirsResponse(results=results)


def _retained(ctx: RequestContext, key: TopicPartition) -> DescribeLogDirsRetained | None:
    log = ctx.node.logs.get(key)
    retained = None if log is None else ctx.node.retained_offsets.retained(log)
    if retained is None:
        return None
    lease, found = retained
    return DescribeLogDirsRetained(**found._asdict(), group_id=lease.group or "")


def _future(future: FutureReplica) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=future.partition.partition,
        partition_size=future.size_bytes,
        offset_lag=future.offset_lag,
        is_future_key=True,
    )
