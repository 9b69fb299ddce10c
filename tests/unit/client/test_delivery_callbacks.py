"""Callbacks for the outcome of a record, and batches that the user makes."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import Any

import pytest

from anabranch import KafkaError, Producer, RecordHandle, RecordMetadata, TopicPartition
from anabranch.client.errors import ErrorCode, IllegalStateError, PartitionMarkedError
from anabranch.client.producer.callbacks import Callbacks
from anabranch.client.producer.producer_batch import BatchResult, ProducerBatch
from anabranch.protocol.batch_builder import BatchBuilder
from anabranch.protocol.records import RecordBatch
from anabranch.zk_schemas.partition_state import PartitionLayout
from tests.unit.client.fake_broker import FakeBroker, Fault

T0 = TopicPartition("t", 0)
REFUSED = Fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def batch_of(count: int) -> ProducerBatch:
    made = ProducerBatch(T0, BatchBuilder(), 0.0, PartitionLayout(1, 0))
    for _ in range(count):
        made.builder.append(b"k", b"v", (), 7)
    return made


def test_a_callback_follows_its_record_into_other_batches() -> None:
    """At a resize, or if a batch is too large, its records move."""
    callbacks = Callbacks()
    first, halves = batch_of(2), [batch_of(1), batch_of(1)]
    handles = [RecordHandle(first, index, 7, callbacks) for index in range(2)]
    called: list[int] = []
    for number, handle in enumerate(handles):
        handle.add_done_callback(lambda handle, number=number: called.append(number))  # type: ignore[misc]
    first.resolve(moved=[(halves[0], 0), (halves[1], 0)])
    callbacks.run()
    assert called == []
    handles[0].add_done_callback(lambda _: called.append(7))
    halves[1].resolve(result=BatchResult(5))
    callbacks.run()
    assert called == [1]
    halves[0].resolve(error=KafkaError(ErrorCode.NETWORK_EXCEPTION, "lost"))
    assert called == [1], "callbacks run at the end of a decision"
    callbacks.run()
    assert called == [1, 0, 7]


async def test_on_delivery_gets_the_place_or_the_error() -> None:
    seen: list[tuple[KafkaError | None, RecordMetadata]] = []
    async with FakeBroker({"t": 1}).running() as broker, Producer(bootstrap_servers=broker.address) as producer:
        await producer.send("t", b"a", on_delivery=lambda *given: seen.append(given))  # type: ignore[arg-type]
        await producer.flush()
        assert [(error, place.offset) for error, place in seen] == [(None, 0)], "flush waits for the callbacks"
        broker.faults[T0] = deque([REFUSED])
        await producer.send("t", b"b", on_delivery=lambda *given: seen.append(given))  # type: ignore[arg-type]
        await producer.flush()
    error, place = seen[1]
    assert error is not None and error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (place.topic, place.partition, place.offset) == ("t", 0, -1)


async def test_a_callback_that_raises_is_logged_and_stops_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    def raises(handle: RecordHandle) -> None:
        raise LookupError("a mistake of the user")

    async with FakeBroker({"t": 1}).running() as broker, Producer(bootstrap_servers=broker.address) as producer:
        handle = await producer.send("t", b"a", on_delivery=lambda error, place: raises(handle))
        handle.add_done_callback(raises)
        handle.add_done_callback(seen.append)
        await producer.flush()
        assert seen == [handle] and handle.result().offset == 0 and handle.exception() is None
        handle.add_done_callback(raises)
        handle.add_done_callback(lambda _: seen.append("at once"))
        assert seen[1] == "at once", "the outcome is known"
        assert (await producer.send_and_wait("t", b"b")).offset == 1
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == 3
    assert all(record.exc_info is not None and record.exc_info[0] is LookupError for record in logged)


async def test_callbacks_of_records_that_are_given_up_are_called() -> None:
    seen: list[KafkaError | None] = []
    broker = FakeBroker({"t": 1})
    async with broker.running():
        producer = await Producer(bootstrap_servers=broker.address, linger_ms=600_000).start()
        await producer.send("t", b"a", on_delivery=lambda error, place: seen.append(error))
        await producer.close(timeout_ms=0)
        await producer.stop()
    assert [str(error) for error in seen] == ["NETWORK_EXCEPTION (13): the producer was closed"]


async def test_a_handle_without_an_outcome_says_so_and_a_callback_is_a_function() -> None:
    async with FakeBroker({"t": 1}).client(Producer, linger_ms=600_000) as producer:
        handle = await producer.send("t", b"a")
        for ask in (handle.result, handle.exception):
            with pytest.raises(IllegalStateError, match="t-0 is not known yet"):
                ask()
        with pytest.raises(TypeError, match="callback 5 is not a function"):
            handle.add_done_callback(5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="on_delivery 5 is not a function"):
            await producer.send("t", b"b", on_delivery=5)  # type: ignore[arg-type]


async def test_a_batch_is_written_as_one_batch() -> None:
    broker = FakeBroker({"t": 2})
    async with broker.client(Producer, batch_size=200, compression_type="gzip") as producer:
        await producer.send_and_wait("t", b"before", partition=1)
        batch = producer.create_batch()
        with pytest.raises(IllegalStateError, match="no record"):
            await producer.send_batch(batch, "t", partition=1)
        appended = 0
        while (place := batch.append(key=b"k%d" % appended, value=b"v", timestamp=1_000 + appended)) is not None:
            assert place == (appended, 1_000 + appended)
            appended += 1
        assert (batch.record_count(), batch.append(value=b"")) == (appended, None)
        assert appended > 3 and batch.size() <= 200
        handle = await producer.send_batch(batch, "t", partition=1)
        assert (await handle)[:4] == ("t", 1, 1, 1_000)
        written = RecordBatch(broker.logs[TopicPartition("t", 1)].batches[1])
        assert [record.key for record in written] == [b"k%d" % number for number in range(appended)]
        with pytest.raises(IllegalStateError, match="sent before"):
            await producer.send_batch(batch, "t", partition=1)


async def test_a_batch_that_cannot_be_sent_is_refused() -> None:
    broker = FakeBroker({"t": 2})
    broker.announce("t", (1, 1, 2))
    async with broker.client(Producer, max_request_size=1_000, max_block_ms=50) as producer:
        await _knows_topic(producer, "t")
        batch = producer.create_batch()
        batch.append(value=b"v")
        with pytest.raises(PartitionMarkedError, match="t-1 takes no records"):
            await producer.send_batch(batch, "t", partition=1)
        with pytest.raises(KafkaError, match="there is no partition 7"):
            await producer.send_batch(batch, "t", partition=7)
        assert (await (await producer.send_batch(batch, "t", partition=0))).offset == 0, "it was not sent before"
        large = producer.create_batch()
        large.append(value=b"v" * 2_000)
        with pytest.raises(KafkaError, match="more than max_request_size"):
            await producer.send_batch(large, "t", partition=0)
        closed = producer.create_batch()
        closed.close()
        assert closed.append(value=b"v") is None


async def _knows_topic(producer: Producer[Any, Any], topic: str) -> None:
    """Return when the producer has the topic's metadata, however short its ``max_block_ms`` is."""
    while True:
        with suppress(KafkaError):
            await producer.partitions_for(topic)
            return


def test_a_handle_is_not_done_while_its_record_moves_to_another_batch() -> None:
    """A blocking client asks in another thread than the one that moves the record."""
    first, second = (
        ProducerBatch(TopicPartition("t", 0), BatchBuilder(), 0.0, PartitionLayout(1, 0)) for _ in range(2)
    )

    class Moving(RecordHandle):
        def _locate(self) -> tuple[ProducerBatch, int]:
            found = super()._locate()
            first.resolve(moved=[(second, 0)])
            return found

    handle = Moving(first, 0, 0, Callbacks())
    assert not handle.done()
    second.resolve(result=BatchResult(7))
    assert handle.done() and handle.result().offset == 7
