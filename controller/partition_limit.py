"""How many partitions the cluster may have: ``max.partitions`` (the name is KIP-578's, which Kafka did not merge).

The limit holds for every request, whoever sends it and whatever it leaves to defaults. It does not hold for internal
topics, without which groups and transactions could not begin, nor for edits of a topic's znode by hand, as in the KIP.
"""

from __future__ import annotations

from anabranch.controller.config import ControllerConfig
from anabranch.controller.image import ClusterImage
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.topic_names import INTERNAL_TOPICS


def check_partition_limit(image: ClusterImage, config: ControllerConfig, topic: str, added: int) -> None:
    """Raises ``KafkaError`` POLICY_VIOLATION when partitions that are added for ``topic`` are too many."""
    count, limit = image.partition_count, config.max_partitions
    if added > 0 and count + added > limit and topic not in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The cluster has {count} partitions, and {added} more would exceed the limit of {limit} (max.partitions).",
        )
