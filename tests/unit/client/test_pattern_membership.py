"""A group member that subscribes by a pattern."""

from __future__ import annotations

import anyio

from anabranch.client.cluster import Cluster, Node
from tests.unit.client.scripted_group import Fixture, ScriptedLink


async def test_a_member_with_a_pattern_joins_once_all_topics_are_known() -> None:
    """Before the response about all topics, no topic matches the pattern, so a join would be a useless rebalance."""
    link = ScriptedLink([])
    async with anyio.create_task_group() as tasks:
        fixture = Fixture(tasks, link)
        fixture.subscription.unsubscribe()
        fixture.subscription.subscribe_pattern("t")
        fixture.metadata.update()  # a refresh failed
        await fixture.coordinator.poll()
        assert not fixture.coordinator.standing.is_joining
        fixture.metadata.cluster = Cluster(nodes={1: Node(1, "h", 1)})  # a response from before the subscription
        await fixture.coordinator.poll()
        assert not fixture.coordinator.standing.is_joining
        fixture.metadata.knows_all_topics = True
        await fixture.coordinator.poll()
        assert fixture.coordinator.standing.is_joining
        tasks.cancel_scope.cancel()
