"""Converts OffsetFetch before version 8, which has one group, to the later form with a list of groups, and back."""

from __future__ import annotations

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from anabranch.protocol.sentinels import NO_OFFSET

BATCH_VERSION = 8
TOP_LEVEL_ERROR_VERSION = 2


def topics_of(request: OffsetFetchRequest) -> list[OffsetFetchRequestTopics] | None:
    """The requested topics, in the shape of version 8; None for all."""
    if request.topics is None:
        return None
    return [
        OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in request.topics
    ]


def for_one_group(
    api_version: int, topics: list[OffsetFetchRequestTopics] | None, group: OffsetFetchResponseGroup
) -> OffsetFetchResponse:
    """The response of version 1 to 7. Version 1 has no top-level error: it has the error in every partition.

    Incarnations (tag 10256) are in the response only from version 8 on. librdkafka before 2.2 uses version 7 and cannot
    skip a tag (librdkafka #4278): its consumers would stop at the first tag.
    """
    if group.error_code != ErrorCode.NONE and api_version < TOP_LEVEL_ERROR_VERSION:
        return _every_partition_refused(topics or [], group.error_code)
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def _every_partition_refused(topics: list[OffsetFetchRequestTopics], error_code: int) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=NO_OFFSET, error_code=error_code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in topics
        ]
    )
