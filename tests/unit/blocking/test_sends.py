"""Records queue in the thread that sends them: their order, errors, back pressure, and their handles."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from anabranch import (
    BufferExhaustedError,
    ClientClosedError,
    ClientFailedError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    RecordMetadata,
    TopicPartition,
)
from anabranch.blocking import client as client_module
from anabranch.blocking import producer as producer_module
from anabranch.blocking.loop_thread import Call, LoopThread
from anabranch.blocking.producer import _size
from anabranch.client.producer.accumulator import Accumulator
from anabranch.sync import Producer, RecordHandle
from tests.unit.client.fake_broker import SILENCE, FakeBroker, Fault

T = TopicPartition("t", 0)
DEADLINE_S = 20.0


def block_briefly(producer: Producer) -> None:
    """Let a started producer wait only 50 ms for metadata or room."""
    object.__setattr__(producer.config, "max_block_ms", 50)


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


def test_the_loop_lets_other_threads_run_while_it_takes_many_records(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = threading.Event()
    with Producer(bootstrap_servers=broker.address) as producer:
        producer.send_and_wait("t", b"first", partition=0)
        assert producer._loop is not None
        pauses: list[float] = []
        monkeypatch.setattr(producer_module, "time", SimpleNamespace(sleep=pauses.append))
        producer._loop.call_soon(queued.wait)
        for value in numbers(900):
            producer.send("t", value, partition=0)
        assert pauses == []
        queued.set()
        producer.flush()
    assert len(pauses) == 3


def test_send_many_returns_the_metadata_in_order(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        written = producer.send_many("many", [(value, value) for value in numbers(500)])
        assert producer.send_many("many", []) == []
        with pytest.raises(TypeError, match=r"records\[1\]"):
            producer.send_many("many", [(b"k", b"v"), b"no pair"])  # type: ignore[list-item]
    for value, metadata in zip(numbers(500), written, strict=True):
        log = broker.logs[metadata.topic_partition]
        assert log.values()[metadata.offset] == value


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_send_many_keeps_the_order_across_many_crossings(broker: FakeBroker, kind: Callable[[Any], Any]) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        written = producer.send_many("t", kind([(None, value) for value in numbers(2_500)]), partition=0)
    assert [metadata.offset for metadata in written] == list(range(2_500))
    assert broker.logs[T].values() == numbers(2_500)


def test_send_many_takes_a_bounded_number_of_bytes_at_once(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        groups = producer._groups("t", [(None, bytes(300_000))] * 9, None)
        assert [len(group) for group in groups] == [4, 4, 1]


@pytest.mark.parametrize("kind", [list, iter])
def test_send_many_sends_the_records_before_a_bad_pair(broker: FakeBroker, kind: Callable[[Any], Any]) -> None:
    with Producer(bootstrap_servers=broker.address) as producer, pytest.raises(TypeError, match=r"records\[2\]"):
        producer.send_many("t", kind([(None, b"0"), (None, b"1"), b"no pair"]), partition=0)
    assert broker.logs[T].values() == numbers(2)


@pytest.mark.parametrize("kind", [list, iter])
def test_send_many_raises_the_first_error_once_every_record_has_an_outcome(
    broker: FakeBroker, kind: Callable[[Any], Any]
) -> None:
    broker.faults[T] = deque([Fault(ErrorCode.INVALID_RECORD)])
    with Producer(bootstrap_servers=broker.address, batch_size=1, max_in_flight_requests_per_connection=1) as producer:
        with pytest.raises(KafkaError) as refused:
            producer.send_many("t", kind([(None, value) for value in numbers(3)]), partition=0)
        assert refused.value.code is ErrorCode.INVALID_RECORD
        assert producer._client._accumulator.unresolved() == []
    assert broker.logs[T].values() == numbers(3)[1:]


def test_send_many_waits_also_for_records_that_are_written_after_the_last(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        placed = {producer.send_and_wait("many", value, value).topic_partition: value for value in numbers(20)}
        (first, key), (_, other), *_ = placed.items()
        broker.faults[first] = deque([Fault(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
        written = producer.send_many("many", [(key, b"tried again"), (other, b"at once")])
    assert written[0].topic_partition == first
    assert broker.logs[first].values()[written[0].offset] == b"tried again"


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
    with Producer(bootstrap_servers=broker.address) as producer:
        producer.send_and_wait("t", b"v")
        block_briefly(producer)
        with pytest.raises(KafkaError, match="there is no partition 7"):
            producer.send("t", b"v", partition=7)
        with pytest.raises(KafkaTimeoutError):
            producer.send("unknown", b"v")
        assert producer.send_and_wait("t", b"v").offset == 1


def test_a_full_buffer_stops_the_sending_thread(broker: FakeBroker) -> None:
    broker.faults[T] = deque([Fault(SILENCE)] * 99)
    producer = Producer(bootstrap_servers=broker.address, buffer_memory=40_000, request_timeout_ms=60_000)
    producer.partitions_for("t")
    block_briefly(producer)
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


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_calls_are_refused_when_an_error_ends_the_thread_of_the_client(broker: FakeBroker, backend: str) -> None:
    producer: Any = Producer(bootstrap_servers=broker.address, backend=backend)
    producer.send_and_wait("t", b"v")
    thread = producer._loop
    waiting: list[Call] = []

    def end() -> None:
        waiting.append(Call(lambda: None))
        thread._calls.add(waiting[0])  # as a call of another thread at this moment
        raise SystemExit(3)

    thread.call_soon(end)
    thread.join(DEADLINE_S)
    assert waiting[0].finished(DEADLINE_S)
    for call in (waiting[0].result, producer.flush, lambda: producer.send("t", b"v"), producer.close):
        with pytest.raises(ClientClosedError, match=r"ended by an error: SystemExit\(3\)"):
            call()
    client_module._end_all()  # as at the end of the program
    producer.close()


def test_calls_are_refused_when_the_task_that_takes_records_ends(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def size(*_: object) -> int:
        if threading.current_thread() is threading.main_thread():
            return 100
        raise RuntimeError("a fault of the client")

    monkeypatch.setattr(producer_module, "estimate_record_bytes", size)
    producer: Any = Producer(bootstrap_servers=broker.address)
    producer.send("t", b"v", headers={"name": b"v"})
    producer._loop.join(DEADLINE_S)
    for call in (producer.flush, lambda: producer.send("t", b"v"), producer.close):
        with pytest.raises(ClientClosedError, match="a fault of the client"):
            call()
    client_module._end_all()  # as at the end of the program


def leave(*_: object) -> None:
    raise SystemExit(3)


LOGGED = ["a callback for the outcome of a record raised an error"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_callback_that_ends_the_program_is_logged_and_stops_nothing(
    broker: FakeBroker, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(bootstrap_servers=broker.address, backend=backend) as producer:
        producer.send("t", b"v", on_delivery=leave)
        producer.flush()
        assert caplog.messages == LOGGED
        assert producer.send_and_wait("t", b"v").offset == 1


def test_a_signal_handler_may_wait_for_the_client_in_the_middle_of_a_send(broker: FakeBroker) -> None:
    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_qualname == "Producer.send" and event == "line" and "handle" in frame.f_locals:
            producer.send("t", b"of the handler")
            producer.flush()
        return trace

    with Producer(bootstrap_servers=broker.address) as producer:
        producer.send_and_wait("t", b"first")
        sys.settrace(trace)  # a handler may run between any two lines
        try:
            producer.send("t", b"interrupted")
        finally:
            sys.settrace(None)
        producer.flush()
    assert broker.logs[T].values().count(b"interrupted") == 1


def test_ctrl_c_in_a_send_leaves_a_producer_that_works(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer: Any = Producer(bootstrap_servers=broker.address)
    with producer:
        producer.send_and_wait("t", b"first")
        with monkeypatch.context() as patch:
            patch.setattr(LoopThread, "call_soon", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                producer.send("t", b"interrupted")
        last = producer.send("t", b"last")
        producer.flush()
        assert last.done()
    assert broker.logs[T].values() == [b"first", b"interrupted", b"last"]


def stopped(producer: Producer, broker: FakeBroker, count: int, monkeypatch: pytest.MonkeyPatch) -> list[RecordHandle]:
    """Queue records that find no room, because other threads were faster: the check of the thread is left out."""
    broker.is_silent = True
    has_room = Accumulator.has_room

    def seen_room(accumulator: Accumulator, size: int, queued_bytes: int | None = None) -> bool:
        return queued_bytes is not None or has_room(accumulator, size)

    monkeypatch.setattr(Accumulator, "has_room", seen_room)
    return [producer.send("t", bytes(1_000)) for _ in range(count)]


FULL: Any = {"buffer_memory": 2_000, "request_timeout_ms": 60_000}


def test_records_that_find_no_room_wait_together(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(bootstrap_servers=broker.address, max_block_ms=1_000, **FULL)
    producer.send_and_wait("t", b"v")
    handles = stopped(producer, broker, 50, monkeypatch)
    seen: list[RecordHandle] = []
    with pytest.raises(KafkaTimeoutError, match="no outcome"):
        handles[-1].result(timeout=0.001)
    assert isinstance(handles[-1].exception(timeout=DEADLINE_S), BufferExhaustedError)  # 50 s one after the other
    handles[-1].add_done_callback(seen.append)
    assert seen == [handles[-1]]
    producer.close(timeout_ms=1)
    assert all(handle.done() for handle in handles)


def test_a_callback_of_a_record_without_room_that_ends_the_program_is_logged_and_stops_nothing(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[tuple[Any, ...]] = []

    def note_and_leave(error: KafkaError | None, place: RecordMetadata) -> None:
        called.append((type(error), place.topic, place.partition, place.offset))
        leave()

    producer = Producer(bootstrap_servers=broker.address)
    producer.send_and_wait("t", b"v")
    block_briefly(producer)
    with monkeypatch.context() as patch:
        patch.setattr(Accumulator, "has_room", lambda _self, _size, queued_bytes=None: queued_bytes is not None)
        late = producer.send("t", b"v", on_delivery=note_and_leave)
        assert isinstance(late.exception(timeout=DEADLINE_S), BufferExhaustedError)
        late.add_done_callback(leave)
        assert caplog.messages == LOGGED * 2
        assert called == [(BufferExhaustedError, "t", -1, -1)]
    assert producer.send_and_wait("t", b"v").offset == 1
    producer.close()


@pytest.mark.parametrize("how", ["close", "error"])
def test_a_close_that_may_not_wait_does_not_wait_for_records_without_room(
    broker: FakeBroker, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(bootstrap_servers=broker.address, max_block_ms=3_600_000, **FULL)
    producer.send_and_wait("t", b"v")
    handles = stopped(producer, broker, 10, monkeypatch)
    if how == "close":
        producer.close(timeout_ms=1)
    else:
        producer.__exit__(ValueError, ValueError(), None)
    for handle in handles:
        with pytest.raises((KafkaError, ClientClosedError)):
            handle.result()


def test_headers_count_in_the_memory_of_the_queue() -> None:
    size = _size(("t", None, b"v", None, [("name", bytes(1_000))], 0, 0, 1))
    assert size > 1_000


def test_a_partitioner_of_the_user_and_headers_are_used(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address, partitioner=lambda _topic, key: int(key or b"0")) as producer:
        assert producer.send_and_wait("many", b"v", b"3", headers={"a": b"1"}, timestamp_ms=5).partition == 3
        with pytest.raises(ValueError, match="invalid literal"):
            producer.send("many", b"v", b"x")
