"""Requests of clients about partitions of one topic, as most broker tests send them."""

from __future__ import annotations

from typing import Any

from anabranch.protocol.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData

CONSUMER = -1
"""The replica id of a request that no follower sends."""


def produce(
    *batches: bytes | bytearray, partition: int = 0, topic: str = "t", acks: int = -1, timeout_ms: int = 5_000
) -> ProduceRequest:
    """One batch to each of the partitions from ``partition`` on."""
    data = [PartitionProduceData(index=index, records=bytes(b)) for index, b in enumerate(batches, partition)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def fetch(*partitions: int, offset: int = 0, leader_epoch: int = -1, **fields: Any) -> FetchRequest:
    """From one offset of each partition. Without ``fields`` it waits for nothing and has no session."""
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    asked = [
        FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=max(1 << 20, limits["max_bytes"]),
            current_leader_epoch=leader_epoch,
        )
        for partition in partitions
    ]
    return FetchRequest(topics=[FetchTopic(topic="t", partitions=asked)], **limits)


def list_offsets(
    *partitions: int, timestamp: int = -1, replica_id: int = CONSUMER, leader_epoch: int = -1
) -> ListOffsetsRequest:
    asked = [
        ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=leader_epoch)
        for partition in partitions
    ]
    return ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic(name="t", partitions=asked)])


def end_of_epoch(
    partition: int, leader_epoch: int, *, current_leader_epoch: int = -1, replica_id: int = CONSUMER
) -> OffsetForLeaderEpochRequest:
    asked = OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current_leader_epoch, leader_epoch=leader_epoch
    )
    return OffsetForLeaderEpochRequest(
        replica_id=replica_id, topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])]
    )


def delete_records(partition: int, offset: int, *, leader_epoch: int = -1) -> DeleteRecordsRequest:
    asked = DeleteRecordsPartition(partition_index=partition, offset=offset, leader_epoch=leader_epoch)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[asked])], timeout_ms=5_000)


def only(response: Any) -> Any:
    """The result of the only partition in a response to one of these requests."""
    (topic,) = getattr(response, "topics", None) or response.responses
    (result,) = getattr(topic, "partitions", None) or topic.partition_responses
    return result
