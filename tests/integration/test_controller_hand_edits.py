"""Znodes edited by hand, with a controller in office and without: what the rules refuse is undone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from tests.controller_world import World
from tests.resize_world import TOPIC, Rules, configure, edit, finished, resized, started

pytestmark = pytest.mark.trio


@pytest.fixture
async def world(nursery: trio.Nursery) -> AsyncIterator[World]:
    """A topic that was resized from four partitions to six; every write is watched."""
    world = await started(nursery)
    rules = Rules(world)
    rules.watch(1000)
    await resized(world, 6)
    yield world
    assert rules.broken == []


async def restored(world: World, before: object) -> None:
    async def is_topic() -> bool:
        return await world.topic(TOPIC) == before

    await world.until(is_topic)


@pytest.mark.parametrize("is_seen", [True, False], ids=["live", "unseen"])
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"undeleted_partition_count": 5}, "is compacted"),
        ({"initial_partition_count": 2}, "initial_partition_count"),
        ({"layout_version": 2**31 - 1}, "layout_version"),
        ({"0": [1, 2]}, "replicas of partition"),
        ({"6": [1]}, "must have 3 replicas"),
    ],
    ids=["never-drained", "initial", "version", "replicas", "factor"],
)
async def test_an_edit_that_the_rules_refuse(
    world: World,
    autojump_clock: object,
    changes: dict[str, object],
    why: str,
    is_seen: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await configure(world, cleanup_policy="compact")
    before = await world.topic(TOPIC)
    if not is_seen:
        world.kill_controller(1000)
        world.zk.end_session(world.sessions[1000].session_id)
    partitions = {str(index): replicas for index, replicas in before.partitions.items()}
    assigned = {index: replicas for index, replicas in changes.items() if index.isdigit()}
    await edit(world, **({"partitions": partitions | assigned} if assigned else changes))
    if not is_seen:
        await world.start_controller(1001)
    await world.until(lambda: "the edit is undone" in caplog.text)
    assert why in caplog.text
    await restored(world, before)
    assert await finished(world, 6)
    await configure(world, delete_records_when_drained="true")
    await resized(world, 7)
