"""Creates topics for tests by our own admin client."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from anabranch import Admin, NewTopic


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    configs: Mapping[str, str] | None = None,
    *,
    replication_factor: int = 1,
) -> None:
    """Create a topic, and return when clients can use the topic."""

    async def run() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            new = NewTopic(topic, partitions, replication_factor, dict(configs or {}))
            await admin.create_topics([new])

    anyio.run(run)
