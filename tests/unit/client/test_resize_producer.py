"""The producer against a broker whose topics are resized."""

from __future__ import annotations

import logging
from collections import deque

import anyio
import pytest

from anabranch import Producer
from anabranch.client.client_metrics import PRODUCER_GROUP
from anabranch.client.errors import ErrorCode, KafkaError, PartitionMarkedError
from anabranch.client.producer.unwritten_records_placed_again import Replacement
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from tests.unit.client.fake_broker import DROP, FakeBroker, Fault

FAST = {"retry_backoff_ms": 5, "reconnect_backoff_ms": 5, "reconnect_backoff_max_ms": 20}


def ordered(partitions: int, **others: int) -> FakeBroker:
    broker = FakeBroker({"t": partitions} | others)
    broker.resize("t", (partitions, partitions, 0))
    return broker


def key_in(partition: int, initial: int, undeleted: int) -> bytes:
    return next(k for k in (b"%d" % n for n in range(1000)) if place(positive_hash(k), initial, undeleted) == partition)


def layouts_sent(broker: FakeBroker) -> list[tuple[str, int, int]]:
    return [
        (topic.name, topic.undeleted_partition_count, topic.layout_version)
        for request in broker.seen(ApiKey.PRODUCE)
        for topic in request.topic_data
    ]


def by_key(broker: FakeBroker) -> dict[bytes, list[tuple[int, bytes]]]:
    """Return (partition, value) of each key's records, in the order of the partitions."""
    found: dict[bytes, list[tuple[int, bytes]]] = {}
    for (_, partition), log in sorted(broker.logs.items()):
        for data in log.batches:
            for record in RecordBatch(data):
                assert record.key is not None
                assert record.value is not None
                found.setdefault(record.key, []).append((partition, record.value))
    return found


async def test_batches_name_the_layout_they_were_placed_by_but_none_for_a_plain_topic() -> None:
    broker = ordered(2, plain=3)
    async with broker.client(Producer) as producer:
        await producer.send_and_wait("t", key=b"k", value=b"v")
        await producer.send_and_wait("plain", key=b"k", value=b"v")
        assert layouts_sent(broker) == [("t", 2, 0), ("plain", -1, -1)]


async def test_no_record_is_lost_duplicated_or_reordered_by_a_resize_under_load(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """2 -> 5 -> 3 with up to five requests in flight and lost responses.

    The broker enforces the first new layout before metadata shows the layout.
    """
    with caplog.at_level(logging.INFO, "anabranch.client.producer.sender"):
        broker = ordered(2)
        for partition in (0, 1):
            broker.faults[TopicPartition("t", partition)] = deque([None, Fault(DROP, True), Fault(DROP), None] * 5)
        handles = []
        async with broker.client(Producer, batch_size=200, **FAST) as producer:
            for number in range(900):
                handles.append(await producer.send("t", key=b"%d" % (number % 13), value=b"%04d" % number))
                if number == 300:
                    broker.resize("t", (2, 5, 1), announce=False)
                elif number == 330:
                    broker.announce("t", (2, 5, 1))
                elif number == 600:
                    broker.resize("t", (2, 3, 2))
            places = [(await handle).topic_partition for handle in handles]
            metrics = producer.metrics()[PRODUCER_GROUP]
        assert metrics["layout-changes-total"] == metrics["pause-total"] >= 1
        assert metrics["records-moved-total"] > 0 and metrics["batches-taken-apart-total"] > 0
        assert metrics["paused-topics"] == 0 and 0 < metrics["pause-time-p50-ms"] <= metrics["pause-time-max-ms"]
        found = by_key(broker)
        assert sum(map(len, found.values())) == 900
        for key, records in found.items():
            homes = {place(positive_hash(key), 2, count) for count in (2, 3, 5)}
            assert {partition for partition, _ in records} <= homes
            for partition in homes:
                values = [value for p, value in records if p == partition]
                assert values == sorted(values)
        written = {value: partition for records in found.values() for partition, value in records}
        assert [written[b"%04d" % number] for number in range(900)] == [tp.partition for tp in places]
    lines = [record.getMessage() for record in caplog.records]
    assert any("layout_version=2 undeleted_partition_count=3" in line for line in lines)


async def test_a_layout_that_arrives_during_a_replacement_is_applied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is in flight then, so no response wakes the sender."""
    step = Replacement.step

    broker = ordered(2)

    def step_behind_the_next_layout(work: Replacement) -> None:
        topic = producer._accumulator.topics["t"]
        assert topic.next is not None
        if topic.next.layout_version == 1:
            if broker.layouts["t"][2] == 1:
                broker.resize("t", (2, 4, 2))
                producer._metadata.hurry_update()
        else:
            step(work)

    monkeypatch.setattr(Replacement, "step", step_behind_the_next_layout)
    async with broker.client(Producer, **FAST) as producer:
        await producer.send_and_wait("t", key=b"k", value=b"1")
        broker.resize("t", (2, 3, 1))
        await producer.send_and_wait("t", key=b"k", value=b"2")
        metrics = producer.metrics()[PRODUCER_GROUP]
    assert metrics["layout-changes-total"] == 2
    assert layouts_sent(broker)[-1] == ("t", 4, 2)


async def test_partitions_for_names_only_unmarked_partitions() -> None:
    broker = ordered(4)
    broker.announce("t", (2, 3, 1))
    async with broker.client(Producer, **FAST) as producer:
        assert await producer.partitions_for("t") == [0, 1, 2]


async def test_a_topic_waits_for_newer_metadata_while_others_continue() -> None:
    broker = ordered(2, other=1)
    broker.resize("t", (2, 4, 1), announce=False)
    async with broker.client(Producer, **FAST) as producer:
        paused = await producer.send("t", key=key_in(3, 2, 4), value=b"1")
        while len([name for name, _, _ in layouts_sent(broker) if name == "t"]) < 3:
            await producer.send_and_wait("other", value=b"x")
        assert not paused.done()
        metrics = producer.metrics()[PRODUCER_GROUP]
        assert metrics["paused-topics"] == 1 and metrics["layout-refusals-total"] >= 2
        broker.announce("t", (2, 4, 1))
        assert (await paused).partition == 3
        metrics = producer.metrics()[PRODUCER_GROUP]
        assert (metrics["paused-topics"], metrics["layout-changes-total"], metrics["records-moved-total"]) == (
            0,
            1,
            1,
        )


async def test_a_broker_that_is_behind_the_metadata_catches_up() -> None:
    """Hole 28: a producer with a newer layout than the broker backs off, and continues without newer metadata."""
    broker = ordered(2)
    broker.announce("t", (2, 2, 1))
    async with broker.client(Producer, **FAST) as producer:
        handles = [await producer.send("t", key=b"k", value=b"%d" % n) for n in range(3)]
        while len(broker.seen(ApiKey.PRODUCE)) < 3:
            await anyio.sleep(0.001)  # polls: the refused batch is tried again
        assert not handles[0].done()
        broker.resize("t", (2, 2, 1))
        assert [(await handle).offset for handle in handles] == [0, 1, 2]


async def test_a_record_for_a_chosen_partition_that_is_marked_fails() -> None:
    broker = ordered(2)
    broker.resize("t", (2, 4, 1))
    async with broker.client(Producer, linger_ms=60_000, **FAST) as producer:
        fails = await producer.send("t", key=b"k", value=b"1", partition=3)
        stays = await producer.send("t", key=b"k", value=b"2", partition=0)
        broker.resize("t", (2, 2, 2))
        await producer.flush()
        assert (await stays).partition == 0
        with pytest.raises(PartitionMarkedError, match="t-3 takes no records"):
            await fails
        with pytest.raises(PartitionMarkedError) as at_once:
            await producer.send("t", value=b"3", partition=2)
        assert at_once.value.code is ErrorCode.POLICY_VIOLATION
        assert isinstance(at_once.value, KafkaError)


@pytest.mark.parametrize("config", [{"enable_idempotence": False}, {"acks": 1}, {"retries": 0}])
async def test_without_idempotence_refused_records_are_placed_again_too(config: dict[str, int | bool]) -> None:
    broker = ordered(2)
    async with broker.client(Producer, **FAST, **config) as producer:
        await producer.partitions_for("t")
        broker.resize("t", (2, 4, 1))
        key = key_in(3, 2, 4)
        handles = [await producer.send("t", key=key, value=b"%d" % n) for n in range(5)]
        assert [(await handle).partition for handle in handles] == [3] * 5
        assert [value for _, value in by_key(broker)[key]] == [b"%d" % n for n in range(5)]


async def test_with_acks_0_unsent_records_follow_new_metadata() -> None:
    """In hole 27 the broker closes the connection. Here only newer metadata moves the unsent record."""
    broker = ordered(2)
    key = key_in(3, 2, 4)
    async with broker.client(Producer, acks=0, linger_ms=60_000, metadata_max_age_ms=5, **FAST) as producer:
        handle = await producer.send("t", key=key, value=b"1")
        assert handle.partition == 1
        broker.resize("t", (2, 4, 1))
        while handle.partition != 3:
            await anyio.sleep(0.001)  # polls: metadata is refreshed in the background
        await producer.flush()
        await handle
        while not by_key(broker):
            await anyio.sleep(0.001)  # polls: with acks=0 no response confirms the record
    assert by_key(broker)[key] == [(3, b"1")]


async def test_a_partitioner_of_the_user_places_records_again() -> None:
    broker = ordered(2)
    async with broker.client(Producer, partitioner=lambda info, key: info.layout[1] - 1, **FAST) as producer:
        await producer.partitions_for("t")
        broker.resize("t", (2, 4, 1))
        assert (await producer.send_and_wait("t", key=b"k", value=b"1")).partition == 3
