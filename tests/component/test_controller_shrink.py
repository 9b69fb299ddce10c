"""Shrinks by the controller: draining partitions, elections in the meantime, removal. Tests name holes of KIP-253."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.list_offsets import ListOffsetsRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.zk_schemas.partition_state import PartitionLayout
from tests.support.controller.controller_cluster import ControllerCluster, FakeBroker
from tests.support.resize.resize_rules import TOPIC, alter, configure, finished, hold_records, is_gone, led_by, resized
from tests.support.resize.resize_states import (
    has_layout,
    is_settled,
    layouts,
    placed,
    release,
    silence,
)

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


async def test_a_marked_partition_closes_before_its_survivor_gains_keys(cluster: ControllerCluster) -> None:
    """Rule 3 for merges: 5's leader does not respond, so partition 1 gains no key of 5. Partition 0 gains 4's keys."""
    await cluster.request(placed(5, 1, [3, 1, 2]))
    await cluster.request(placed(6, 1, [2, 1, 3]))
    hold_records(cluster, range(4, 6), 40)
    silence(cluster, 2)
    await cluster.request(alter(4, timeout_ms=100))
    await cluster.until(lambda: has_layout(cluster, 0, 4, 3))
    await trio.sleep(5)  # virtual time: longer than any wait
    assert (await layouts(cluster, (4, 5)), await layouts(cluster, (1,))) == (
        {PartitionLayout(4, 3)},
        {PartitionLayout(6, 2)},
    )
    release(cluster)
    await cluster.until(lambda: is_settled(cluster, 4, 3, 6, None))


async def test_a_shrink_sends_each_broker_only_two_leader_and_isr_requests(cluster: ControllerCluster) -> None:
    """Only leaders know the ends of epochs. A shrink sends each broker one request for losers and one for survivors."""
    await resized(cluster, 8)
    hold_records(cluster, range(4, 8), 40, watermark=30)
    before = {broker.id: len(broker.sent(LeaderAndIsrRequest)) for broker in cluster.brokers.values()}
    await resized(cluster, 4)
    assert {broker.id: len(broker.sent(LeaderAndIsrRequest)) for broker in cluster.brokers.values()} == {
        id: count + 2 for id, count in before.items()
    }


async def test_a_partition_is_not_drained_before_its_log_end_whatever_the_high_watermark(
    cluster: ControllerCluster,
) -> None:
    """Hole 7: the high watermark may lag behind the log end, and the log start may be at the high watermark."""
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40, start=30, watermark=30)
    await resized(cluster, 4)
    await trio.sleep(10)  # virtual time: several polls
    assert sorted((await cluster.topic(TOPIC)).partitions) == list(range(6))
    hold_records(cluster, range(4, 6), 40, start=40)
    await cluster.until(lambda: finished(cluster, 4))
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 40, 5: 40}


async def test_a_marked_partition_without_a_leader_delays_only_its_own_survivor(cluster: ControllerCluster) -> None:
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    leader = (await cluster.state(TOPIC, 5)).leader
    silence(cluster, leader)
    await cluster.request(alter(4, timeout_ms=100))
    assert await cluster.alter_isr(TOPIC, 5, [leader]) == ErrorCode.NONE
    cluster.brokers[leader].leave()
    await cluster.until(lambda: led_by(cluster, 5, -1))
    release(cluster)
    await cluster.until(lambda: has_layout(cluster, 0, 4, 2))
    await trio.sleep(5)  # virtual time: longer than any wait
    assert await layouts(cluster, (1,)) == {PartitionLayout(6, 1)}
    await cluster.brokers[leader].register()
    await cluster.until(lambda: is_settled(cluster, 4, 2, 6, None))


async def test_a_leader_that_does_not_know_its_end_is_asked_again_after_pauses(cluster: ControllerCluster) -> None:
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    leader = cluster.brokers[(await cluster.state(TOPIC, 5)).leader]
    leader.errors[TOPIC, 5] = ErrorCode.OFFSET_NOT_AVAILABLE
    before = len(leader.sent(ListOffsetsRequest))
    await trio.sleep(30)  # virtual time: longer than a session
    assert len(leader.sent(ListOffsetsRequest)) - before < 200
    leader.errors.clear()
    hold_records(cluster, range(4, 6), 40, 40)
    await cluster.until(lambda: finished(cluster, 4), within_s=2)


async def test_after_an_unclean_election_the_end_is_asked_again(cluster: ControllerCluster) -> None:
    """Hole 15: the earlier leader reported offset 40. Records above the new end are lost, and no group awaits them."""
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    await cluster.until(lambda: _asked(cluster, 1))
    assert await configure(cluster, unclean_leader_election_enable="true") == ErrorCode.NONE
    leader = (await cluster.state(TOPIC, 5)).leader
    assert await cluster.alter_isr(TOPIC, 5, [leader]) == ErrorCode.NONE
    hold_records(cluster, range(4, 6), 25, start=25)
    cluster.brokers[leader].leave()
    await cluster.until(lambda: _is_leaving(cluster, 5))
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 25, 5: 25}


def _asked(cluster: ControllerCluster, epoch: int) -> bool:
    return any(
        asked.partition_index == 5 and asked.current_leader_epoch == epoch
        for broker in cluster.brokers.values()
        for request in broker.answered
        if isinstance(request, ListOffsetsRequest)
        for topic in request.topics
        for asked in topic.partitions
    )


async def _is_leaving(cluster: ControllerCluster, partition: int) -> bool:
    return (await cluster.state(TOPIC, partition)).being_removed


# ---------------------------------------------------------------- removal


async def test_the_next_controller_completes_a_removal(cluster: ControllerCluster) -> None:
    """The end is stored before. No znode lists the deleted replicas, so the next controller asks all replicas again."""
    await resized(cluster, 5)
    hold_records(cluster, range(4, 5), 40)
    await resized(cluster, 4)
    silence(cluster, 3)
    hold_records(cluster, range(4, 5), 40, 40)
    cluster.brokers[1].answering.set()
    await cluster.until(lambda: _is_leaving(cluster, 4))
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 40}
    cluster.vacate()
    for broker in cluster.brokers.values():
        broker.forgets_ends = True
    release(cluster)
    await cluster.start_controller(1001)
    await cluster.until(lambda: finished(cluster, 4))
    assert (await cluster.topic(TOPIC)).last_offsets == {4: 40}


async def test_an_end_reported_while_the_topic_is_being_deleted_begins_no_removal(cluster: ControllerCluster) -> None:
    """A state written during the deletion would bring the partition online again, and the controller would fail."""
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40, 40)
    leader = cluster.brokers[(await cluster.state(TOPIC, 5)).leader]

    def hold(broker: FakeBroker, request: object) -> None:
        if broker is leader and isinstance(request, ListOffsetsRequest):
            broker.answering = trio.Event()

    cluster.received = hold
    await cluster.request(alter(4, timeout_ms=100))
    await cluster.until(lambda: not leader.answering.is_set())
    cluster.received = lambda _broker, _request: None
    await cluster.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=100))
    others = [broker for broker in cluster.brokers.values() if broker is not leader]
    await cluster.until(lambda: all(broker.sent(StopReplicaRequest) for broker in others))
    leader.answering.set()
    await cluster.until(lambda: is_gone(cluster))
    for broker in cluster.brokers.values():
        sent = [type(r) for r in broker.requests if isinstance(r, LeaderAndIsrRequest | StopReplicaRequest)]
        assert LeaderAndIsrRequest not in sent[sent.index(StopReplicaRequest) :]
