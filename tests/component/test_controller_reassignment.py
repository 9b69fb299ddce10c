"""Partitions that move to other replicas (KIP-455), with brokers that only record their requests."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.protocol.named_items import ITEMS_A_STEP
from tests.support.controller.clusters import cluster_of, create, delete, states_sent
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio


@pytest.fixture
async def cluster(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    """Six brokers; topic ``t`` has partition 0 on brokers 1, 2, 3, and partition 1 on brokers 2, 3, 1."""
    cluster = await cluster_of(nursery, 6)
    await create(cluster, [[1, 2, 3], [2, 3, 1]])
    return cluster


async def move(cluster: ControllerCluster, targets: dict[int, list[int] | None], topic: str = "t") -> dict[int, int]:
    """Request the moves. Returns the error code of each partition."""
    partitions = [ReassignablePartition(partition_index=i, replicas=target) for i, target in targets.items()]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=partitions)])
    response = await cluster.request(request)
    assert response.error_code == ErrorCode.NONE
    return {p.partition_index: p.error_code for p in response.responses[0].partitions}


async def under_way(
    cluster: ControllerCluster, named: dict[str, list[int]] | None = None
) -> dict[tuple[str, int], Any]:
    topics = None
    if named is not None:
        topics = [ListPartitionReassignmentsTopics(name=n, partition_indexes=p) for n, p in named.items()]
    response = await cluster.request(ListPartitionReassignmentsRequest(topics=topics))
    return {
        (topic.name, p.partition_index): (p.replicas, p.adding_replicas, p.removing_replicas)
        for topic in response.topics
        for p in topic.partitions
    }


async def settled(cluster: ControllerCluster) -> None:
    async def nothing() -> bool:
        return not await under_way(cluster)

    await cluster.until(nothing)


def stops(cluster: ControllerCluster, broker_id: int) -> list[tuple[str, int, int, bool]]:
    sent = states_sent(StopReplicaRequest, cluster.brokers[broker_id])
    return [("t", state.partition_index, state.leader_epoch, state.delete_partition) for state in sent]


def orders(cluster: ControllerCluster, broker_id: int, partition: int = 0) -> list[Any]:
    sent = states_sent(LeaderAndIsrRequest, cluster.brokers[broker_id])
    return [state for state in sent if state.partition_index == partition]


async def test_a_move_names_all_replicas_until_the_target_is_in_sync(cluster: ControllerCluster) -> None:
    assert await move(cluster, {0: [4, 5, 6]}) == {0: ErrorCode.NONE}
    assert await under_way(cluster) == {("t", 0): ([4, 5, 6, 1, 2, 3], [4, 5, 6], [1, 2, 3])}
    assert await under_way(cluster, {"t": [1], "u": [0]}) == {}
    assert await under_way(cluster, {"t": [1, *[0] * (ITEMS_A_STEP + 1)], "u": [0]}) == await under_way(cluster)
    topic, state = await cluster.topic("t"), await cluster.state("t", 0)
    assert topic.partitions == {0: [4, 5, 6, 1, 2, 3], 1: [2, 3, 1]}
    assert (state.leader, state.leader_epoch, state.isr) == (1, 1, [1, 2, 3])
    for broker_id in range(1, 7):
        await cluster.until(lambda id=broker_id: orders(cluster, id)[-1:] and orders(cluster, id)[-1].leader_epoch == 1)
        sent = orders(cluster, broker_id)[-1]
        assert (sent.adding_replicas, sent.removing_replicas) == ([4, 5, 6], [1, 2, 3])
    assert await cluster.alter_isr("t", 0, [1, 2, 3, 4, 5]) == ErrorCode.NONE
    assert await under_way(cluster) != {}
    assert await cluster.alter_isr("t", 0, [1, 2, 3, 4, 5, 6]) == ErrorCode.NONE
    await settled(cluster)
    topic, state = await cluster.topic("t"), await cluster.state("t", 0)
    assert (topic.partitions[0], topic.adding_replicas, topic.removing_replicas) == ([4, 5, 6], {}, {})
    assert (state.leader, state.leader_epoch, state.isr) == (4, 2, [4, 5, 6])
    for broker_id in (1, 2, 3):
        await cluster.until(lambda id=broker_id: stops(cluster, id) == [("t", 0, 2, True)])
        assert orders(cluster, broker_id)[-1].leader_epoch == 1
    for broker_id in (4, 5, 6):
        await cluster.until(lambda id=broker_id: orders(cluster, id)[-1].leader_epoch == 2)
        assert stops(cluster, broker_id) == []


async def test_kafka_9212_clients_get_every_leader_epoch_that_replicas_get(cluster: ControllerCluster) -> None:
    await move(cluster, {0: [1, 2, 4]})
    await cluster.alter_isr("t", 0, [1, 2, 3, 4])
    await settled(cluster)

    def sent(broker_id: int) -> list[int]:
        found = states_sent(UpdateMetadataRequest, cluster.brokers[broker_id])
        return [state.leader_epoch for state in found if state.partition_index == 0]

    await cluster.until(lambda: sent(6)[-1] == 2)
    assert sent(6) == [0, 1, 1, 2]
    assert [state.leader_epoch for state in orders(cluster, 1)] == [0, 1, 2]


async def test_a_topic_is_deleted_with_the_replicas_being_added(cluster: ControllerCluster) -> None:
    await move(cluster, {0: [4, 2, 3]})
    await delete(cluster)
    assert [stop[:2] for stop in stops(cluster, 4)] == [("t", 0)]
    assert await under_way(cluster) == {}
