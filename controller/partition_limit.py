"""The limit on the cluster's partitions: ``max.partitions`` (the name is KIP-578's, which Kafka did not merge).

The limit applies to every request, except for internal topics, because groups and transactions could not begin without
them. As in the KIP, the limit does not apply to manual edits of a topic's znode.
"""

from __future__ import annotations

from anabranch.controller.config import ControllerConfig
from anabranch.controller.image import ClusterImage
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.topic_names import INTERNAL_TOPICS


def check_partition_limit(image: ClusterImage, config: ControllerConfig, topic: str, added: int) -> None:
    """Raise ``KafkaError`` POLICY_VIOLATION when ``topic`` would add too many partitions."""
    count, limit = image.partition_count, config.max_partitions
    if added > 0 and count + added > limit and topic not in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The cluster has {count} partitions, and {added} more would exceed the limit of {limit} (max.partitions).",
        )
