"""AlterPartition: the ISR that a controller writes, its response, and its requests to brokers (KIP-497)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition import AlterPartitionRequest, PartitionData, TopicData
from anabranch.protocol.generated.controlled_shutdown import ControlledShutdownRequest
from anabranch.protocol.generated.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from tests.support.controller.controller_world import World
from tests.support.resize.resize_states import vacate

pytestmark = pytest.mark.trio


@pytest.fixture
async def world(nursery: trio.Nursery, autojump_clock: object) -> World:
    """Three brokers, and a topic ``t`` whose partition 0 is on all of them, led by 1."""
    world = World(nursery)
    await world.start_controller()
    for broker_id in (1, 2, 3):
        await world.start_broker(broker_id)
    await world.until(lambda: all(broker.sent(UpdateMetadataRequest) for broker in world.brokers.values()))
    assignments = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2, 3])]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
    response = await world.request(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    assert response.topics[0].error_code == ErrorCode.NONE
    return world


async def ask(world: World, isr: Sequence[int], version: int, *, leader: int = 1, epoch: int = 0, **fields: Any) -> Any:
    """Request an ISR for partition 0. Returns the partition's result, or the error of the whole request."""
    broker_epoch = (await world.store.get(paths.broker_id(leader))).czxid
    asked = PartitionData(partition_index=0, leader_epoch=epoch, new_isr=list(isr), current_isr_version=version)
    asked.new_isr_epochs = fields.pop("epochs", [])
    request = AlterPartitionRequest(broker_id=leader, broker_epoch=fields.pop("broker_epoch", broker_epoch))
    request.topics = [TopicData(name=fields.pop("topic", "t"), partitions=[asked])]
    response = await world.request(request)
    return response.error_code or response.topics[0].partitions[0]


async def test_a_new_isr_is_written_and_sent_by_update_metadata_only(world: World, autojump_clock: object) -> None:
    orders = {id: len(broker.sent(LeaderAndIsrRequest)) for id, broker in world.brokers.items()}
    answer = await ask(world, [1, 2], 0)
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (ErrorCode.NONE, 1, 0)
    assert (answer.isr, answer.current_isr_version) == ([1, 2], 1)
    state = await world.state("t", 0)
    assert (state.isr, state.leader, state.leader_epoch) == ([1, 2], 1, 0)

    def told() -> bool:
        last = world.brokers[3].sent(UpdateMetadataRequest)[-1].topic_states
        return bool(last) and last[0].partition_states[0].isr == [1, 2]

    await world.until(told)
    assert {id: len(broker.sent(LeaderAndIsrRequest)) for id, broker in world.brokers.items()} == orders


async def test_an_alter_partition_whose_response_was_lost_succeeds_again(world: World, autojump_clock: object) -> None:
    await ask(world, [1, 2], 0)
    answer = await ask(world, [1, 2], 0)
    assert (answer.error_code, answer.isr, answer.current_isr_version) == (ErrorCode.NONE, [1, 2], 1)


async def test_stale_epochs_are_refused_before_the_isr_is_judged(world: World, autojump_clock: object) -> None:
    await ask(world, [1, 2], 0)
    assert (await ask(world, [1, 9], 0)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert (await ask(world, [1, 9], 1, epoch=1)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await ask(world, [1, 2], 1, leader=2)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await ask(world, [1], 1, topic="other")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await ask(world, [1], 1, broker_epoch=0) == ErrorCode.STALE_BROKER_EPOCH
    assert (await world.state("t", 0)).isr == [1, 2]


@pytest.mark.parametrize("isr", [[], [1, 9], [1, 1]])
async def test_an_invalid_isr_is_refused(world: World, isr: list[int], autojump_clock: object) -> None:
    assert (await ask(world, isr, 0)).error_code == ErrorCode.INVALID_REQUEST
    assert (await world.state("t", 0)).isr == [1, 2, 3]


async def test_a_replica_that_shuts_down_does_not_join_the_isr(world: World, autojump_clock: object) -> None:
    """KAFKA-14140: the replica would be gone a moment later, and still be in the ISR."""
    epoch = (await world.store.get(paths.broker_id(3))).czxid
    await world.request(ControlledShutdownRequest(broker_id=3, broker_epoch=epoch))
    state = await world.state("t", 0)
    assert state.isr == [1, 2]
    version = (await world.store.get(paths.partition_state("t", 0))).version
    answer = await ask(world, [1, 2, 3], version, epoch=state.leader_epoch)
    assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA
    assert (await ask(world, [1], version, epoch=state.leader_epoch)).error_code == ErrorCode.NONE


async def test_a_replica_that_registered_anew_since_it_fetched_does_not_join(
    world: World, autojump_clock: object
) -> None:
    """KIP-903: the replica may have lost the records that it had when it fetched."""
    await ask(world, [1, 2], 0)
    epoch = (await world.store.get(paths.broker_id(3))).czxid
    answer = await ask(world, [1, 2, 3], 1, epochs=[-1, -1, epoch - 1])
    assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA
    assert (await ask(world, [1, 2, 3], 1, epochs=[-1, -1, epoch])).error_code == ErrorCode.NONE


async def test_a_leader_that_proposes_the_isr_without_itself_is_replaced(world: World, autojump_clock: object) -> None:
    """A leader whose disk is full resigns in this way (docs/adr/0025)."""
    answer = await ask(world, [2, 3], 0)
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (ErrorCode.NONE, 2, 1)
    state = await world.state("t", 0)
    assert (state.leader, state.leader_epoch, state.isr) == (2, 1, [2, 3])

    def told() -> bool:
        orders = [broker.sent(LeaderAndIsrRequest)[-1].topic_states for broker in world.brokers.values()]
        return all(order and order[0].partition_states[0].leader == 2 for order in orders)

    await world.until(told)
    again = await ask(world, [2, 3], 0)
    assert again.error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("isr", [[], [2], [2, 3, 4]])
async def test_a_leader_may_resign_only_to_the_whole_rest_of_its_isr(
    world: World, isr: list[int], autojump_clock: object
) -> None:
    assert (await ask(world, isr, 0)).error_code == ErrorCode.INVALID_REQUEST
    assert (await world.state("t", 0)).leader == 1


async def test_a_leader_does_not_resign_to_a_broker_without_a_replica(world: World, autojump_clock: object) -> None:
    """An edit by hand can leave an ISR with such a broker. The controller refuses, and answers the next request."""
    await world.start_broker(4)
    vacate(world)
    path = paths.partition_state("t", 0)
    edited = json.loads((await world.store.get(path)).data) | {"isr": [1, 4]}
    await world.store.set(path, json.dumps(edited).encode())
    await world.start_controller(1001)
    await world.until(world.active)
    state, version = await world.state("t", 0), (await world.store.get(path)).version
    assert (await ask(world, [4], version, epoch=state.leader_epoch)).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert (await world.state("t", 0)) == state
    assert (await ask(world, [1], version, epoch=state.leader_epoch)).error_code == ErrorCode.NONE
