"""Holds on retention that the controller sends to leaders: ``ordered.delivery.retention.waits``."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from sim.clock import SimClock
from tests.support.controller.controller_cluster import ControllerCluster, Log
from tests.support.resize.resize_rules import BROKERS, TOPIC, configure, resized

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]

ROUND_S = 60
HELD_MS = 3 * ROUND_S * 1000
SPLIT = Log(100, 100, 10, offset_of_time=60, epoch_ends={0: 50})
"""The log of a split partition: another partition waits for its offsets 10 to 49."""
READ = 50


async def split(cluster: ControllerCluster, **offsets: int) -> None:
    """Split partitions 4 and 5 off 0 and 1. Each group has committed its offset of ``offsets`` in all partitions."""
    await cluster.store.create(paths.topic("__consumer_offsets"), b'{"version":3,"partitions":{"0":[2]}}')
    assert await configure(cluster, ordered_delivery_retention_waits="true") == ErrorCode.NONE
    await resized(cluster, 6)
    for broker in cluster.brokers.values():
        for index in range(6):
            broker.logs[TOPIC, index] = SPLIT
    for name, offset in offsets.items():
        commit(cluster, name, offset)


def commit(cluster: ControllerCluster, group: str, offset: int, *partitions: int) -> None:
    committed = cluster.brokers[2].groups.setdefault(group, {})
    committed.update({(TOPIC, index): (offset, -1) for index in partitions or range(6)})


async def retained(cluster: ControllerCluster, rounds: int = 2) -> dict[int, set[tuple[int, str]]]:
    """Wait ``rounds`` rounds. Returns the orders that leaders got: ``{partition: {(offset, group)}}``."""
    before = {broker: len(cluster.brokers[broker].requests) for broker in BROKERS}
    await trio.sleep(rounds * ROUND_S)  # virtual time: rounds
    found: dict[int, set[tuple[int, str]]] = {}
    for broker in BROKERS:
        for request in cluster.brokers[broker].requests[before[broker] :]:
            for topic in request.topic_states if isinstance(request, UpdateMetadataRequest) else ():
                for state in topic.partition_states:
                    if state.retained is not None:
                        assert (topic.topic_name, state.leader, state.retained.retained_ms) == (TOPIC, broker, HELD_MS)
                        assert state.leader_epoch == (await cluster.state(TOPIC, state.partition_index)).leader_epoch
                        found.setdefault(state.partition_index, set()).add(
                            (state.retained.offset, state.retained.group_id)
                        )
    return found


async def test_leaders_of_split_partitions_hold_records_that_a_group_has_not_read(cluster: ControllerCluster) -> None:
    """Only partitions 0 and 1 were split, and no partition waits for records that they got after the split."""
    await split(cluster, slow=30, fast=READ)
    assert await retained(cluster) == {0: {(30, "slow")}, 1: {(30, "slow")}}
    commit(cluster, "slow", READ, 1)
    assert await retained(cluster) == {0: {(30, "slow")}}
    commit(cluster, "slow", READ)
    assert await retained(cluster) == {}


async def test_everything_is_held_while_a_coordinator_does_not_answer(cluster: ControllerCluster) -> None:
    await split(cluster, done=READ)
    assert await retained(cluster) == {}
    cluster.brokers[2].is_loading = True
    assert await retained(cluster) == {0: {(0, "")}, 1: {(0, "")}}
    cluster.brokers[2].is_loading = False
    assert await retained(cluster) == {}


async def test_everything_is_held_while_a_leader_does_not_report_its_offsets(cluster: ControllerCluster) -> None:
    await split(cluster, done=READ)
    leader = cluster.brokers[(await cluster.state(TOPIC, 0)).leader]
    leader.errors[TOPIC, 0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await retained(cluster) == {0: {(0, "")}}
    leader.errors.clear()
    assert await retained(cluster) == {}


async def test_the_next_controller_sends_the_holds_again(cluster: ControllerCluster) -> None:
    await split(cluster, slow=30)
    assert await retained(cluster)
    await cluster.start_controller(1001)
    cluster.kill_controller(1000)
    await trio.sleep(ROUND_S)  # virtual time: it takes office
    assert await retained(cluster) == {0: {(30, "slow")}, 1: {(30, "slow")}}


async def test_another_leader_gets_the_hold_in_its_own_epoch(cluster: ControllerCluster) -> None:
    await split(cluster, slow=30)
    before = await cluster.state(TOPIC, 0)
    cluster.brokers[before.leader].leave()
    await trio.sleep(ROUND_S)  # virtual time: its session ends, another is elected
    after = await cluster.state(TOPIC, 0)
    assert after.leader != before.leader and after.leader_epoch > before.leader_epoch
    assert (await retained(cluster))[0] == {(30, "slow")}


async def test_a_warning_comes_before_the_bound_ends(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The bound matters only for records older than ``retention.ms``, because only the order keeps those records."""
    asked: list[int] = []
    cluster.received = lambda _broker, request: asked.extend(
        partition.timestamp
        for topic in getattr(request, "topics", [])
        for partition in getattr(topic, "partitions", [])
        if getattr(partition, "timestamp", -1) > 0
    )
    await split(cluster, slow=30)
    bound = {"retention_ms": "1000", "ordered_delivery_retention_waits_max_ms": "3600000"}
    assert await configure(cluster, **bound) == ErrorCode.NONE
    asked.clear()
    await trio.sleep(ROUND_S)  # virtual time: rounds
    lines = [message for message in caplog.messages if "event=retention.unread_expires" in message]
    assert any("partition=0 group=slow read=30 expires_before=50" in line for line in lines)
    now_ms = SimClock().now_ms()
    assert asked and all(abs(now_ms - when - (3_601_000 - 600_000)) <= ROUND_S * 1000 for when in asked)
