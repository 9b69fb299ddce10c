"""Topics with layouts in a client's metadata, for tests of a consumer's delivery."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.client.cluster import PartitionInfo, TopicInfo
from anabranch.protocol.types import ZERO_UUID, TopicPartition


def topic(
    initial: int,
    undeleted: int,
    epochs: Mapping[int, int] | list[int],
    *,
    version: int = 1,
    ordered: bool = True,
    name: str = "t",
    incarnations: Mapping[int, int] | None = None,
) -> TopicInfo:
    """A topic with one partition for each leader epoch; incarnations default to 100 + partition."""
    by_partition = dict(enumerate(epochs)) if isinstance(epochs, list) else dict(epochs)
    given = incarnations or {}
    return TopicInfo(
        name=name,
        topic_id=ZERO_UUID,
        partitions={
            p: PartitionInfo(p, leader=1, leader_epoch=epoch, incarnation=given.get(p, 100 + p))
            for p, epoch in by_partition.items()
        },
        initial_partition_count=initial,
        undeleted_partition_count=undeleted,
        layout_version=version,
        ordered_delivery=ordered,
        incarnation=given.get(0, 100),
    )


def tp(partition: int, name: str = "t") -> TopicPartition:
    """A partition of the topic."""
    return TopicPartition(name, partition)
