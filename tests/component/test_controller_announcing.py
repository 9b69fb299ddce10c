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


def announcements(cluster: ControllerCluster) -> list[tuple[int, bool]]:
    """The announcements that broker 1 received, in order, without repetitions.

    Each announcement is a pair: the announced count, and whether producers have to refresh their metadata for it.
    """
    sent = [
        (topic.announced_partition_count, topic.refreshes_stock_producers)
        for request in cluster.brokers[1].sent(UpdateMetadataRequest)
        for topic in request.topic_states
        if topic.topic_name == TOPIC
    ]
    return [one for index, one in enumerate(sent) if index == 0 or one != sent[index - 1]]


def loses_keys(cluster: ControllerCluster) -> bool:
    """Whether some partition has received the layout of 8 partitions."""
    return any(
        state.undeleted_partition_count == 8
        for request in cluster.brokers[1].sent(LeaderAndIsrRequest)
        for topic in request.topic_states
        for state in topic.partition_states
    )


async def test_the_announced_leaders_of_new_partitions_become_their_leaders(nursery: trio.Nursery) -> None:
    cluster = await started(nursery)
    await resized(cluster, 8)
    sent = [
        topic
        for request in cluster.brokers[1].sent(UpdateMetadataRequest)
        for topic in request.topic_states
        if topic.topic_name == TOPIC
    ]
    (announced,) = {tuple(topic.announced_leaders) for topic in sent if topic.announced_partition_count == 8}
    led = {state.partition_index: state.leader for state in sent[-1].partition_states}
    assert announced == tuple(led[index] for index in range(4, 8))


async def test_a_split_waits_until_stock_producers_place_records_by_the_new_count(nursery: trio.Nursery) -> None:
    cluster = await started(nursery)
    cluster.brokers[2].stock_producers[TOPIC] = (10, 0)
    nursery.start_soon(cluster.request, alter(8))
    await cluster.until(lambda: announcements(cluster)[-1] == (8, True))
    asked = len(cluster.brokers[1].sent(UpdateMetadataRequest))
    await cluster.until(lambda: len(cluster.brokers[1].sent(UpdateMetadataRequest)) > asked + 10)
    assert not loses_keys(cluster)
    cluster.brokers[2].stock_producers[TOPIC] = (10, 500)
    await cluster.until(lambda: loses_keys(cluster))
    await cluster.until(lambda: announcements(cluster)[-1] == (-1, False))


def placed_by(cluster: ControllerCluster) -> list[tuple[int, int]]:
    """The counts and layout versions that broker 1 received for its clients, in order, without repetitions."""
    sent = [
        (topic.undeleted_partition_count, topic.layout_version)
        for request in cluster.brokers[1].sent(UpdateMetadataRequest)
        for topic in request.topic_states
        if topic.topic_name == TOPIC
    ]
    return [one for index, one in enumerate(sent) if index == 0 or one != sent[index - 1]]


async def test_a_grow_that_revives_draining_partitions_is_announced_too(nursery: trio.Nursery) -> None:
    """Draining partitions accept no records before their revival. Until then, clients get the old layout."""
    cluster = await started(nursery)
    await resized(cluster, 8)
    for broker in cluster.brokers.values():
        broker.logs = {(TOPIC, p): Log(40, 40, 0) for p in range(4, 8)}
    await resized(cluster, 4)
    assert announcements(cluster)[-1] == (-1, False)
    first = (await cluster.state(TOPIC, 4)).leader
    cluster.brokers[first].leave()
    await cluster.until(lambda: is_led_by_another(cluster, 4, first))
    await cluster.brokers[first].register()
    cluster.brokers[2].stock_producers[TOPIC] = (10, 0)
    nursery.start_soon(cluster.request, alter(8))
    await cluster.until(lambda: announcements(cluster)[-1] == (8, True))
    assert placed_by(cluster)[-1] == (4, 2)
    assert announced_leaders(cluster) == [(await cluster.state(TOPIC, p)).leader for p in range(4, 8)]
    cluster.brokers[2].stock_producers[TOPIC] = (10, 500)
    await cluster.until(lambda: placed_by(cluster)[-1] == (8, 3))


async def is_led_by_another(cluster: ControllerCluster, partition: int, broker: int) -> bool:
    return (await cluster.state(TOPIC, partition)).leader not in (-1, broker)


def announced_leaders(cluster: ControllerCluster) -> list[int]:
    """The announced leaders of the partitions from 4 on, in the last metadata of broker 1."""
    topics = [topic for request in cluster.brokers[1].sent(UpdateMetadataRequest) for topic in request.topic_states]
    return list(topics[-1].announced_leaders)


async def test_a_split_waits_for_stock_producers_no_longer_than_configured(nursery: trio.Nursery) -> None:
    cluster = await started(nursery, stock_producer_grace_ms=300)
    cluster.brokers[2].stock_producers[TOPIC] = (10, 0)
    await resized(cluster, 8)
    assert (8, True) in announcements(cluster)


async def test_the_next_controller_announces_the_split_again(nursery: trio.Nursery) -> None:
    cluster = await started(nursery)
    await cluster.start_controller(1001)
    for broker in cluster.brokers.values():
        broker.stock_producers[TOPIC] = (10, 0)

    async def ask() -> None:
        with suppress(OSError):  # the controller dies
            await cluster.request(alter(8))

    nursery.start_soon(ask)
    await cluster.until(lambda: announcements(cluster)[-1] == (8, True))
    cluster.vacate()
    await cluster.until(lambda: announcements(cluster)[-2:] == [(8, False), (8, True)], within_s=60)
    assert not any(count == -1 for count, _ in announcements(cluster)[1:])
    for broker in cluster.brokers.values():
        broker.stock_producers[TOPIC] = (10, 500)
    await cluster.until(lambda: loses_keys(cluster))
