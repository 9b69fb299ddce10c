"""A record that crossed to the reader's thread counts as read when the program has it, not before."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from anabranch import TopicPartition
from anabranch.sync import Consumer, Producer
from tests.unit.client.fake_broker import FakeBroker

T = TopicPartition("t", 0)


def write(broker: FakeBroker, count: int) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        producer.send_many("t", [(None, b"%d" % number) for number in range(count)])


def test_an_interrupt_while_records_are_decoded_loses_none(broker: FakeBroker) -> None:
    interrupts = [20]

    def interrupted(data: bytes | None) -> int:
        if int(data or b"") in interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return int(data or b"")

    write(broker, 40)
    with Consumer(
        bootstrap_servers=broker.address, auto_offset_reset="earliest", value_deserializer=interrupted
    ) as consumer:
        consumer.assign([T])
        read: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            read += [record.value for record in consumer if read.append(record.value)]
        assert consumer.position(T) == len(read)
        read += [consumer.getone().value for _ in range(len(read), 40)]
        assert read == list(range(40))


def test_a_close_while_records_are_decoded_counts_none_of_them(broker: FakeBroker) -> None:
    decoding, closed = threading.Event(), threading.Event()

    def waits(data: bytes | None) -> int:
        if data == b"20":
            decoding.set()
            closed.wait()
        return int(data or b"")

    write(broker, 40)
    consumer = Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest", value_deserializer=waits)
    consumer.assign([T])
    read: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: read.extend(record.value for record in consumer))
        decoding.wait()
        state = consumer._client._subscription.state(T)
        consumer.close()
        closed.set()
        reading.result()
    assert read == list(range(state.position))
    assert state.position < 20
