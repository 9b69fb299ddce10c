"""Splits and merges for tests, through our own admin client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from anabranch import Admin
from anabranch.testing.processes import wait_for
from tests.support.controller.topics import create_topic

DEADLINE_S = 90.0


def create_resizable(
    bootstrap: str,
    topic: str,
    partitions: int,
    configs: Mapping[str, str] | None = None,
    *,
    replication_factor: int = 1,
) -> None:
    """Create a topic whose marked partitions are removed as soon as every group has read them."""
    drained = {"delete.records.when.drained": "true", **(configs or {})}
    create_topic(bootstrap, topic, partitions, drained, replication_factor=replication_factor)


def resize(bootstrap: str, topic: str, count: int, *, settle: bool = True) -> None:
    """Request another partition count; with ``settle``, wait until the topic has this count and all leaders."""
    with_admin(bootstrap, lambda admin: admin.create_partitions({topic: count}))
    if settle:
        wait_for(lambda: is_settled(bootstrap, topic, count), DEADLINE_S, f"{topic} has {count} partitions")


def is_settled(bootstrap: str, topic: str, count: int) -> bool:
    found = with_admin(bootstrap, lambda admin: admin.describe_topics([topic]))[topic]
    counts = {found.undeleted_partition_count, len(found.partitions)}
    return counts == {count} and all(partition.leader > 0 for partition in found.partitions)


def with_admin(bootstrap: str, ask: Callable[[Admin], Awaitable[Any]]) -> Any:
    """The result of ``ask`` with a new admin client."""

    async def run() -> Any:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            return await ask(admin)

    return anyio.run(run)
