"""A broker that does not know resizing and registers while a topic is being resized: the resize waits for it to go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest
import trio

from protocol.generated.update_metadata import UpdateMetadataRequest
from runtime.env import Znode
from tests.controller_world import World
from tests.resize_world import TOPIC, alter, finished, hold_records, resized
from zk_schemas import paths

pytestmark = pytest.mark.trio
STRANGER = 4
"""Has no replica of the topic, so that no election and no answer of its own can hold the resize up."""


class Held(NamedTuple):
    """A resize to ``count`` partitions that has begun and goes on once ``release`` is called."""

    count: int
    release: Callable[[], None]


async def held_before_gainers_are_led(world: World) -> Held:
    world.brokers[1].answering = trio.Event()
    await world.request(alter(6, timeout_ms=100))
    return Held(6, world.brokers[1].answering.set)


async def held_before_survivors_gain(world: World) -> Held:
    await resized(world, 6)
    leader = world.brokers[(await world.state(TOPIC, 5)).leader]
    leader.answering = trio.Event()
    await world.request(alter(4, timeout_ms=100))
    return Held(4, leader.answering.set)


async def held_while_it_drains(world: World) -> Held:
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 4)
    return Held(4, lambda: hold_records(world, range(4, 6), 40, start=40))


async def goes(world: World) -> None:
    world.brokers[STRANGER].leave()


async def is_upgraded(world: World) -> None:
    stranger = world.brokers[STRANGER]
    stranger.leave()
    stranger.features = world.brokers[1].features
    await stranger.register()


@pytest.mark.parametrize("end", [goes, is_upgraded])
@pytest.mark.parametrize("hold", [held_before_gainers_are_led, held_before_survivors_gain, held_while_it_drains])
async def test_no_step_while_a_broker_does_not_know_resizing(
    world: World,
    autojump_clock: object,
    caplog: pytest.LogCaptureFixture,
    hold: Callable[[World], Awaitable[Held]],
    end: Callable[[World], Awaitable[None]],
) -> None:
    await world.start_broker(STRANGER)
    await world.until(lambda: is_live(world))
    world.brokers[STRANGER].leave()
    await world.until(lambda: not is_live(world))
    held = await hold(world)
    world.brokers[STRANGER].features = {}
    await world.brokers[STRANGER].register()
    await world.until(lambda: is_live(world))
    before = await znodes(world)
    held.release()
    await trio.sleep(10)  # virtual time: longer than anything waits
    assert await znodes(world) == before
    assert f"topic {TOPIC}: its resize waits: Brokers {STRANGER} do not know ordered resize" in caplog.text
    await end(world)
    await world.until(lambda: finished(world, held.count))


def is_live(world: World) -> bool:
    """Whether the controller has told of the stranger last."""
    told = world.brokers[2].sent(UpdateMetadataRequest)[-1]
    return STRANGER in {broker.id for broker in told.live_brokers}


async def znodes(world: World) -> list[Znode]:
    """All there is to see of the topic's resize in ZooKeeper."""
    indexes = await world.store.children(paths.partitions(TOPIC))
    states = [paths.partition_state(TOPIC, int(index)) for index in sorted(indexes)]
    return [await world.store.get(path) for path in (paths.topic(TOPIC), *states)]
