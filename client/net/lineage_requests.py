"""Requests for lineages (API 25301, version 1). No IO."""

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
    """The partitions of each request: at most ``at_once``, because a very long response takes long to read."""
    return (partitions[first : first + at_once] for first in range(0, len(partitions), at_once))


def lineages_request(
    partitions: Iterable[TopicPartition], topic_incarnation: Callable[[str], int]
) -> PartitionLeaderEpochsForPartitionsRequest:
    """A request for lineages. ``topic_incarnation`` gives the incarnation of the topic that is meant, -1 for any."""
    topics: dict[str, PartitionLeaderEpochsForPartitionsRequestTopic] = {}
    for name, partition in partitions:
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = PartitionLeaderEpochsForPartitionsRequestTopic(
                name=name, topic_incarnation=topic_incarnation(name)
            )
        topic.partitions.append(PartitionLeaderEpochsForPartitionsRequestPartition(partition_index=partition))
    return PartitionLeaderEpochsForPartitionsRequest(topics=list(topics.values()))
