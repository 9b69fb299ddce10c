"""The controller announces a split to stock producers that can follow it, before any partition loses keys."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from tests.support.controller.controller_cluster import ControllerCluster, Log
from tests.support.resize.resize_rules import TOPIC, alter, resized, started

pytestmark = pytest.mark.trio


def announcements(world: ControllerCluster) -> list[tuple[int, bool]]:
    """The announcements that broker 1 received, in order, without repetitions.

    Each is the announced count, and whether producers have to refresh their metadata for it.
    """
    sent = [
        (topic.announced_partition_count, topic.refreshes_stock_producers)
        for request in world.brokers[1].sent(UpdateMetadataRequest)
        for topic in request.topic_states
        if topic.topic_name == TOPIC
    ]
    return [one for index, one in enumerate(sent) if index == 0 or one != sent[index - 1]]


def loses_keys(world: ControllerCluster) -> bool:
    """Whether some partition has received the layout of 8 partitions."""
    return any(
        state.undeleted_partition_count == 8
        for request in world.brokers[1].sent(LeaderAndIsrRequest)
        for topic in request.topic_states
        for state in topic.partition_states
    )


async def test_without_stock_producers_a_split_does_not_wait_for_metadata_refreshes(nursery: trio.Nursery) -> None:
    world = await started(nursery)
    await resized(world, 8)
    assert announcements(world) == [(-1, False), (8, False), (-1, False)]


async def test_the_announced_leaders_of_new_partitions_become_their_leaders(nursery: trio.Nursery) -> None:
    world = await started(nursery)
    await resized(world, 8)
    sent = [
        topic
        for request in world.brokers[1].sent(UpdateMetadataRequest)
        for topic in request.topic_states
        if topic.topic_name == TOPIC
    ]
    (announced,) = {tuple(topic.announced_leaders) for topic in sent if topic.announced_partition_count == 8}
    led = {state.partition_index: state.leader for state in sent[-1].partition_states}
    assert announced == tuple(led[index] for index in range(4, 8))


async def test_a_split_waits_until_stock_producers_place_records_by_the_new_count(nursery: trio.Nursery) -> None:
    world = await started(nursery)
    world.brokers[2].stock_producers[TOPIC] = (10, 0)
    nursery.start_soon(world.request, alter(8))
    await world.until(lambda: announcements(world)[-1] == (8, True))
    asked = len(world.brokers[1].sent(UpdateMetadataRequest))
    await world.until(lambda: len(world.brokers[1].sent(UpdateMetadataRequest)) > asked + 10)
    assert not loses_keys(world)
    world.brokers[2].stock_producers[TOPIC] = (10, 500)
    await world.until(lambda: loses_keys(world))
    await world.until(lambda: announcements(world)[-1] == (-1, False))


async def test_clients_get_the_old_layout_until_the_first_bump(nursery: trio.Nursery) -> None:
    """The goal is in the topic's znode, but leaders would still refuse clients that place by its layout."""
    world = await started(nursery)
    world.brokers[2].stock_producers[TOPIC] = (10, 0)
    nursery.start_soon(world.request, alter(8))
    await world.until(lambda: announcements(world)[-1] == (8, True))
    topic = await world.topic(TOPIC)
    assert (topic.undeleted_partition_count, topic.layout_version) == (8, 1)
    assert placed_by(world) == [(4, 0)]
    world.brokers[2].stock_producers[TOPIC] = (10, 500)
    await world.until(lambda: placed_by(world) == [(4, 0), (8, 1)])
    assert loses_keys(world)


def placed_by(world: ControllerCluster) -> list[tuple[int, int]]:
    """The counts and layout versions that broker 1 received for its clients, in order, without repetitions."""
    sent = [
        (topic.undeleted_partition_count, topic.layout_version)
        for request in world.brokers[1].sent(UpdateMetadataRequest)
        for topic in request.topic_states
        if topic.topic_name == TOPIC
    ]
    return [one for index, one in enumerate(sent) if index == 0 or one != sent[index - 1]]


async def test_a_cancelled_split_is_no_longer_announced(nursery: trio.Nursery) -> None:
    world = await started(nursery)
    world.brokers[2].stock_producers[TOPIC] = (10, 0)
    nursery.start_soon(world.request, alter(8))
    await world.until(lambda: announcements(world)[-1] == (8, True))
    await world.request(alter(4))
    await world.until(lambda: announcements(world)[-1] == (-1, False))
    assert not loses_keys(world)
    assert sorted((await world.topic(TOPIC)).partitions) == [0, 1, 2, 3]


async def test_a_grow_that_revives_draining_partitions_is_announced_too(nursery: trio.Nursery) -> None:
    """Draining partitions take no records until they are revived, so the announced records wait for their leaders."""
    world = await started(nursery)
    await resized(world, 8)
    for broker in world.brokers.values():
        broker.logs = {(TOPIC, p): Log(40, 40, 0) for p in range(4, 8)}
    await resized(world, 4)
    assert announcements(world)[-1] == (-1, False)
    first = (await world.state(TOPIC, 4)).leader
    world.brokers[first].leave()
    await world.until(lambda: is_led_by_another(world, 4, first))
    await world.brokers[first].register()
    world.brokers[2].stock_producers[TOPIC] = (10, 0)
    nursery.start_soon(world.request, alter(8))
    await world.until(lambda: announcements(world)[-1] == (8, True))
    assert placed_by(world)[-1] == (4, 2)
    assert announced_leaders(world) == [(await world.state(TOPIC, p)).leader for p in range(4, 8)]
    world.brokers[2].stock_producers[TOPIC] = (10, 500)
    await world.until(lambda: placed_by(world)[-1] == (8, 3))


async def is_led_by_another(world: ControllerCluster, partition: int, broker: int) -> bool:
    return (await world.state(TOPIC, partition)).leader not in (-1, broker)


def announced_leaders(world: ControllerCluster) -> list[int]:
    """The announced leaders of the partitions from 4 on, in the last metadata of broker 1."""
    topics = [topic for request in world.brokers[1].sent(UpdateMetadataRequest) for topic in request.topic_states]
    return list(topics[-1].announced_leaders)


async def test_a_split_waits_for_stock_producers_no_longer_than_configured(nursery: trio.Nursery) -> None:
    world = await started(nursery, stock_producer_grace_ms=300)
    world.brokers[2].stock_producers[TOPIC] = (10, 0)
    await resized(world, 8)
    assert (8, True) in announcements(world)


async def test_the_next_controller_announces_the_split_again(nursery: trio.Nursery) -> None:
    world = await started(nursery)
    await world.start_controller(1001)
    for broker in world.brokers.values():
        broker.stock_producers[TOPIC] = (10, 0)

    async def ask() -> None:
        with suppress(OSError):  # the controller dies
            await world.request(alter(8))

    nursery.start_soon(ask)
    await world.until(lambda: announcements(world)[-1] == (8, True))
    world.kill_controller(1000)
    world.zk.end_session(world.sessions[1000].session_id)
    await world.until(lambda: announcements(world)[-2:] == [(8, False), (8, True)], within_s=60)
    assert not any(count == -1 for count, _ in announcements(world)[1:])
    for broker in world.brokers.values():
        broker.stock_producers[TOPIC] = (10, 500)
    await world.until(lambda: loses_keys(world))
