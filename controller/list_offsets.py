"""ListOffsets as the controller asks it: where logs begin, end, or reached a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.sentinels import CONSUMER_REPLICA_ID

ANY_LEADER_EPOCH = -1


def request(
    partitions: Mapping[str, Iterable[tuple[int, int]]], timestamp: int, replica_id: int = CONSUMER_REPLICA_ID
) -> ListOffsetsRequest:
    """``partitions``: of each topic, (partition, leader epoch); a leader of another epoch than that refuses."""
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
