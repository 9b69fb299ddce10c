"""AlterPartition: the ISR that a controller writes, its response, and its requests to brokers (KIP-497)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition import AlterPartitionRequest, PartitionData, TopicData
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from tests.support.controller.clusters import cluster_of, create
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio


@pytest.fixture
async def cluster(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    """Three brokers, and a topic ``t`` whose partition 0 is on all of them, led by 1."""
    cluster = await cluster_of(nursery, 3)
    await create(cluster, [[1, 2, 3]])
    return cluster


async def ask(cluster: ControllerCluster, isr: Sequence[int]) -> Any:
    """Have the leader request an ISR for partition 0. Returns the partition's result."""
    broker_epoch = (await cluster.store.get(paths.broker_id(1))).czxid
    asked = PartitionData(partition_index=0, leader_epoch=0, new_isr=list(isr), current_isr_version=0)
    topics = [TopicData(name="t", partitions=[asked])]
    response = await cluster.request(AlterPartitionRequest(broker_id=1, broker_epoch=broker_epoch, topics=topics))
    return response.topics[0].partitions[0]


async def test_a_new_isr_is_written_and_sent_by_update_metadata_only(cluster: ControllerCluster) -> None:
    orders = {id: len(broker.sent(LeaderAndIsrRequest)) for id, broker in cluster.brokers.items()}
    answer = await ask(cluster, [1, 2])
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (ErrorCode.NONE, 1, 0)
    assert (answer.isr, answer.current_isr_version) == ([1, 2], 1)
    state = await cluster.state("t", 0)
    assert (state.isr, state.leader, state.leader_epoch) == ([1, 2], 1, 0)

    def sent() -> bool:
        last = cluster.brokers[3].sent(UpdateMetadataRequest)[-1].topic_states
        return bool(last) and last[0].partition_states[0].isr == [1, 2]

    await cluster.until(sent)
    assert {id: len(broker.sent(LeaderAndIsrRequest)) for id, broker in cluster.brokers.items()} == orders
