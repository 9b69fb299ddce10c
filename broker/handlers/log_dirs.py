"""DescribeLogDirs (35), versions 1-2: every log dir with the sizes of its replicas."""

from __future__ import annotations

from broker.request_context import Answer, RequestContext
from protocol.generated.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from protocol.types import TopicPartition


def describe_log_dirs(ctx: RequestContext, request: DescribeLogDirsRequest) -> Answer:
    wanted: set[TopicPartition] | None = None
    if request.topics is not None:
        wanted = {TopicPartition(asked.topic, index) for asked in request.topics for index in asked.partitions}
    results = []
    for directory in ctx.node.logs.log_dirs():
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        for key, size_bytes in sorted(directory.size_bytes.items()):
            if wanted is None or key in wanted:
                shown = DescribeLogDirsPartition(partition_index=key.partition, partition_size=size_bytes)
                topics.setdefault(key.topic, []).append(shown)
        results.append(
            DescribeLogDirsResult(
                log_dir=directory.path,
                topics=[DescribeLogDirsTopic(name=name, partitions=shown) for name, shown in topics.items()],
            )
        )
    return DescribeLogDirsResponse(results=results)
