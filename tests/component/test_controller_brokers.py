"""Brokers that come and go, and the requests that they get."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.controlled_shutdown import ControlledShutdownRequest
from anabranch.protocol.generated.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio


@pytest.fixture
async def world(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    """Brokers 1 and 2; topic ``t`` with partition 0 on broker 1 and partition 1 on broker 2."""
    world = ControllerCluster(nursery)
    await world.start_controller()
    for broker_id in (1, 2):
        await world.start_broker(broker_id)
    await world.until(lambda: all(live_ids(world, broker) == [1, 2] for broker in (1, 2)))
    assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=[i + 1]) for i in range(2)]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
    response = await world.request(CreateTopicsRequest(topics=[topic]))
    assert response.topics[0].error_code == ErrorCode.NONE
    return world


def live_ids(world: ControllerCluster, broker_id: int) -> list[int]:
    sent = world.brokers[broker_id].sent(UpdateMetadataRequest)
    return [broker.id for broker in sent[-1].live_brokers] if sent else []


async def test_a_partition_whose_broker_left_keeps_its_isr_and_is_led_again_in_a_new_epoch(
    world: ControllerCluster, autojump_clock: object
) -> None:
    incarnation = (await world.store.get(paths.partition_state("t", 0))).czxid
    world.brokers[1].leave()
    await world.until(lambda: world.brokers[2].metadata()["t", 0] == -1)
    offline = await world.state("t", 0)
    assert (offline.leader, offline.leader_epoch, offline.isr) == (-1, 1, [1])
    assert live_ids(world, 2) == [2]
    world.brokers[1].requests.clear()
    await world.brokers[1].register()
    await world.until(lambda: world.brokers[1].led().get(("t", 0)) == (1, 2))
    online = await world.state("t", 0)
    assert (online.leader, online.leader_epoch, online.isr) == (1, 2, [1])
    assert (await world.store.get(paths.partition_state("t", 0))).czxid == incarnation
    await world.until(lambda: world.brokers[1].metadata() == {("t", 0): 1, ("t", 1): 2})


async def test_a_new_address_of_a_broker_is_sent_to_all_without_an_election(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """KIP-226: a new address is written to the same znode, so its czxid stays: no election and no LeaderAndIsr."""
    state = await world.state("t", 0)
    orders = [len(broker.sent(LeaderAndIsrRequest)) for broker in world.brokers.values()]
    path = paths.broker_id(1)
    found = await world.store.get(path)
    registration = BrokerRegistration.decode(path, found.data)
    moved = dataclasses.replace(registration, endpoints=[Endpoint("PLAINTEXT", "elsewhere", 7)])
    await world.store.set(path, moved.encode())

    def addresses(broker_id: int) -> dict[int, tuple[str, int]]:
        sent = world.brokers[broker_id].sent(UpdateMetadataRequest)[-1]
        return {live.id: (live.endpoints[0].host, live.endpoints[0].port) for live in sent.live_brokers}

    await world.until(lambda: all(addresses(broker)[1] == ("elsewhere", 7) for broker in (1, 2)))
    assert addresses(1)[2] == addresses(2)[2] == ("broker2", 9092)
    assert await world.state("t", 0) == state
    assert [len(broker.sent(LeaderAndIsrRequest)) for broker in world.brokers.values()] == orders


async def test_a_bounced_broker_counts_as_failed_and_restarted(
    world: ControllerCluster, autojump_clock: object
) -> None:
    old_epoch = world.brokers[1].sent(LeaderAndIsrRequest)[-1].broker_epoch
    world.brokers[1].leave()
    await world.brokers[1].register()
    await world.until(lambda: world.brokers[1].led()["t", 0] == (1, 2))
    assert world.brokers[1].sent(LeaderAndIsrRequest)[-1].broker_epoch > old_epoch


async def test_five_created_topics_take_at_most_two_leader_and_isr_requests_to_a_broker(
    world: ControllerCluster, autojump_clock: object
) -> None:
    before = len(world.brokers[1].sent(LeaderAndIsrRequest))
    topics = [CreatableTopic(name=f"many-{i}", num_partitions=4, replication_factor=1) for i in range(5)]
    await world.request(CreateTopicsRequest(topics=topics))
    assert len([key for key in world.brokers[1].metadata() if key[0].startswith("many")]) == 20
    assert len(world.brokers[1].sent(LeaderAndIsrRequest)) - before <= 2


async def test_a_request_is_repeated_until_it_is_answered(world: ControllerCluster, autojump_clock: object) -> None:
    world.fabric.reset("controller1000", "broker2")
    world.fabric.cut("broker2", "controller1000")
    topic = CreatableTopic(name="later", num_partitions=2, replication_factor=1)
    response = await world.request(CreateTopicsRequest(topics=[topic], timeout_ms=100))
    assert response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    world.fabric.heal_all()
    await world.until(lambda: ("later", 1) in world.brokers[2].metadata(), within_s=120)


async def test_a_malformed_registration_is_logged_and_left_out(
    world: ControllerCluster, caplog: pytest.LogCaptureFixture, autojump_clock: object
) -> None:
    with caplog.at_level(logging.ERROR):
        await world.store.create(paths.broker_id(7), b'{"endpoints":[]}', ephemeral=True)
        await world.start_broker(3)
        await world.until(lambda: live_ids(world, 3) == [1, 2, 3])
    assert "/brokers/ids/7: field endpoints" in caplog.text


async def test_a_replica_whose_disk_failed_is_offline(world: ControllerCluster, autojump_clock: object) -> None:
    world.brokers[1].errors["bad", 0] = ErrorCode.KAFKA_STORAGE_ERROR
    assignments = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1])]
    topic = CreatableTopic(name="bad", num_partitions=-1, replication_factor=-1, assignments=assignments)
    response = await world.request(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    assert response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert (await world.state("bad", 0)).leader == -1


async def test_controlled_shutdown_checks_the_broker_epoch_and_moves_no_single_replica(
    world: ControllerCluster, autojump_clock: object
) -> None:
    epoch = (await world.store.get(paths.broker_id(1))).czxid
    stale = await world.request(ControlledShutdownRequest(broker_id=1, broker_epoch=epoch - 1))
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
    unknown = await world.request(ControlledShutdownRequest(broker_id=9, broker_epoch=epoch))
    assert unknown.error_code == ErrorCode.BROKER_NOT_AVAILABLE
    done = await world.request(ControlledShutdownRequest(broker_id=1, broker_epoch=epoch))
    assert (done.error_code, done.remaining_partitions) == (ErrorCode.NONE, [])
    assert (await world.state("t", 0)).leader == 1
    topic = CreatableTopic(name="elsewhere", num_partitions=4, replication_factor=1)
    await world.request(CreateTopicsRequest(topics=[topic]))
    assert set((await world.topic("elsewhere")).partitions[0]) == {2}
