"""Calls that users of other clients know: topics by position, use before the start, poll, watermarks, topics."""

from __future__ import annotations

import anyio
import pytest

from anabranch import Consumer, KafkaError, KafkaTimeoutError, Producer, TopicPartition
from anabranch.client.errors import ClientClosedError, ErrorCode, IllegalStateError
from anabranch.client.net.offsets import telling_cause
from anabranch.protocol.batch_builder import build_batch
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.resized_broker import CHILD, FAST, PARENT, Grouped, Story

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


def written(*partitions: TopicPartition) -> FakeBroker:
    broker = FakeBroker({tp.topic: 1 for tp in partitions})
    for tp in partitions:
        broker.logs[tp].append(build_batch([(b"k", b"%d" % number, (), 0) for number in range(3)]))
    return broker


@pytest.mark.parametrize("way", ["by position", "subscribe", "pattern", "assign"])
async def test_topics_are_named_before_the_start(way: str) -> None:
    async with written(T0, U0).running() as broker:
        config = {"bootstrap_servers": broker.address, "auto_offset_reset": "earliest"}
        consumer = Consumer("t", "u", **config) if way == "by position" else Consumer(**config)  # type: ignore[arg-type]
        if way == "subscribe":
            consumer.subscribe(["t", "u"])
        elif way == "pattern":
            consumer.subscribe(pattern="[tu]")
        elif way == "assign":
            consumer.assign([T0, U0])
            consumer.seek(U0, 2)
            consumer.pause(T0)
            consumer.resume(T0)
        async with consumer:
            found = [await consumer.getone() for _ in range(4 if way == "assign" else 6)]
        read = sorted((record.topic, record.offset) for record in found)
        assert read == [("t", 0), ("t", 1), ("t", 2), *(("u", n) for n in range(2 if way == "assign" else 0, 3))]
        with pytest.raises(ClientClosedError, match="is closed"):
            consumer.subscribe(["t"])


async def test_a_subscription_before_the_start_joins_the_group() -> None:
    story, broker = Story(), Grouped([PARENT, CHILD])
    async with broker.running():
        consumer = Consumer(bootstrap_servers=broker.address, group_id="g", **FAST)  # type: ignore[arg-type]
        consumer.subscribe(["u"])
        consumer.subscribe(["t"], partition_key_listener=story)
        async with consumer:
            assert [(await consumer.getone()).partition for _ in range(11)] == [0] * 10 + [1]
    assert ("load", [1]) in story.lines


@pytest.mark.parametrize("topics", [(["t"],), (5,), ("",)])
def test_topics_by_position_are_judged(topics: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, ValueError), match="topics"):
        Consumer(*topics)  # type: ignore[arg-type]


async def test_poll_returns_a_record_or_none_after_a_time() -> None:
    async with written(T0).client(Consumer, "t", auto_offset_reset="earliest") as consumer:
        found = [await consumer.poll(), await consumer.poll(10), await consumer.poll(10)]
        assert [record.offset for record in found if record is not None] == [0, 1, 2]
        assert await consumer.position(T0) == 3
        assert await consumer.poll(0) is None
        assert await consumer.poll(0.01) is None


def test_a_last_short_try_does_not_hide_the_cause() -> None:
    cause = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader")
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late")
    assert telling_cause(None, late, 1) is late
    assert telling_cause(cause, late, 99) is cause
    assert telling_cause(cause, late, 100) is late


async def test_watermarks_come_from_the_leader_or_from_the_last_fetch() -> None:
    broker = written(T0, U0)
    async with broker.client(Consumer, "t", auto_offset_reset="earliest") as consumer:
        assert await consumer.get_watermark_offsets(U0) == (0, 3), "not assigned"
        with pytest.raises(IllegalStateError, match="u-0 is not assigned"):
            await consumer.get_watermark_offsets(U0, cached=True)
        await consumer.getone()
        assert await consumer.get_watermark_offsets(T0, cached=True) == (-1, 3), "this broker names no log start"
        assert (consumer.last_stable_offset(T0), consumer.highwater(T0)) == (None, 3), "nor a last stable offset"
        absent = TopicPartition("absent", 0)
        with pytest.raises(KafkaTimeoutError):
            await consumer.get_watermark_offsets(absent, 0.02)
        await consumer._metadata.refresh()
        with pytest.raises(KafkaTimeoutError, match=r"20 ms: .*topic absent does not exist"):
            await consumer.get_watermark_offsets(absent, 0.02)


async def test_a_partition_that_was_not_fetched_has_no_known_offsets() -> None:
    consumer = Consumer(bootstrap_servers="h:1")
    consumer.assign([T0])
    assert (consumer.last_stable_offset(T0), consumer.highwater(T0)) == (None, None)


async def test_partitions_are_assigned_and_given_up_one_by_one() -> None:
    async with written(T0, U0).client(Consumer, auto_offset_reset="earliest") as consumer:
        consumer.incremental_assign([T0])
        assert [(await consumer.getone()).offset for _ in range(2)] == [0, 1]
        with pytest.raises(IllegalStateError, match="t-0 is assigned to this consumer already"):
            consumer.incremental_assign([U0, T0])
        assert consumer.assignment() == {T0}
        consumer.incremental_assign([U0])
        assert await consumer.position(T0) == 2, "the position is kept"
        consumer.incremental_unassign([T0])
        assert (await consumer.getone()).topic == "u"
        with pytest.raises(IllegalStateError, match="t-0 is not assigned"):
            consumer.incremental_unassign([U0, T0])
        assert consumer.assignment() == {U0}
        await consumer.unsubscribe()
        consumer.subscribe(["t"])
        for change in (consumer.incremental_assign, consumer.incremental_unassign):
            with pytest.raises(IllegalStateError, match=r"exclude each other|is not assigned"):
                change([U0])


async def test_topics_are_listed_and_none_is_created() -> None:
    broker = FakeBroker({"t": 2})
    broker.announce("t", (1, 1, 2))
    async with (
        broker.running(),
        Consumer(bootstrap_servers=broker.address) as consumer,
        Producer(bootstrap_servers=broker.address) as producer,
    ):
        assert await consumer.topics() == {"t"}
        for client in (consumer, producer):
            found = await client.list_topics()  # type: ignore[attr-defined]
            assert sorted(found.topics["t"].partitions) == [0, 1], "the marked partition is read, too"
            assert found.topics["t"].undeleted_partition_count == 1
            absent = (await client.list_topics("absent", 10)).topics["absent"]  # type: ignore[attr-defined]
            assert absent.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "absent" not in await consumer.topics()


async def test_a_list_of_topics_waits_for_a_broker_no_longer_than_asked() -> None:
    async with Producer(bootstrap_servers="127.0.0.1:1") as producer:
        with pytest.raises(KafkaTimeoutError, match="no description of topics after 20 ms"):
            await producer.list_topics(timeout=0.02)
        with pytest.raises(KafkaError), anyio.fail_after(10):
            await producer.list_topics("t", 0.02)
