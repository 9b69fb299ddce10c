"""What the coordinator reads out of the members' blobs: the topics a consumer group subscribes to and who owns what."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.generated.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.primitives import DecodeError, read_version
from protocol.types import TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"
_NEWEST = max(ConsumerProtocolSubscription.DECODERS)
_NEWEST_ASSIGNMENT = max(ConsumerProtocolAssignment.DECODERS)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Union of the topics in ``ConsumerProtocolSubscription`` blobs; None when one of them cannot be read.

    A newer version is read as the newest known, and bytes behind the last field are left alone, as Java clients do.
    """
    topics: set[str] = set()
    try:
        for blob in subscriptions:
            version = min(read_version(blob), _NEWEST)
            topics.update(ConsumerProtocolSubscription.decode_prefix(memoryview(blob)[2:], version)[0].topics)
    except DecodeError:
        return None
    return frozenset(topics)


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """The partitions in a ``ConsumerProtocolAssignment`` blob; none when it cannot be read (another kind of group)."""
    try:
        version = min(read_version(assignment), _NEWEST_ASSIGNMENT)
        decoded = ConsumerProtocolAssignment.decode_prefix(memoryview(assignment)[2:], version)[0]
    except DecodeError:
        return []
    return [TopicPartition(found.topic, index) for found in decoded.assigned_partitions for index in found.partitions]
