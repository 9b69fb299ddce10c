"""A record that crossed to the reader's thread counts as read when the program has it, not before."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from anabranch import TopicPartition
from anabranch.blocking.hand_over import HandOver
from anabranch.client.subscription.fetched_batch import Deserializers, FetchedBatch, Records
from anabranch.client.subscription.subscription import AssignedPartition, TakenRecords
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.records import RecordBatch
from anabranch.sync import Consumer
from tests.unit.blocking.conftest import write
from tests.unit.client.fake_broker import FakeBroker

T = TopicPartition("t", 0)


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


def handed_over(count: int, deserializer: Callable[[bytes | None], object] | None = None) -> HandOver:
    """So many records that crossed, in pieces of 10."""
    fetched = FetchedBatch(RecordBatch(build_batch([(None, b"%d" % n, (), 0) for n in range(count)])), 0)
    records = Records[object, object](T, [fetched.take(count)], Deserializers(None, deserializer))
    return HandOver(TakenRecords(records, AssignedPartition(T), 0), 10, 0.0)


def read_piece(handed: HandOver) -> list[int]:
    piece = handed.decode()
    return [record.offset for record in piece] if piece is not None else []


def test_the_last_of_the_records_that_crossed_may_be_fewer() -> None:
    handed = handed_over(25)
    assert [read_piece(handed) for _ in range(4)] == [[*range(10)], [*range(10, 20)], [*range(20, 25)], []]
    assert handed.decoded == handed.end() == 25


def test_records_that_were_not_read_are_not_counted() -> None:
    handed = handed_over(25)
    read_piece(handed)
    piece = handed.decode()
    assert piece is not None
    assert [next(piece).offset for _ in range(3)] == [10, 11, 12]
    assert handed.decoded == 20
    assert handed.end() == 13
    assert [*piece] == [] and handed.decode() is None


def test_a_piece_that_an_interrupt_kept_from_the_reader_comes_again() -> None:
    handed = handed_over(25)
    read_piece(handed)
    handed.decode()
    assert read_piece(handed) == [*range(10, 20)]
    assert read_piece(handed) == [*range(20, 25)]


def test_after_an_interrupt_while_a_piece_is_decoded_the_rest_crosses_again() -> None:
    def interrupted(data: bytes | None) -> None:
        if data == b"15":
            raise KeyboardInterrupt

    handed = handed_over(25, interrupted)
    read_piece(handed)
    with pytest.raises(KeyboardInterrupt):
        handed.decode()
    assert handed.decode() is None
    assert handed.end() == 10


def test_the_error_of_a_record_comes_after_the_records_before_and_counts_it_as_read() -> None:
    handed = handed_over(25, lambda data: 1 // (data != b"12"))
    assert [read_piece(handed) for _ in range(3)] == [[*range(10)], [10, 11], []]
    with pytest.raises(Exception, match="offset 12"):
        handed.raise_failure()
    handed.raise_failure()
    assert handed.decode() is None
    assert handed.end() == 13


def test_records_that_were_read_are_not_kept() -> None:
    class Value: ...

    values: list[weakref.ref[Value]] = []

    def made(_: bytes | None) -> Value:
        value = Value()
        values.append(weakref.ref(value))
        return value

    handed = handed_over(25, made)
    read_piece(handed)
    read_piece(handed)
    read_piece(handed)
    assert [number for number, value in enumerate(values) if value() is not None] == [*range(20, 25)]


def test_records_that_crossed_long_ago_are_given_back(broker: FakeBroker) -> None:
    write(broker, 40)
    with Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest", max_poll_records=2) as consumer:
        consumer.assign([T])
        read = [consumer.getone().offset for _ in range(12)]
        crossed = consumer._handed
        assert crossed is not None and len(crossed.taken.records) > 10
        crossed.began_s -= 1.0
        read += [consumer.getone().offset for _ in range(28)]
        assert consumer._handed is not crossed
        assert read == list(range(40))
