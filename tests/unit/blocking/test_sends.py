"""Records queue in the thread that sends them: their order, errors, back pressure, and their handles."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import Any

import pytest

from anabranch import (
    BufferExhaustedError,
    ClientClosedError,
    ClientFailedError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    TopicPartition,
)
from anabranch.client.producer.accumulator import Accumulator
from anabranch.sync import Producer, RecordHandle
from tests.unit.client.fake_broker import SILENCE, FakeBroker, Fault

T = TopicPartition("t", 0)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_records_keep_their_order_across_many_crossings(broker: FakeBroker, backend: str) -> None:
    with Producer(bootstrap_servers=broker.address, backend=backend) as producer:
        handles = [producer.send("t", value) for value in numbers(5_000)]
        producer.flush()
        assert all(handle.done() for handle in handles)
        assert [handle.result().offset for handle in handles] == list(range(5_000))
    assert broker.logs[T].values() == numbers(5_000)


def test_send_many_returns_the_metadata_in_order(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        written = producer.send_many("many", [(value, value) for value in numbers(500)])
        assert producer.send_many("many", []) == []
        with pytest.raises(TypeError, match=r"records\[1\]"):
            producer.send_many("many", [(b"k", b"v"), b"no pair"])  # type: ignore[list-item]
    for value, metadata in zip(numbers(500), written, strict=True):
        log = broker.logs[metadata.topic_partition]
        assert log.values()[metadata.offset] == value


def test_a_bad_argument_and_a_serializer_that_raises_are_errors_of_the_call(broker: FakeBroker) -> None:
    threads: list[int] = []

    def serializer(value: Any) -> bytes:
        threads.append(threading.get_ident())
        return b"%d" % (1 // value)

    with Producer(bootstrap_servers=broker.address, value_serializer=serializer) as producer:
        producer.send("t", 1)
        with pytest.raises(ZeroDivisionError):
            producer.send("t", 0)
        with pytest.raises(TypeError):
            producer.send(7, 1)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            producer.send("t", 1, key="text")
    assert set(threads) == {threading.get_ident()}
    assert broker.logs[T].values() == [b"1"]


def test_a_topic_or_partition_that_does_not_exist_is_an_error_of_the_call(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address, max_block_ms=1_000) as producer:
        producer.send_and_wait("t", b"v")
        with pytest.raises(KafkaError, match="there is no partition 7"):
            producer.send("t", b"v", partition=7)
        with pytest.raises(KafkaTimeoutError):
            producer.send("unknown", b"v")
        assert producer.send_and_wait("t", b"v").offset == 1


def test_a_full_buffer_stops_the_sending_thread(broker: FakeBroker) -> None:
    broker.faults[T] = deque([Fault(SILENCE)] * 99)
    settings: Any = {"buffer_memory": 40_000, "max_block_ms": 3_000, "linger_ms": 0, "request_timeout_ms": 60_000}
    producer = Producer(bootstrap_servers=broker.address, **settings)
    sent: list[RecordHandle] = []
    with pytest.raises(BufferExhaustedError):
        sent.extend(producer.send("t", bytes(1_000)) for _ in range(1_000))
    assert len(sent) < 41
    producer.close(timeout_ms=10)


def test_each_record_has_the_error_of_its_batch(broker: FakeBroker) -> None:
    broker.faults[T] = deque([Fault(ErrorCode.INVALID_RECORD)])
    with Producer(bootstrap_servers=broker.address, linger_ms=50) as producer:
        handles = [producer.send("t", b"v") for _ in range(3)]
        for handle in handles:
            for _ in range(2):
                with pytest.raises(KafkaError) as failed:
                    handle.result()
                assert failed.value.code is ErrorCode.INVALID_RECORD
        assert producer.send_and_wait("t", b"v").offset == 0


def test_records_in_the_queue_fail_when_a_task_of_the_client_ends(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_the_task(*_: object) -> None:
        raise RuntimeError("a fault of the client")

    producer = Producer(bootstrap_servers=broker.address, linger_ms=60_000)
    producer.send("t", b"v")
    monkeypatch.setattr(Accumulator, "expire", end_the_task)
    handles: list[RecordHandle] = []
    with pytest.raises(ClientFailedError, match="a fault of the client"):
        handles.extend(producer.send("t", bytes(10_000)) for _ in itertools.count())
    for handle in handles:
        with pytest.raises(ClientFailedError):
            handle.result()
    with pytest.raises(ClientFailedError):
        producer.close()


def test_a_handle_can_be_asked_after_the_producer_is_closed(broker: FakeBroker) -> None:
    producer = Producer(bootstrap_servers=broker.address, linger_ms=60_000)
    handle = producer.send("t", b"v")
    assert not handle.done()
    producer.close()
    assert handle.done() and handle.result().offset == 0
    assert (handle.topic, handle.partition) == ("t", 0)  # type: ignore[attr-defined]
    with pytest.raises(ClientClosedError):
        producer.send("t", b"v")


def test_a_partitioner_of_the_user_and_headers_are_used(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address, partitioner=lambda _topic, key: int(key or b"0")) as producer:
        assert producer.send_and_wait("many", b"v", b"3", headers={"a": b"1"}, timestamp_ms=5).partition == 3
        with pytest.raises(ValueError, match="invalid literal"):
            producer.send("many", b"v", b"x")
