"""Shrinks by the controller: draining partitions, elections in the meantime, removal; by hole of KIP-253."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.list_offsets import ListOffsetsRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import Layout
from tests.support.controller.controller_cluster import ControllerCluster, FakeBroker
from tests.support.resize.resize_rules import TOPIC, alter, configure, finished, hold_records, is_gone, led_by, resized
from tests.support.resize.resize_states import (
    has_layout,
    is_settled,
    layouts,
    placed,
    release,
    silence,
    vacate,
)

pytestmark = pytest.mark.trio


async def test_a_marked_partition_closes_before_its_survivor_gains_keys(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """Rule 3 for merges: 5 closes but its leader does not respond, so 1 takes none of its keys. 0 takes those of 4."""
    await world.request(placed(5, 1, [3, 1, 2]))
    await world.request(placed(6, 1, [2, 1, 3]))
    hold_records(world, range(4, 6), 40)
    silence(world, 2)
    await world.request(alter(4, timeout_ms=100))
    await world.until(lambda: has_layout(world, 0, 4, 3))
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert (await layouts(world, (4, 5)), await layouts(world, (1,))) == ({Layout(4, 3)}, {Layout(6, 2)})
    release(world)
    await world.until(lambda: is_settled(world, 4, 3, 6, None))


async def test_a_shrink_sends_each_broker_only_two_leader_and_isr_requests(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """Only leaders know the ends of epochs. So a shrink sends each broker two requests: of losers and of survivors."""
    await resized(world, 8)
    hold_records(world, range(4, 8), 40, watermark=30)
    before = {broker.id: len(broker.sent(LeaderAndIsrRequest)) for broker in world.brokers.values()}
    await resized(world, 4)
    assert {broker.id: len(broker.sent(LeaderAndIsrRequest)) for broker in world.brokers.values()} == {
        id: count + 2 for id, count in before.items()
    }


async def test_a_partition_is_not_drained_before_its_log_end_whatever_the_high_watermark(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """Hole 7: the high watermark may lag behind the log end, and the log start may be at the high watermark."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40, start=30, watermark=30)
    await resized(world, 4)
    await trio.sleep(10)  # virtual time: several polls
    assert sorted((await world.topic(TOPIC)).partitions) == list(range(6))
    hold_records(world, range(4, 6), 40, start=40)
    await world.until(lambda: finished(world, 4))
    assert (await world.topic(TOPIC)).last_offsets == {4: 40, 5: 40}


async def test_a_marked_partition_without_a_leader_delays_only_its_own_survivor(
    world: ControllerCluster, autojump_clock: object
) -> None:
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    leader = (await world.state(TOPIC, 5)).leader
    silence(world, leader)
    await world.request(alter(4, timeout_ms=100))
    assert await world.alter_isr(TOPIC, 5, [leader]) == ErrorCode.NONE
    world.brokers[leader].leave()
    await world.until(lambda: led_by(world, 5, -1))
    release(world)
    await world.until(lambda: has_layout(world, 0, 4, 2))
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert await layouts(world, (1,)) == {Layout(6, 1)}
    await world.brokers[leader].register()
    await world.until(lambda: is_settled(world, 4, 2, 6, None))


async def test_a_leader_that_does_not_know_its_end_is_asked_with_pauses(
    world: ControllerCluster, autojump_clock: object
) -> None:
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 4)
    leader = world.brokers[(await world.state(TOPIC, 5)).leader]
    leader.errors[TOPIC, 5] = ErrorCode.OFFSET_NOT_AVAILABLE
    before = len(leader.sent(ListOffsetsRequest))
    await trio.sleep(30)  # virtual time: longer than a session
    assert len(leader.sent(ListOffsetsRequest)) - before < 200
    leader.errors.clear()
    hold_records(world, range(4, 6), 40, 40)
    await world.until(lambda: finished(world, 4), within_s=2)


async def test_after_an_unclean_election_the_end_is_asked_again(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """Hole 15: records above the new end are lost, and no group waits for them. The earlier leader had reported 40."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 4)
    await world.until(lambda: _asked(world, 1))
    assert await configure(world, unclean_leader_election_enable="true") == ErrorCode.NONE
    leader = (await world.state(TOPIC, 5)).leader
    assert await world.alter_isr(TOPIC, 5, [leader]) == ErrorCode.NONE
    hold_records(world, range(4, 6), 25, start=25)
    world.brokers[leader].leave()
    await world.until(lambda: _is_leaving(world, 5))
    assert (await world.topic(TOPIC)).last_offsets == {4: 25, 5: 25}


def _asked(world: ControllerCluster, epoch: int) -> bool:
    return any(
        asked.partition_index == 5 and asked.current_leader_epoch == epoch
        for broker in world.brokers.values()
        for request in broker.answered
        if isinstance(request, ListOffsetsRequest)
        for topic in request.topics
        for asked in topic.partitions
    )


async def _is_leaving(world: ControllerCluster, partition: int) -> bool:
    return (await world.state(TOPIC, partition)).being_removed


# ---------------------------------------------------------------- removal


async def test_a_partition_created_again_continues_above_its_last_epoch_as_another_incarnation(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """Hole 20, KAFKA-12257: users of the old incarnation are fenced. Every replica begins at the old log's end."""
    await resized(world, 5)
    first = await world.store.get(paths.partition_state(TOPIC, 4))
    hold_records(world, range(4, 5), 40, 40)
    await world.request(alter(4))
    await world.until(lambda: finished(world, 4))
    removed = (await world.topic(TOPIC)).last_leader_epochs[4]
    await resized(world, 5)
    again = await world.store.get(paths.partition_state(TOPIC, 4))
    assert again.czxid > first.czxid
    assert (await world.state(TOPIC, 4)).leader_epoch == removed + 1
    assert _bases_sent(world, 4, again.czxid) == {40}


def _bases_sent(world: ControllerCluster, partition: int, incarnation: int) -> set[int]:
    return {
        state.base_offset
        for broker in world.brokers.values()
        for request in broker.sent(LeaderAndIsrRequest)
        for topic in request.topic_states
        for state in topic.partition_states
        if (state.partition_index, state.incarnation) == (partition, incarnation)
    }


async def test_the_recorded_end_is_the_highest_one_and_never_falls(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """Markers may follow the leader's reported end. A broker that deleted its log and restarted has no end."""
    await resized(world, 5)
    hold_records(world, range(4, 5), 40, 40)
    await resized(world, 4)
    await world.until(lambda: finished(world, 4))
    assert (await world.topic(TOPIC)).last_offsets == {4: 40}
    await resized(world, 5)
    hold_records(world, range(4, 5), 50)
    await resized(world, 4)
    silence(world, 1, 2, 3)
    hold_records(world, range(4, 5), 50, 50)
    release(world)
    for broker in world.brokers.values():
        broker.forgets_ends = broker.id != 3
    world.brokers[3].logs[TOPIC, 4].end_offset = 52
    await world.until(lambda: finished(world, 4))
    assert (await world.topic(TOPIC)).last_offsets == {4: 52}
    await resized(world, 5)
    hold_records(world, range(4, 5), 3, 3)
    await resized(world, 4)
    await world.until(lambda: finished(world, 4))
    assert (await world.topic(TOPIC)).last_offsets == {4: 52}


async def test_the_next_controller_completes_a_removal(world: ControllerCluster, autojump_clock: object) -> None:
    """No znode lists the deleted replicas: the next controller asks all again. The end offset is recorded earlier."""
    await resized(world, 5)
    hold_records(world, range(4, 5), 40)
    await resized(world, 4)
    silence(world, 3)
    hold_records(world, range(4, 5), 40, 40)
    world.brokers[1].answering.set()
    await world.until(lambda: _is_leaving(world, 4))
    assert (await world.topic(TOPIC)).last_offsets == {4: 40}
    vacate(world)
    for broker in world.brokers.values():
        broker.forgets_ends = True
    release(world)
    await world.start_controller(1001)
    await world.until(lambda: finished(world, 4))
    assert (await world.topic(TOPIC)).last_offsets == {4: 40}


async def test_a_replica_whose_broker_is_away_delays_the_removal(
    world: ControllerCluster, autojump_clock: object
) -> None:
    await resized(world, 5)
    hold_records(world, range(4, 5), 40)
    await resized(world, 4)
    world.brokers[3].leave()
    hold_records(world, range(4, 5), 40, 40)
    await world.until(lambda: _is_leaving(world, 4))
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert len((await world.topic(TOPIC)).partitions) == 5
    for broker in (1, 2):
        assert world.brokers[broker].metadata()[TOPIC, 4] < 0, "it has no leader any more"
    await world.brokers[3].register()
    await world.until(lambda: finished(world, 4))


async def test_an_end_reported_while_the_topic_is_being_deleted_begins_no_removal(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """A state written then would bring the partition online again, and the controller would fail without the topic."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40, 40)
    leader = world.brokers[(await world.state(TOPIC, 5)).leader]

    def hold(broker: FakeBroker, request: object) -> None:
        if broker is leader and isinstance(request, ListOffsetsRequest):
            broker.answering = trio.Event()

    world.received = hold
    await world.request(alter(4, timeout_ms=100))
    await world.until(lambda: not leader.answering.is_set())
    world.received = lambda _broker, _request: None
    await world.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=100))
    others = [broker for broker in world.brokers.values() if broker is not leader]
    await world.until(lambda: all(broker.sent(StopReplicaRequest) for broker in others))
    leader.answering.set()
    await world.until(lambda: is_gone(world))
    for broker in world.brokers.values():
        sent = [type(r) for r in broker.requests if isinstance(r, LeaderAndIsrRequest | StopReplicaRequest)]
        assert LeaderAndIsrRequest not in sent[sent.index(StopReplicaRequest) :]
