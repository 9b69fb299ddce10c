"""The one thing the coordinator reads out of the members' metadata: which topics a consumer group subscribes to."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.generated.consumer_protocol import ConsumerProtocolSubscription
from protocol.primitives import DecodeError, read_version

CONSUMER_PROTOCOL_TYPE = "consumer"
_NEWEST = max(ConsumerProtocolSubscription.DECODERS)


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
