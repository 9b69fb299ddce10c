"""The brokers of a cluster, their disks, and the health of its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anabranch import Admin, TopicDescription


def unhealthy(topics: Iterable[TopicDescription]) -> list[dict[str, Any]]:
    """The partitions that have replicas out of sync, or no leader."""
    return [
        {
            "topic": topic.name,
            "partition": info.partition,
            "leader": info.leader if info.leader >= 0 else None,
            "replicas": list(info.replicas),
            "isr": list(info.isr),
        }
        for topic in topics
        for info in topic.partitions
        if info.leader < 0 or len(info.isr) < len(info.replicas)
    ]


async def all_topics(admin: Admin) -> list[TopicDescription]:
    names = [listing.name for listing in await admin.list_topics()]
    return list((await admin.describe_topics(names)).values()) if names else []
