"""Calls that users of other blocking clients know: poll, handles with a time limit, callbacks, stored offsets."""

from __future__ import annotations

import logging
import threading
from itertools import islice
from typing import Any

import pytest

from anabranch import KafkaError, KafkaTimeoutError, RecordDeserializationError
from anabranch.client.errors import ErrorCode
from anabranch.sync import Consumer, Producer, RecordHandle
from tests.unit.blocking.conftest import write
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.resized_broker import PARENT, Coordinated


def test_poll_and_the_iteration_return_each_record_once(broker: FakeBroker) -> None:
    write(broker, 6)
    with Consumer("t", bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
        polled = [consumer.poll(), consumer.poll(10), consumer.poll(timeout=10)]
        read = [record.offset for record in polled if record is not None]
        read += [record.offset for record in islice(consumer, 2)]
        last = consumer.poll(10)
        assert last is not None and [*read, last.offset] == list(range(6))
        assert consumer.poll(0) is None
        assert consumer.poll(0.01) is None
        for bad in (-1, "1", float("nan")):
            with pytest.raises((TypeError, ValueError), match="timeout"):
                consumer.poll(bad)  # type: ignore[arg-type]


def test_a_deserializer_that_raises_loses_one_record_of_a_poll(broker: FakeBroker) -> None:
    def number(data: bytes | None) -> int:
        if data == b"1":
            raise ValueError(data)
        return int(data or b"")

    write(broker, 3)
    config: dict[str, Any] = {"bootstrap_servers": broker.address, "auto_offset_reset": "earliest"}
    with Consumer("t", value_deserializer=number, **config) as consumer:
        found: list[Any] = []
        while len(found) < 3:
            try:
                record = consumer.poll(10)
            except RecordDeserializationError as error:
                found.append(("failed", error.offset))
            else:
                found.append(record.value if record is not None else None)
        assert found == [0, ("failed", 1), 2]


def test_a_handle_waits_for_a_time_and_tells_its_error(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address, linger_ms=600_000) as producer:
        handle = producer.send("t", b"v")
        for wait in (handle.result, handle.get, handle.exception):
            with pytest.raises(KafkaTimeoutError, match=r"no outcome of a record for t within 0\.01 s"):
                wait(0.01)
            with pytest.raises(TypeError, match="timeout 'x' is not a number"):
                wait("x")  # type: ignore[arg-type]
        producer.flush()
        assert (handle.get(timeout=10).offset, handle.result(), handle.exception(0)) == (0, handle.get(), None)
        given_up = producer.send("t", b"v")
        producer.close(timeout_ms=0)
        error = given_up.exception()
        assert isinstance(error, KafkaError) and error.code is ErrorCode.NETWORK_EXCEPTION


def test_callbacks_run_in_the_thread_of_the_client_and_stop_nothing(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Any] = []
    with Producer[bytes, bytes](bootstrap_servers=broker.address) as producer:

        def waits(handle: RecordHandle) -> None:
            called.append((handle.result().offset, threading.current_thread() is threading.main_thread()))
            producer.flush()

        handle = producer.send("t", b"v", on_delivery=lambda error, place: called.append((error, place.offset)))
        handle.add_done_callback(waits)
        handle.add_done_callback(lambda done: called.append(done is handle))
        producer.flush()
        assert called == [(None, 0), (0, False), True]
        assert producer.send("t", b"v").result(10).offset == 1
    (logged,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert logged.exc_info is not None and "a callback cannot call flush()" in str(logged.exc_info[1])


def test_a_batch_has_a_blocking_handle(broker: FakeBroker) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        batch = producer.create_batch()
        for _ in range(3):
            batch.append(value=b"v")
        handle = producer.send_batch(batch, "many", partition=2)
        assert (handle.result().partition, handle.result().offset) == (2, 0)


def test_an_offset_may_be_stored_after_each_record_of_an_iteration(coordinated: Coordinated) -> None:
    config: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False, "enable_auto_offset_store": False}
    config |= {"bootstrap_servers": coordinated.address, "auto_offset_reset": "earliest"}
    with Consumer(**config) as consumer:
        consumer.assign([PARENT])
        read = []
        for record in islice(consumer, 6):
            read.append(record.offset)
            if record.offset < 4:
                consumer.store_offsets(record)
        consumer.commit()
        assert (read, coordinated.committed[0]) == (list(range(6)), (4, 1000))
        assert consumer.position(PARENT) == 6
        assert [record.offset for record in islice(consumer, 4)] == [6, 7, 8, 9]
