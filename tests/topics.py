"""Topics for tests, through our own admin client."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from anabranch import Admin, NewTopic


def create_topic(bootstrap: str, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
    """Create a topic of one replica and return when it can be used."""

    async def run() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            new = NewTopic(topic, num_partitions=partitions, replication_factor=1, configs=dict(configs or {}))
            await admin.create_topics([new])

    anyio.run(run)
