"""Leader elections: unclean elections, ElectLeaders, preferred leaders, failed disks."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from tests.support.controller.clusters import cluster_of, create, states_sent
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
PREFERRED = 0


async def start(
    nursery: trio.Nursery, *, brokers: int = 3, replicas: list[list[int]], **keys: object
) -> ControllerCluster:
    """Start brokers 1 to ``brokers``, and create a topic ``t``."""
    cluster = await cluster_of(nursery, brokers, **keys)
    await create(cluster, replicas)
    return cluster


async def leader_is(cluster: ControllerCluster, leader: int, partition: int = 0) -> Any:
    """Wait until a partition has that leader. Returns its state."""

    async def led() -> Any:
        state = await cluster.state("t", partition)
        return state if state.leader == leader else None

    return await cluster.until(led)


async def elect(cluster: ControllerCluster, election_type: int, partitions: list[int] | None) -> dict[int, int]:
    wanted = None if partitions is None else [TopicPartitions(topic="t", partitions=partitions)]
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=wanted, timeout_ms=10_000)
    response = await cluster.request(request)
    assert response.error_code == ErrorCode.NONE
    return {
        partition.partition_id: partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }


async def allow_unclean(cluster: ControllerCluster, resource_type: int, name: str, value: str = "true") -> None:
    change = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=[change])
    response = await cluster.request(IncrementalAlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == ErrorCode.NONE


async def stop(cluster: ControllerCluster, *broker_ids: int) -> None:
    """Stop brokers one after the other. Each stops once the previous broker has left every ISR that it can leave."""
    for broker_id in broker_ids:
        cluster.brokers[broker_id].leave()

        async def noticed(gone: int = broker_id) -> bool:
            state = await cluster.state("t", 0)
            return state.leader != gone and (gone not in state.isr or state.leader == -1)

        await cluster.until(noticed)


@pytest.mark.parametrize(("resource_type", "name"), [(2, "t"), (4, "")])
async def test_an_unclean_leader_is_elected_once_the_config_allows_it(
    nursery: trio.Nursery, resource_type: int, name: str
) -> None:
    cluster = await start(nursery, replicas=[[1, 2, 3]])
    await stop(cluster, 1, 2, 3)
    await cluster.brokers[1].register()
    await cluster.until(lambda: cluster.brokers[1].metadata().get(("t", 0)) == -1)
    await allow_unclean(cluster, resource_type, name)
    state = await leader_is(cluster, 1)
    assert state.isr == [1]


async def test_preferred_leaders_are_elected_again_without_a_request(nursery: trio.Nursery) -> None:
    cluster = await start(nursery, replicas=[[1, 2], [2, 1]])
    await stop(cluster, 1)
    await cluster.brokers[1].register()
    await cluster.until(lambda: cluster.brokers[1].led().get(("t", 0)))
    assert (await cluster.state("t", 0)).leader == 2
    assert await cluster.alter_isr("t", 0, [2, 1]) == ErrorCode.NONE

    async def leads() -> bool:
        return (await cluster.state("t", 0)).leader == 1

    await cluster.until(leads, within_s=400)


async def test_the_preferred_leader_is_elected_on_request(nursery: trio.Nursery) -> None:
    cluster = await start(nursery, replicas=[[1, 2], [2, 1], [3, 1]], auto_leader_rebalance_enable=False)
    before = (await cluster.state("t", 0)).leader_epoch
    assert await elect(cluster, PREFERRED, [0, 7]) == {
        0: ErrorCode.ELECTION_NOT_NEEDED,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    await stop(cluster, 1)
    assert await elect(cluster, PREFERRED, [0]) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    await cluster.brokers[1].register()
    await cluster.until(lambda: cluster.brokers[1].led().get(("t", 0)))
    assert await elect(cluster, PREFERRED, [0]) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert await cluster.alter_isr("t", 0, [2, 1]) == ErrorCode.NONE
    assert await elect(cluster, PREFERRED, None) == {0: ErrorCode.NONE}
    state = await cluster.state("t", 0)
    assert (state.leader, state.isr, state.leader_epoch) == (1, [2, 1], before + 2)
    assert cluster.brokers[3].metadata()["t", 0] == 1
    assert cluster.brokers[2].led()["t", 0] == (1, state.leader_epoch)


async def test_kafka_6361_three_quick_leader_changes_have_three_epochs_and_elect_from_the_isr(
    nursery: trio.Nursery,
) -> None:
    cluster = await start(nursery, brokers=4, replicas=[[1, 2, 3, 4]])
    for broker_id in (1, 2, 3):
        cluster.brokers[broker_id].leave()
        await cluster.until(lambda gone=broker_id: cluster.brokers[4].metadata()["t", 0] == gone + 1)
    sent = [(s.leader, s.leader_epoch, s.isr) for s in states_sent(LeaderAndIsrRequest, cluster.brokers[4])]
    assert sent == [(1, 0, [1, 2, 3, 4]), (2, 1, [2, 3, 4]), (3, 2, [3, 4]), (4, 3, [4])]
