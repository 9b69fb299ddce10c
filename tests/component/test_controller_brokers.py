"""Brokers that join and leave, and the requests that they get."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.controlled_shutdown import ControlledShutdownRequest
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from sim.clock import SimClock
from tests.support.controller.clusters import cluster_of, create
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio


@pytest.fixture
async def cluster(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    """Brokers 1 and 2; topic ``t`` with partition 0 on broker 1 and partition 1 on broker 2."""
    cluster = await cluster_of(nursery, 2)
    await create(cluster, [[1], [2]])
    return cluster


def live_ids(cluster: ControllerCluster, broker_id: int) -> list[int]:
    sent = cluster.brokers[broker_id].sent(UpdateMetadataRequest)
    return [broker.id for broker in sent[-1].live_brokers] if sent else []


async def test_a_new_address_of_a_broker_is_sent_to_all_without_an_election(cluster: ControllerCluster) -> None:
    """KIP-226: the znode is rewritten and keeps its czxid, so there is no election and no LeaderAndIsr."""
    state = await cluster.state("t", 0)
    orders = [len(broker.sent(LeaderAndIsrRequest)) for broker in cluster.brokers.values()]
    path = paths.broker_id(1)
    found = await cluster.store.get(path)
    registration = BrokerRegistration.decode(path, found.data)
    moved = dataclasses.replace(registration, endpoints=[Endpoint("PLAINTEXT", "elsewhere", 7)])
    await cluster.store.set(path, moved.encode())

    def addresses(broker_id: int) -> dict[int, tuple[str, int]]:
        sent = cluster.brokers[broker_id].sent(UpdateMetadataRequest)[-1]
        return {live.id: (live.endpoints[0].host, live.endpoints[0].port) for live in sent.live_brokers}

    await cluster.until(lambda: all(addresses(broker)[1] == ("elsewhere", 7) for broker in (1, 2)))
    assert addresses(1)[2] == addresses(2)[2] == ("broker2", 9092)
    assert await cluster.state("t", 0) == state
    assert [len(broker.sent(LeaderAndIsrRequest)) for broker in cluster.brokers.values()] == orders


async def test_five_created_topics_take_at_most_two_leader_and_isr_requests_to_a_broker(
    cluster: ControllerCluster,
) -> None:
    before = len(cluster.brokers[1].sent(LeaderAndIsrRequest))
    topics = [CreatableTopic(name=f"many-{i}", num_partitions=4, replication_factor=1) for i in range(5)]
    await cluster.request(CreateTopicsRequest(topics=topics))
    assert len([key for key in cluster.brokers[1].metadata() if key[0].startswith("many")]) == 20
    assert len(cluster.brokers[1].sent(LeaderAndIsrRequest)) - before <= 2


async def test_a_request_is_repeated_until_it_is_answered(cluster: ControllerCluster) -> None:
    cluster.fabric.reset("controller1000", "broker2")
    cluster.fabric.cut("broker2", "controller1000")
    topic = CreatableTopic(name="later", num_partitions=2, replication_factor=1)
    response = await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=100))
    assert response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    cluster.fabric.heal_all()
    await cluster.until(lambda: ("later", 1) in cluster.brokers[2].metadata(), within_s=120)


async def test_a_malformed_registration_is_logged_and_left_out(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        await cluster.store.create(paths.broker_id(7), b'{"endpoints":[]}', ephemeral=True)
        await cluster.start_broker(3)
        await cluster.until(lambda: live_ids(cluster, 3) == [1, 2, 3])
    assert "/brokers/ids/7: field endpoints" in caplog.text


async def test_controlled_shutdown_checks_the_broker_epoch_and_moves_no_single_replica(
    cluster: ControllerCluster,
) -> None:
    epoch = (await cluster.store.get(paths.broker_id(1))).czxid
    stale = await cluster.request(ControlledShutdownRequest(broker_id=1, broker_epoch=epoch - 1))
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
    unknown = await cluster.request(ControlledShutdownRequest(broker_id=9, broker_epoch=epoch))
    assert unknown.error_code == ErrorCode.BROKER_NOT_AVAILABLE
    done = await cluster.request(ControlledShutdownRequest(broker_id=1, broker_epoch=epoch))
    assert (done.error_code, done.remaining_partitions) == (ErrorCode.NONE, [])
    assert (await cluster.state("t", 0)).leader == 1
    topic = CreatableTopic(name="elsewhere", num_partitions=4, replication_factor=1)
    await cluster.request(CreateTopicsRequest(topics=[topic]))
    assert set((await cluster.topic("elsewhere")).partitions[0]) == {2}


async def test_the_clocks_of_brokers_are_compared_when_they_register_and_not_when_the_cluster_is_read(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Registrations that a new controller finds may be old. That is no difference between clocks."""
    broker, clock = cluster.brokers[1], SimClock()
    broker.timestamp_ms = clock.now_ms()
    broker.leave()
    await broker.register()
    await cluster.until(lambda: cluster.brokers[1].led().get(("t", 0)) == (1, 2))
    await trio.sleep(3600)  # virtual time: until the registration is old
    cluster.vacate()
    await cluster.start_controller(1001)
    await cluster.until(lambda: cluster.brokers[2].sent(UpdateMetadataRequest)[-1].controller_epoch == 2)
    assert "broker.clock_differs" not in caplog.text
    broker.timestamp_ms = clock.now_ms() - 120_000
    broker.leave()
    await broker.register()
    await cluster.until(lambda: "broker.clock_differs" in caplog.text)
