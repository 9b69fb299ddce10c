"""Requests for offsets as consumers send them: the start or end of logs, an offset at a time, the ends of epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.sentinels import CONSUMER_REPLICA_ID, NO_EPOCH

ANY_LEADER_EPOCH = NO_EPOCH


def list_offsets(
    partitions: Mapping[str, Iterable[tuple[int, int]]], timestamp: int, replica_id: int = CONSUMER_REPLICA_ID
) -> ListOffsetsRequest:
    """A request for ``partitions``: (partition, leader epoch) by topic. A leader of another epoch refuses it."""
    topics = [
        ListOffsetsTopic(
            name=name,
            partitions=[
                ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp)
                for index, epoch in of_topic
            ],
        )
        for name, of_topic in partitions.items()
    ]
    return ListOffsetsRequest(replica_id=replica_id, topics=topics)


def epoch_ends(topic: str, asked: Iterable[tuple[int, int, int]]) -> OffsetForLeaderEpochRequest:
    """A request for the ends of epochs, ``asked``: (partition, leader epoch, awaited epoch).

    It has the form that consumers send, because leaders answer consumers only with final ends.
    """
    partitions = [
        OffsetForLeaderPartition(partition=index, current_leader_epoch=leads, leader_epoch=epoch)
        for index, leads, epoch in asked
    ]
    topics = [OffsetForLeaderTopic(topic=topic, partitions=partitions)]
    return OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA_ID, topics=topics)
