"""The layout that a batch names in its Produce request (KIP-253)."""

from __future__ import annotations

from anabranch.client.net.cluster import TopicInfo
from anabranch.protocol.sentinels import NO_COUNT, NO_LAYOUT_VERSION
from anabranch.zk_schemas.partition_state import Layout

NO_LAYOUT = Layout(NO_COUNT, NO_LAYOUT_VERSION)
"""The layout for a topic of a plain Kafka broker: batches of the topic name no layout."""


def layout_of(info: TopicInfo) -> Layout:
    """The layout that a batch names if its records were placed by ``info``."""
    if info.undeleted_partition_count < 0 or info.layout_version < 0:
        return NO_LAYOUT
    return Layout(info.undeleted_partition_count, info.layout_version)
