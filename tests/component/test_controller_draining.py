"""The drain of partitions marked for deletion: the controller waits until groups have read them or records expire."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition import AlterPartitionRequest, PartitionData, TopicData
from anabranch.protocol.generated.delete_records import DeleteRecordsRequest
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.topic_readers import TopicReadersRequest
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster, FakeBroker, Log
from tests.support.resize.resize_rules import (
    BROKERS,
    TOPIC,
    configure,
    creation,
    finished,
    hold_records,
    resized,
    started,
)

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


async def marked_and_committed(cluster: ControllerCluster, *committed: tuple[str, int]) -> None:
    """Close partitions 4 and 5 at offset 40. Each group in ``committed`` has read all of 4, and 5 up to its offset."""
    if await cluster.store.exists(paths.topic("__consumer_offsets")) is None:
        await cluster.store.create(paths.topic("__consumer_offsets"), b'{"version":3,"partitions":{"0":[1]}}')
    assert await configure(cluster, delete_records_when_drained="true") == ErrorCode.NONE
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    incarnation = (await cluster.store.get(paths.partition_state(TOPIC, 5))).czxid
    for name, offset in committed:
        cluster.brokers[2].groups[name] = {(TOPIC, 4): (40, -1), (TOPIC, 5): (offset, incarnation)}


WAITS = f"event=resize.waits topic={TOPIC} "


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The logged reasons why partitions wait, in order."""
    return [message.partition(WAITS)[2] for message in caplog.messages if WAITS in message]


async def test_the_reason_that_delays_a_drain_is_logged_once(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller checks the drain many times, and logs the reason once while the reason stays the same."""
    caplog.set_level(logging.INFO)
    cluster = await started(nursery)
    await marked_and_committed(cluster, ("g", 7))
    group, lines = cluster.brokers[2].groups["g"], logged(caplog)

    async def logs_next(line: str) -> None:
        await cluster.until(lambda: logged(caplog)[-1:] == [line])
        lines.append(line)
        await trio.sleep(10)  # virtual time: several polls
        assert logged(caplog) == lines

    await logs_next("partitions=5 group=g read=7 end=40 waits_for=its commits")
    group[TOPIC, 5] = (30, -1)
    cluster.brokers[2].groups.clear()
    await logs_next("partitions=5 waits_for=a group that reads the topic")
    cluster.brokers[2].groups["g"] = group
    cluster.brokers[2].positions["g"] = {(TOPIC, 5): 8}
    await logs_next("partitions=5 group=g read=30 end=40 waits_for=its commits")
    group[TOPIC, 5] = (40, -1)
    await logs_next("partitions=5 group=g read=8 end=40 waits_for=its flush callback")
    cluster.brokers[2].rebalancing.add("g")
    await logs_next("partitions=5 group=g read=40 end=40 waits_for=the end of its rebalance")
    await configure(cluster, delete_records_when_drained="false")
    await logs_next("partitions=5 waits_for=their records to expire")
    await configure(cluster, delete_records_when_drained="true")
    cluster.brokers[3].leave()
    cluster.brokers[2].rebalancing.clear()
    cluster.brokers[2].positions.clear()
    await logs_next("partitions=4,5 waits_for=brokers 3 to delete their replicas")


async def test_nothing_is_deleted_while_it_is_unknown_which_topics_a_group_reads(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The group has committed nothing."""
    caplog.set_level(logging.INFO)
    await marked_and_committed(cluster, ("g", 40))
    broker = cluster.brokers[3]
    broker.groups["h"], broker.topics["h"] = {}, {TOPIC}
    broker.rebalancing.add("h")
    await trio.sleep(10)  # virtual time: several polls
    assert cluster.brokers[1].logs[TOPIC, 5].start_offset == 0
    assert logged(caplog)[-1] == "partitions=4,5 group=h read=-1,-1 end=40,40 waits_for=the end of its rebalance"
    broker.rebalancing.clear()
    await trio.sleep(10)  # virtual time: several polls
    assert logged(caplog)[-1] == "partitions=4,5 group=h read=-1,-1 end=40,40 waits_for=its commits"
    broker.topics["h"] = {"other"}
    broker.unreadable.add("h")
    await trio.sleep(10)  # virtual time: several polls
    why = "a subscription of member h-0 that can be read"
    assert logged(caplog)[-1] == f"partitions=4,5 group=h read=-1,-1 end=40,40 waits_for={why}"
    broker.unreadable.clear()
    await cluster.until(lambda: finished(cluster, 4))


async def test_a_partition_that_cannot_be_drained_does_not_delay_another(cluster: ControllerCluster) -> None:
    """Partition 5 is drained, although the leader of partition 4 does not delete records when requested."""
    for broker in cluster.brokers.values():
        broker.keeps.add((TOPIC, 4))
    await marked_and_committed(cluster, ("g", 40))
    await cluster.until(lambda: cluster.brokers[1].logs[TOPIC, 5].start_offset == 40)


async def test_while_one_group_holds_a_partition_the_others_are_not_asked(cluster: ControllerCluster) -> None:
    await marked_and_committed(cluster, ("slow", 39))
    for number in range(30):
        cluster.brokers[3].groups[f"other-{number}"] = {("other", 0): (1, -1)}
    await cluster.until(lambda: cluster.brokers[1].logs[TOPIC, 4].start_offset == 40)
    await trio.sleep(2)  # virtual time: one more poll finds that the group still holds 5
    seen = {broker.id: len(broker.requests) for broker in cluster.brokers.values()}
    await trio.sleep(10)  # virtual time: several polls
    assert not [r for r in cluster.brokers[3].requests[seen[3] :] if isinstance(r, TopicReadersRequest)]
    of_holder = [r for r in cluster.brokers[2].requests[seen[2] :] if isinstance(r, TopicReadersRequest)]
    assert {tuple(request.group_ids) for request in of_holder} == {("slow",)}
    del cluster.brokers[2].groups["slow"]
    cluster.brokers[3].groups["other-0"][TOPIC, 5] = (40, -1)
    await cluster.until(lambda: finished(cluster, 4))


async def test_a_group_that_held_a_partition_is_found_at_its_new_coordinator(cluster: ControllerCluster) -> None:
    """The group's earlier coordinator still runs, but does not name the group any more."""
    await marked_and_committed(cluster, ("slow", 39))
    await cluster.until(lambda: cluster.brokers[1].logs[TOPIC, 4].start_offset == 40)
    await trio.sleep(2)  # virtual time: one more poll finds that the group still holds 5
    cluster.brokers[1].groups["slow"] = {**cluster.brokers[2].groups.pop("slow"), (TOPIC, 5): (40, -1)}
    await cluster.until(lambda: finished(cluster, 4))


async def test_nothing_is_deleted_while_a_group_moves_to_another_coordinator(cluster: ControllerCluster) -> None:
    """Broker 1 is asked before it gets the group, broker 2 after it lost the group. Both respond without an error."""
    await cluster.store.create(paths.topic("__consumer_offsets"), b'{"version":3,"partitions":{"0":[2,1]}}')
    await marked_and_committed(cluster, ("slow", 39))
    groups = {broker.id: broker.groups for broker in cluster.brokers.values()}
    incarnation = groups[2]["slow"][TOPIC, 5][1]
    groups[1]["fast"] = {(TOPIC, 5): (40, incarnation)}

    def fail_over(broker: FakeBroker, request: object) -> None:
        if broker.id == 2 and isinstance(request, TopicReadersRequest):
            broker.leave()
            broker.answering = trio.Event()
        elif "slow" in groups[2] and broker.led().get(("__consumer_offsets", 0), (2, 0))[0] == 1:
            groups[1]["slow"] = groups[2].pop("slow")
            cluster.brokers[2].answering.set()

    cluster.received = fail_over
    await trio.sleep(10)  # virtual time: several polls
    assert "slow" in groups[1]
    assert cluster.brokers[1].logs[TOPIC, 5].start_offset == 0


async def recreated(cluster: ControllerCluster) -> None:
    await cluster.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=5000))
    await cluster.request(creation(6, *BROKERS))
    hold_records(cluster, range(4, 6), 50)


async def revived(cluster: ControllerCluster) -> None:
    """New readers need the records of a revived partition."""
    await resized(cluster, 6)


@pytest.mark.parametrize(("happens", "kept"), [(recreated, [5]), (revived, [4, 5])])
async def test_nothing_is_deleted_from_a_partition_that_changes_while_the_groups_are_asked(
    nursery: trio.Nursery, happens: Callable[[ControllerCluster], Awaitable[None]], kept: list[int]
) -> None:
    """The group has committed offset 40 of partition 5 with its incarnation, and of partition 4 without."""
    cluster = await started(nursery)
    await marked_and_committed(cluster, ("g", 40))
    asked, hold = trio.Event(), trio.Event()

    def hold_groups(broker: FakeBroker, request: object) -> None:
        if broker.id == 3 and isinstance(request, TopicReadersRequest) and not asked.is_set():
            asked.set()
            broker.answering = hold

    cluster.received = hold_groups
    await asked.wait()
    await trio.sleep(0.1)  # virtual time: the held request waits for the event that is replaced below
    cluster.brokers[3].answering = trio.Event()
    cluster.brokers[3].answering.set()
    await happens(cluster)
    hold.set()
    await trio.sleep(10)  # virtual time: several polls
    assert {cluster.brokers[1].logs[TOPIC, p].start_offset for p in kept} == {0}


async def test_a_deletion_names_the_leader_epoch_of_the_closed_partition(cluster: ControllerCluster) -> None:
    """A leader refuses a deletion that arrives after its partition was revived."""
    await marked_and_committed(cluster, ("g", 40))
    epoch = (await cluster.state(TOPIC, 5)).leader_epoch
    await cluster.until(lambda: finished(cluster, 4))
    named = {
        (partition.partition_index, partition.leader_epoch, partition.offset)
        for broker in cluster.brokers.values()
        for request in broker.sent(DeleteRecordsRequest)
        for topic in request.topics
        for partition in topic.partitions
    }
    assert named == {(4, epoch, 40), (5, epoch, 40)}


async def warned(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture, offsets: dict[int, int], log: Log
) -> list[str]:
    """Return the warnings of a few rounds: a group has these offsets, and all partitions have the log ``log``."""
    if await cluster.store.exists(paths.topic("__consumer_offsets")) is None:
        await cluster.store.create(paths.topic("__consumer_offsets"), b'{"version":3,"partitions":{"0":[1]}}')
    for broker in cluster.brokers.values():
        for index in offsets:
            broker.logs[TOPIC, index] = log
    cluster.brokers[2].groups["g"] = {(TOPIC, index): (offset, -1) for index, offset in offsets.items()}
    caplog.clear()
    await trio.sleep(200)  # virtual time: three rounds
    lines = [message for message in caplog.messages if "event=retention.unread_expires" in message]
    return sorted({line.partition("partition=")[2] for line in lines})


async def test_a_warning_names_awaited_records_that_are_about_to_expire(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Hole 22: while awaited records are about to expire unread, the operator gets a warning each minute.

    Only partitions 0 and 1 were split. The new partitions wait only for records that 0 and 1 got before the split.
    """
    await resized(cluster, 6)
    offsets = dict.fromkeys(range(6), 30)
    log = Log(100, 100, 10, offset_of_time=60, epoch_ends={0: 50})
    assert await warned(cluster, caplog, offsets | {1: 49}, log) == [
        "0 group=g read=30 expires_before=50",
        "1 group=g read=49 expires_before=50",
    ]
    assert await warned(cluster, caplog, offsets | {0: 50, 1: 50}, log) == []
    late = Log(100, 100, 10, offset_of_time=40, epoch_ends={0: 50})
    assert await warned(cluster, caplog, offsets | {1: 40}, late) == ["0 group=g read=30 expires_before=40"]


async def test_no_warning_is_given_without_ordered_delivery(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert await configure(cluster, enable_ordered_delivery="false") == ErrorCode.NONE
    await resized(cluster, 6)
    log = Log(100, 100, 10, offset_of_time=60, epoch_ends={0: 50})
    assert await warned(cluster, caplog, dict.fromkeys(range(6), 30), log) == []


async def test_steps_and_unfinished_resizes_are_counted_for_prometheus(nursery: trio.Nursery) -> None:
    cluster = await started(nursery, metrics_listener="controller1000:9100")
    await resized(cluster, 6)
    stream = await cluster.fabric.node("scraper").connect("controller1000", 9100)
    await stream.send([b"GET /metrics HTTP/1.0\r\n\r\n"])
    received, buffer = b"", memoryview(bytearray(65536))
    while count := await stream.receive_into(buffer):
        received += bytes(buffer[:count])
    text = received.decode()
    assert 'anabranch_resize_steps_total{step="bump",topic="t"} 1.0' in text
    assert "anabranch_active_controller 1.0" in text
    assert "anabranch_unfinished_resizes 0.0" in text


# ---------------------------------------------------------------- expired partitions


async def expired(cluster: ControllerCluster) -> None:
    """Partitions 4 and 5 are closed and end at offset 40, and retention has removed their records."""
    await cluster.store.create(paths.topic("__consumer_offsets"), b'{"version":3,"partitions":{"0":[1]}}')
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    hold_records(cluster, range(4, 6), 40, 40)


async def test_an_expired_partition_is_removed_once_its_live_owner_has_processed_it(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner's application may have delivered but unflushed records of the partition."""
    caplog.set_level(logging.INFO)
    group = cluster.brokers[2]
    group.groups["g"], group.topics["g"] = {}, {TOPIC}
    group.positions["g"] = {(TOPIC, 4): 40, (TOPIC, 5): 39}
    await expired(cluster)
    await trio.sleep(10)  # virtual time: several polls
    assert sorted((await cluster.topic(TOPIC)).partitions) == list(range(6))
    assert logged(caplog)[-1] == "partitions=5 group=g read=39 end=40 waits_for=its flush callback"
    group.positions["g"][TOPIC, 5] = 40
    await cluster.until(lambda: finished(cluster, 4))


async def test_a_drain_names_the_brokers_that_are_behind_and_does_not_wait_for_them(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A live broker with a full disk cannot follow to the end of a marked partition, and is not in the ISR."""
    caplog.set_level(logging.INFO)
    await marked_and_committed(cluster)
    state = await cluster.state(TOPIC, 5)
    full = next(id for id in state.isr if id != state.leader)
    change = PartitionData(
        partition_index=5,
        leader_epoch=state.leader_epoch,
        new_isr=[id for id in state.isr if id != full],
        current_isr_version=(await cluster.store.get(paths.partition_state(TOPIC, 5))).version,
    )
    request = AlterPartitionRequest(
        broker_id=state.leader,
        broker_epoch=(await cluster.store.get(paths.broker_id(state.leader))).czxid,
        topics=[TopicData(name=TOPIC, partitions=[change])],
    )
    assert (await cluster.request(request)).topics[0].partitions[0].error_code == ErrorCode.NONE
    cluster.brokers[full].has_no_room = True
    cluster.brokers[2].groups["g"] = {(TOPIC, 4): (40, -1), (TOPIC, 5): (40, -1)}
    await cluster.until(lambda: finished(cluster, 4))
    assert f"partitions=5 waits_for=broker {full} to delete its records: not in sync" in logged(caplog)
