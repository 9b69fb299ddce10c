"""The controller's ListOffsets requests: for the start of logs, their end, or the offset at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.sentinels import CONSUMER_REPLICA_ID, NO_EPOCH

ANY_LEADER_EPOCH = NO_EPOCH


def request(
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
