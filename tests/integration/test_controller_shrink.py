"""Merges as the controller carries them out: seals, elections, removal; by hole of KIP-253."""

from __future__ import annotations

import pytest
import trio

from controller.active import RELOAD_BACKOFF_S
from protocol.errors import ErrorCode
from protocol.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from protocol.generated.leader_and_isr import LeaderAndIsrRequest
from protocol.generated.list_offsets import ListOffsetsRequest
from protocol.generated.stop_replica import StopReplicaRequest
from tests.controller_world import FakeBroker, World
from tests.resize_world import TOPIC, alter, configure, finished, hold_records, is_gone, led_by, refused, resized
from zk_schemas import paths
from zk_schemas.partition_state import Layout

pytestmark = pytest.mark.trio
CONSUMER = -1
"""Who asks for the high watermark."""


async def test_sealed_only_once_the_watermark_has_reached_the_end(world: World, autojump_clock: object) -> None:
    """Hole 7: the high watermark may lag; what is above it is drained too."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40, watermark=30)
    await world.request(alter(4, timeout_ms=100))
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert (await world.state(TOPIC, 4)).sealed_offset == -1
    assert (await world.state(TOPIC, 0)).layout == Layout(6, 1)  # gainers wait for losers
    hold_records(world, range(4, 6), 40)
    await world.until(lambda: _sealed(world, 4, 40))
    await world.until(lambda: _layout(world, 0, Layout(4, 2)))


async def test_what_a_shrink_seals_is_written_at_once_and_told_with_the_survivors(
    world: World, autojump_clock: object
) -> None:
    """Producers wait from the first order, for the losers, until the last, for the survivors: there is none between."""
    await resized(world, 8)
    hold_records(world, range(4, 8), 40)
    hold_records(world, range(6, 7), 40, watermark=30)
    before = {broker.id: len(broker.sent(LeaderAndIsrRequest)) for broker in world.brokers.values()}
    await world.request(alter(4, timeout_ms=100))
    await trio.sleep(0.5)  # virtual time: enough for some to say where they end, again and again
    assert [(await world.state(TOPIC, p)).sealed_offset for p in range(4, 8)] == [-1] * 4
    hold_records(world, range(4, 8), 40)
    await world.until(lambda: _layout(world, 0, Layout(4, 2)))
    await trio.sleep(5)  # virtual time: longer than any order goes unanswered
    assert [(await world.state(TOPIC, p)).sealed_offset for p in range(4, 8)] == [40] * 4
    assert {broker.id: len(broker.sent(LeaderAndIsrRequest)) for broker in world.brokers.values()} == {
        id: count + 2 for id, count in before.items()
    }


async def test_one_that_lags_keeps_no_other_unsealed_for_long(world: World, autojump_clock: object) -> None:
    """0's consumers wait for the seal of 4 once 0 has had an election; 5's watermark is nothing to them."""
    await resized(world, 6)
    hold_records(world, range(4, 5), 40)
    hold_records(world, range(5, 6), 40, watermark=30)
    await world.request(alter(4, timeout_ms=100))
    await world.until(lambda: _sealed(world, 4, 40))
    assert (await world.state(TOPIC, 5)).sealed_offset == -1


async def test_a_watermark_told_before_the_cluster_was_read_again_seals_nothing(
    world: World, autojump_clock: object
) -> None:
    """The answer comes while the controller reads all again, and then it has not asked where the log ends."""
    await resized(world, 5)
    hold_records(world, range(4, 5), 40, watermark=30)
    leader = await _shrunk_until_asked_for_the_watermark(world, 4)
    path, isr = paths.partition_state(TOPIC, 0), (await world.state(TOPIC, 0)).isr
    known = await world.store.get(path)
    await world.store.set(path, known.data)  # so that the controller's next write is refused
    world.nursery.start_soon(world.alter_isr, TOPIC, 0, isr[:1], known.version)
    await trio.sleep(RELOAD_BACKOFF_S / 2)  # virtual time: the controller is about to read
    leader.answering.set()
    await trio.sleep(5)  # virtual time: longer than any question goes unanswered
    assert (await world.state(TOPIC, 4)).sealed_offset == -1


async def test_a_marked_partition_without_a_leader_keeps_no_other_from_being_sealed(
    world: World, autojump_clock: object
) -> None:
    """``topics describe`` says which one the shrink waits for."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40, watermark=30)
    await world.request(alter(4, timeout_ms=100))
    leader = (await world.state(TOPIC, 5)).leader
    assert await world.alter_isr(TOPIC, 5, [leader]) == ErrorCode.NONE
    world.brokers[leader].leave()
    await world.until(lambda: led_by(world, 5, -1))
    hold_records(world, range(4, 6), 40)
    await world.until(lambda: _sealed(world, 4, 40))
    assert (await world.state(TOPIC, 5)).sealed_offset == -1
    assert (await world.state(TOPIC, 0)).layout == Layout(6, 1)
    await world.brokers[leader].register()
    await world.until(lambda: _layout(world, 0, Layout(4, 2)))


async def test_a_watermark_that_lags_for_long_is_asked_for_less_often(world: World, autojump_clock: object) -> None:
    """A follower that died holds it until its session is over; the controller has more to do meanwhile."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40, watermark=30)
    await world.request(alter(4, timeout_ms=100))
    await trio.sleep(30)  # virtual time: longer than a session
    leader = world.brokers[(await world.state(TOPIC, 5)).leader]
    assert len(leader.sent(ListOffsetsRequest)) < 200
    hold_records(world, range(4, 6), 40)
    await world.until(lambda: _sealed(world, 5, 40), within_s=2)


async def _shrunk_until_asked_for_the_watermark(world: World, partition: int) -> FakeBroker:
    """Shrink to 4; the leader of a marked partition, which keeps back how far its watermark is."""
    leader = world.brokers[(await world.state(TOPIC, partition)).leader]

    def hold(broker: FakeBroker, request: object) -> None:
        if broker is leader and isinstance(request, ListOffsetsRequest) and request.replica_id == CONSUMER:
            broker.answering = trio.Event()

    world.received = hold
    await world.request(alter(4, timeout_ms=100))
    await world.until(lambda: not leader.answering.is_set())
    world.received = lambda _broker, _request: None
    return leader


async def _sealed(world: World, partition: int, offset: int) -> bool:
    return (await world.state(TOPIC, partition)).sealed_offset == offset


async def _layout(world: World, partition: int, layout: Layout) -> bool:
    return (await world.state(TOPIC, partition)).layout == layout


async def test_an_unclean_election_below_the_seal_lowers_it(
    world: World, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Hole 15: consumers would wait for ever for records that are lost."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 4)
    assert await configure(world, unclean_leader_election_enable="true") == ErrorCode.NONE
    leader = (await world.state(TOPIC, 5)).leader
    assert await world.alter_isr(TOPIC, 5, [leader]) == ErrorCode.NONE
    hold_records(world, range(4, 6), 25)
    world.brokers[leader].leave()
    await world.until(lambda: _sealed(world, 5, 25))
    lowered = "resize: topic=t step=seal-lowered partitions=5 sealed=40 end=25"
    await world.until(lambda: lowered in [record.message for record in caplog.records])


async def test_a_clean_election_keeps_the_seal(world: World, autojump_clock: object) -> None:
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 4)
    before = await world.state(TOPIC, 5)
    hold_records(world, range(4, 6), 42)  # a marker of a transaction may follow the seal
    world.brokers[before.leader].leave()
    await world.until(lambda: _asked_again(world, before.leader_epoch + 1))
    assert (await world.state(TOPIC, 5)).sealed_offset == 40


def _asked_again(world: World, epoch: int) -> bool:
    return any(
        asked.partition_index == 5 and asked.current_leader_epoch == epoch
        for broker in world.brokers.values()
        for request in broker.answered
        if isinstance(request, ListOffsetsRequest)
        for topic in request.topics
        for asked in topic.partitions
    )


async def test_nothing_is_removed_before_every_survivor_answered(world: World, autojump_clock: object) -> None:
    """Hole 13: a survivor that never hears of the layout would keep the old one for ever."""
    assignments = [CreatePartitionsAssignment(broker_ids=[2, 1, 3]) for _ in range(2)]
    wanted = CreatePartitionsTopic(name=TOPIC, count=6, assignments=assignments)
    await world.request(CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000))
    world.brokers[1].answering = trio.Event()  # leads the survivors
    await world.request(alter(4, timeout_ms=100))
    await world.until(lambda: _layout(world, 0, Layout(4, 2)))
    await trio.sleep(10)  # virtual time: several looks at what is drained
    assert (await world.topic(TOPIC)).partitions.keys() == set(range(6))
    assert (await world.state(TOPIC, 5)).leader == 2
    world.brokers[1].answering.set()
    await world.until(lambda: finished(world, 4))


async def test_a_second_shrink_while_the_first_drains_keeps_the_first_maps(
    world: World, autojump_clock: object
) -> None:
    """Every marked descendant counts; those of an earlier shrink keep the epochs they were given then."""
    await resized(world, 8)
    hold_records(world, range(4, 8), 40)
    await resized(world, 6)
    first = {p: (await world.state(TOPIC, p)).leader_epoch_before_deletion for p in (6, 7)}
    assert first == {6: {2: 1}, 7: {3: 1}}
    await resized(world, 4)
    assert {p: (await world.state(TOPIC, p)).leader_epoch_before_deletion for p in range(4, 8)} == {
        4: {0: 2},
        5: {1: 2},
        **first,
    }
    hold_records(world, range(4, 8), 40, 40)
    await world.until(lambda: finished(world, 4))


async def test_a_partition_created_again_continues_above_its_last_epoch_as_another_incarnation(
    world: World, autojump_clock: object
) -> None:
    """Hole 20, KAFKA-12257: whoever remembers the earlier one is fenced."""
    await resized(world, 5)
    first = await world.store.get(paths.partition_state(TOPIC, 4))
    epoch = (await world.state(TOPIC, 4)).leader_epoch
    await world.request(alter(4))
    await world.until(lambda: finished(world, 4))
    await resized(world, 5)
    again = await world.store.get(paths.partition_state(TOPIC, 4))
    assert again.czxid > first.czxid
    assert (await world.state(TOPIC, 4)).leader_epoch > epoch + 1


async def test_a_replica_whose_broker_is_away_holds_the_removal(world: World, autojump_clock: object) -> None:
    await resized(world, 5)
    hold_records(world, range(4, 5), 40)
    await resized(world, 4)
    world.brokers[3].leave()
    hold_records(world, range(4, 5), 40, 40)
    await world.until(lambda: _is_going(world))
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert len((await world.topic(TOPIC)).partitions) == 5
    code, message = await refused(world, 6)
    assert code is ErrorCode.POLICY_VIOLATION
    assert "waits for brokers 3" in message
    await world.brokers[3].register()
    await world.until(lambda: finished(world, 4))


async def _is_going(world: World) -> bool:
    return (await world.state(TOPIC, 4)).being_removed


async def test_a_seal_that_is_told_while_the_topic_is_being_deleted_is_not_written(
    world: World, autojump_clock: object
) -> None:
    """A partition that was written came online again, and the controller failed when the topic was gone."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    leader = await _shrunk_until_asked_for_the_watermark(world, 5)
    await world.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=100))
    others = [broker for broker in world.brokers.values() if broker is not leader]
    await world.until(lambda: all(broker.sent(StopReplicaRequest) for broker in others))
    leader.answering.set()
    await world.until(lambda: is_gone(world))
    for broker in world.brokers.values():
        told = [type(r) for r in broker.requests if isinstance(r, LeaderAndIsrRequest | StopReplicaRequest)]
        assert LeaderAndIsrRequest not in told[told.index(StopReplicaRequest) :]
