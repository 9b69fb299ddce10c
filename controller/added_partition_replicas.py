"""Chooses brokers for the replicas of partitions that a resize adds."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.controller.config import ControllerConfig
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.new_topic_replicas import assign_replicas
from anabranch.controller.partition_limit import check_partition_limit
from anabranch.protocol.errors import ErrorCode, KafkaError


def rack_of_live_brokers(image: ClusterImage) -> dict[int, str | None]:
    """``{broker: rack}`` of the brokers that can take new partitions."""
    return {id: image.brokers[id].registration.rack for id in sorted(image.live_ids())}


def assign_new(
    image: ClusterImage, config: ControllerConfig, topic: TopicImage, new: Sequence[int]
) -> dict[int, list[int]]:
    """Replicas of new partitions, as many for each as other partitions have.

    ``new`` are consecutive partition numbers at the end of the assignment.

    Raises ``KafkaError``: INVALID_REPLICATION_FACTOR for too few brokers, POLICY_VIOLATION for too many partitions.
    """
    if not new:
        return {}
    check_partition_limit(image, config, topic.name, len(new))
    factor, brokers = len(topic.replicas(0)), rack_of_live_brokers(image)
    if factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {factor} larger than available brokers: {len(brokers)}.",
        )
    first, ids = topic.replicas(0)[0], sorted(brokers)
    start = ids.index(first) if first in brokers else 0
    return assign_replicas(brokers, len(new), factor, start_index=start, shift=start, first_partition=new[0])
