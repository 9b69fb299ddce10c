"""A thousand partitions split into two thousand in one resize, and back: the znodes stay small."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import BROKERS, TOPIC, creation, hold_records, is_gone, resized, started

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]

PARTITION_BYTES = 1_024
TOPIC_BYTES = 65_536


async def test_znodes_stay_small_in_a_split_into_two_thousand_partitions_and_back(nursery: trio.Nursery) -> None:
    cluster = await started(nursery)
    await cluster.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=30_000))
    await cluster.until(lambda: is_gone(cluster))
    await cluster.request(creation(1_000, *BROKERS))
    await resized(cluster, 2_000)
    await cluster.until(lambda: has_count(cluster, 2_000), within_s=600)
    assert await largest(cluster) < PARTITION_BYTES
    assert len((await cluster.store.get(paths.topic(TOPIC))).data) < TOPIC_BYTES
    hold_records(cluster, range(1_000, 2_000), 2**62)
    await resized(cluster, 1_000)
    await cluster.until(lambda: is_closed(cluster, range(1_000, 2_000)), within_s=600)
    assert await largest(cluster) < PARTITION_BYTES
    hold_records(cluster, range(1_000, 2_000), 2**62, 2**62)
    await cluster.until(lambda: has_count(cluster, 1_000), within_s=600)
    assert len((await cluster.topic(TOPIC)).last_leader_epochs) == 1_000
    assert len((await cluster.store.get(paths.topic(TOPIC))).data) < TOPIC_BYTES


async def largest(cluster: ControllerCluster) -> int:
    """The size of the largest partition state in bytes."""
    count = len((await cluster.topic(TOPIC)).partitions)
    return max([len((await cluster.store.get(paths.partition_state(TOPIC, index))).data) for index in range(count)])


async def has_count(cluster: ControllerCluster, count: int) -> bool:
    topic = await cluster.topic(TOPIC)
    if len(topic.partitions) != count or topic.undeleted_partition_count != count:
        return False
    return (await cluster.state(TOPIC, count - 1)).leader >= 0


async def is_closed(cluster: ControllerCluster, partitions: range) -> bool:
    """Whether each of these partitions has a layout that marks it."""
    layouts = [(await cluster.state(TOPIC, index)).layout for index in partitions]
    return all(layout is not None and layout.undeleted_partition_count == partitions.start for layout in layouts)
