"""Many threads share a producer. A consumer belongs to one thread at a time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from anabranch import ClientClosedError, IllegalStateError, TopicPartition, WakeupError
from anabranch.blocking.hand_over import LET_GO_S, HandOver, next_size
from anabranch.sync import Admin, Consumer, Producer
from tests.unit.blocking.conftest import write
from tests.unit.client.fake_broker import FakeBroker

T = TopicPartition("t", 0)


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[Consumer]:
    with Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as started:
        started.assign([T])
        yield started


def until_it_waits(consumer: Consumer) -> None:
    """Return when another thread is in a call of the consumer."""
    while consumer._call is None:
        threading.Event().wait(0.001)  # polls: the condition of the loop


def test_threads_share_a_producer_and_the_records_of_each_keep_their_order(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address) as producer, ThreadPoolExecutor(8) as pool:

        def send(thread: int) -> None:
            for handle in [producer.send("t", b"%d %d" % (thread, number)) for number in range(50)]:
                assert handle.result().topic == "t"

        list(pool.map(send, range(8)))
    by_thread: dict[bytes, list[int]] = {}
    for value in broker.logs[T].values():
        thread, number = (value or b"").split()
        by_thread.setdefault(thread, []).append(int(number))
    assert list(by_thread.values()) == [list(range(50))] * 8


def test_a_second_thread_gets_an_error_while_a_call_of_the_first_waits(consumer: Consumer) -> None:
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(consumer.getone)
        until_it_waits(consumer)
        for call in (consumer.getone, consumer.getmany, consumer.assignment, consumer.commit):
            with pytest.raises(IllegalStateError, match="another thread"):
                call()
        assert consumer.metrics()
        consumer.wakeup()
        with pytest.raises(WakeupError):
            waits.result()
    assert consumer.assignment() == {T}


@pytest.mark.parametrize("how", ["getone", "getmany", "iterate", "batches"])
def test_close_of_another_thread_ends_a_wait(consumer: Consumer, how: str) -> None:
    waits = {
        "getone": consumer.getone,
        "getmany": lambda: consumer.getmany(timeout_ms=60_000),
        "iterate": lambda: list(consumer),
        "batches": lambda: list(consumer.batches()),
    }
    with ThreadPoolExecutor(1) as pool:
        waiting: Any = pool.submit(waits[how])
        until_it_waits(consumer)
        consumer.close()
        if how in ("iterate", "batches"):
            assert waiting.result() == []
        else:
            with pytest.raises(ClientClosedError):
                waiting.result()


def test_a_wakeup_without_a_wait_ends_the_next_call_once(broker: FakeBroker, consumer: Consumer) -> None:
    write(broker, 3)
    consumer.wakeup()
    with pytest.raises(WakeupError):
        consumer.getone()
    assert [consumer.getone().offset for _ in range(3)] == [0, 1, 2]


def test_records_that_were_not_read_are_not_behind_the_position(broker: FakeBroker, consumer: Consumer) -> None:
    write(broker, 100)
    records = iter(consumer)
    for offset in range(30):
        assert next(records).offset == offset
        if offset % 7 == 0:
            assert consumer.position(T) == offset + 1
    assert next(iter(consumer)).offset == 30
    assert consumer.getone().offset == 31
    assert [record.offset for record in consumer.getmany(max_records=2)[T]] == [32, 33]
    assert next(records).offset == 34
    consumer.seek(T, 10)
    assert next(records).offset == 10
    consumer.pause(T)
    assert consumer.getmany() == {}
    consumer.resume(T)
    assert [next(records).offset for _ in range(89)] == list(range(11, 100))
    assert consumer.position(T) == 100


def test_a_reader_lets_other_threads_run_while_it_reads_what_crossed(broker: FakeBroker) -> None:
    def takes_a_while(data: bytes | None) -> bytes | None:
        begin = time.monotonic()
        while time.monotonic() < begin + LET_GO_S / 20:
            pass
        return data

    write(broker, 1000)
    over = threading.Event()
    turns = [0]

    def count() -> None:
        while not over.is_set():
            turns[0] += 1
            time.sleep(0)  # pause: gives the lock away

    interval = sys.getswitchinterval()
    other = threading.Thread(target=count)
    with Consumer(
        bootstrap_servers=broker.address, auto_offset_reset="earliest", value_deserializer=takes_a_while
    ) as consumer:
        consumer.assign([T])
        try:
            sys.setswitchinterval(1000)  # no thread is made to give the lock away
            other.start()
            seen: dict[HandOver, int] = {}
            deadline = time.monotonic() + 60
            for record in consumer:
                handed = consumer._handed
                assert handed is not None
                if turns[0] > seen.setdefault(handed, turns[0]):
                    break
                assert time.monotonic() < deadline
                if record.offset == 999:
                    consumer.seek_to_beginning(T)
        finally:
            over.set()
            sys.setswitchinterval(interval)
            other.join()


def test_a_deserializer_that_raises_names_the_record_and_the_reader_goes_on(broker: FakeBroker) -> None:
    def number(data: bytes | None) -> int:
        return 1 // (int(data or b"") - 20)

    write(broker, 40)
    with Consumer(
        bootstrap_servers=broker.address, auto_offset_reset="earliest", value_deserializer=number
    ) as consumer:
        consumer.assign([T])
        read = []
        with pytest.raises(Exception, match="t-0 offset 20 cannot be deserialized") as failed:
            read += [record.offset for record in consumer if read.append(record.offset)]
        assert failed.value.offset == 20  # type: ignore[attr-defined]
        assert read == list(range(20))
        assert consumer.position(T) == 21
        assert consumer.getone().offset == 21


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("around", ["asyncio", "trio"])
def test_a_client_works_inside_a_running_loop(broker: FakeBroker, backend: str, around: str) -> None:
    """As in a notebook, or in a function that async code calls."""

    async def notebook() -> None:
        producer = Producer(bootstrap_servers=broker.address, backend=backend)
        assert producer.send_and_wait("t", b"v").offset == 0
        producer.close()

    anyio.run(notebook, backend=around)


def test_a_listener_runs_in_the_thread_that_polls_and_may_call_the_consumer(broker: FakeBroker) -> None:
    seen: list[object] = []

    class Listener:
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            seen.append(threading.get_ident())
            consumer.seek(partitions[0], 2)
            seen.append(consumer.position(partitions[0]))
            with pytest.raises(IllegalStateError, match="waits for the callback"):
                consumer.close()

    write(broker, 5)
    with Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"], listener=Listener())
        assert consumer.getone().offset == 2
    assert seen == [threading.get_ident(), 2]


def test_an_async_listener_runs_in_the_loop(broker: FakeBroker) -> None:
    seen: list[int] = []

    class Listener:
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            await anyio.lowlevel.checkpoint()
            seen.append(len(partitions))

    write(broker, 1)
    with Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"], listener=Listener())
        assert consumer.getone().offset == 0
    assert seen == [1]


@pytest.mark.parametrize("error", [ValueError("of the listener"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_an_exception_of_a_listener_comes_out_of_the_call_that_polls(broker: FakeBroker, error: BaseException) -> None:
    class Listener:
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            raise error

    write(broker, 1)
    consumer = Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest")
    consumer.subscribe(["t"], listener=Listener())
    with pytest.raises(type(error)):
        consumer.getone()
    consumer.subscribe(["t"])
    assert consumer.getone().offset == 0
    consumer.close()


def test_close_of_another_thread_does_not_wait_for_a_listener(broker: FakeBroker) -> None:
    called, may_end = threading.Event(), threading.Event()
    found: list[Exception] = []

    class Listener:
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            called.set()
            may_end.wait(10)
            try:
                consumer.position(partitions[0])
            except ClientClosedError as closed:
                found.append(closed)

    write(broker, 1)
    consumer = Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest")
    consumer.subscribe(["t"], listener=Listener())
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(consumer.getone)
        assert called.wait(10)
        consumer.close()
        may_end.set()
        with pytest.raises(ClientClosedError):
            waits.result()
    assert len(found) == 1


def test_a_client_starts_when_it_is_first_used_but_not_by_metrics(broker: FakeBroker) -> None:
    admin = Admin(bootstrap_servers=broker.address)
    producer = Producer(bootstrap_servers=broker.address)
    with pytest.raises(ClientClosedError):
        producer.metrics()
    assert producer.send_and_wait("t", b"v").offset == 0
    assert producer.metrics()
    assert producer.start() is producer
    producer.close()
    producer.close()
    with pytest.raises(ClientClosedError, match="this Producer is closed"):
        producer.send("t", b"v")
    admin.close()


def test_a_slow_reader_gets_few_records_at_once() -> None:
    assert next_size(1, 0.0001) == 8
    assert next_size(8, 0.0001) == 64
    assert next_size(500, 0.01) == 2_500
    assert next_size(9_000, 0.001) == 10_000
    assert next_size(500, 0.5) == 50
    assert next_size(8, 8.0) == 1
