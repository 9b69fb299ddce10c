"""25301 version 1 between the wire's classes and ``ordered_resize``. No IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsRequest,
    PartitionLeaderEpochsForPartitionsRequestPartition,
    PartitionLeaderEpochsForPartitionsRequestTopic,
)
from anabranch.protocol.types import TopicPartition

LINEAGE_VERSION: Final = 1
"""The first version that has lineages."""


def in_requests(partitions: Sequence[TopicPartition], at_once: int) -> Iterator[Sequence[TopicPartition]]:
    """The partitions of each request: an answer of very many takes long to be read."""
    return (partitions[first : first + at_once] for first in range(0, len(partitions), at_once))


def lineages_request(
    partitions: Iterable[TopicPartition], topic_incarnation: Callable[[str], int]
) -> PartitionLeaderEpochsForPartitionsRequest:
    """The question; ``topic_incarnation``: which topic of a name is meant, -1 for any."""
    topics: dict[str, PartitionLeaderEpochsForPartitionsRequestTopic] = {}
    for name, partition in partitions:
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = PartitionLeaderEpochsForPartitionsRequestTopic(
                name=name, topic_incarnation=topic_incarnation(name)
            )
        topic.partitions.append(PartitionLeaderEpochsForPartitionsRequestPartition(partition_index=partition))
    return PartitionLeaderEpochsForPartitionsRequest(topics=list(topics.values()))
