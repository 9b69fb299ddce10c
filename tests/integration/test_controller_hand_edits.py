"""Znodes edited by hand, with a controller in office and without: what the rules refuse is undone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from protocol.generated.leader_and_isr import LeaderAndIsrRequest
from protocol.generated.update_metadata import UpdateMetadataRequest
from tests.controller_world import World
from tests.resize_world import TOPIC, Rules, configure, edit, finished, resized, started
from zk_schemas import paths
from zk_schemas.config import ConfigChange, ConfigZnode

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


# ---------------------------------------------------------------- enable.ordered.delivery


async def edit_config(world: World, **config: str) -> None:
    """Write the config's znode, and the notification that brokers wait for."""
    path, names = paths.topic_config(TOPIC), {name.replace("_", "."): value for name, value in config.items()}
    await world.store.set(path, ConfigZnode(names).encode())
    change = ConfigChange(f"topics/{TOPIC}").encode()
    await world.store.create(paths.CONFIG_CHANGE_PREFIX, change, sequence=True, make_parents=True)


async def ordered(world: World) -> str | None:
    path = paths.topic_config(TOPIC)
    return ConfigZnode.decode(path, (await world.store.get(path)).data).config.get("enable.ordered.delivery")


def told(world: World) -> set[int]:
    """What brokers were told last of the topic's order, by either request."""
    orders = [topic for r in world.brokers[1].sent(LeaderAndIsrRequest) for topic in r.topic_states]
    updates = [topic for r in world.brokers[1].sent(UpdateMetadataRequest) for topic in r.topic_states]
    return {orders[-1].partition_states[-1].ordered_delivery, updates[-1].ordered_delivery}


@pytest.mark.parametrize("is_seen", [True, False], ids=["live", "unseen"])
@pytest.mark.parametrize("settled", ["true", "false"])
async def test_ordered_delivery_of_a_resized_topic_is_restored(
    nursery: trio.Nursery, autojump_clock: object, settled: str, is_seen: bool
) -> None:
    world = await started(nursery)
    await configure(world, enable_ordered_delivery=settled)
    assert told(world) == {-1}
    await resized(world, 6)
    assert told(world) == {int(settled == "true")}
    if not is_seen:
        world.kill_controller(1000)
        world.zk.end_session(world.sessions[1000].session_id)
    await edit_config(world, enable_ordered_delivery="true" if settled == "false" else "false", retention_ms="7")
    if not is_seen:
        await world.start_controller(1001)

    async def is_restored() -> bool:
        return await ordered(world) == settled

    await world.until(is_restored)
    await resized(world, 8)
    assert told(world) == {int(settled == "true")}
    assert (await world.topic(TOPIC)).ordered_delivery is (settled == "true")
