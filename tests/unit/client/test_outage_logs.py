"""The clients' logs when brokers are not available: outages, lost connections, absent topics, late records, joins."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from anabranch import Admin, Consumer, ErrorCode, KafkaTimeoutError, NewTopic, Producer, TopicPartition
from anabranch.client.net.connections import Unanswered
from anabranch.client.net.metadata import BEFORE_CONTACT, Metadata
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.generated.metadata import MetadataResponse
from tests.support.client.client_metadata import MetadataBrokers as Brokers
from tests.support.client.client_metadata import metadata_over
from tests.support.protocol.messages import message
from tests.unit.client.fake_broker import SILENCE, FakeBroker, Fault

pytestmark = pytest.mark.trio

LED = {"name": "t", "partitions": [{"partition_index": 0, "leader_id": 1}]}
ABSENT = {"name": "t", "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def answer(*topics: dict[str, Any], hosts: str = "h") -> MetadataResponse:
    brokers = [{"node_id": number, "host": host, "port": 1} for number, host in enumerate(hosts, 1)]
    return message(MetadataResponse, brokers=brokers, topics=list(topics))


@asynccontextmanager
async def metadata_of(brokers: Brokers, topic_idle_ms: float = float("inf")) -> AsyncIterator[Metadata]:
    metadata = metadata_over(brokers, topic_idle_ms=topic_idle_ms)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metadata.run)
        metadata.want("t")
        yield metadata
        nursery.cancel_scope.cancel()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.name.startswith("anabranch.client.") for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_request_that_is_answered_at_once_is_no_outage(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """No request follows, so no later response could end an outage if one had been recorded."""
    brokers = Brokers(answer(LED))
    async with metadata_of(brokers) as metadata:
        await metadata.ready(1_000)
        brokers.owed = Unanswered(trio.current_time(), "h:1 has not answered PRODUCE")
        metadata._changed.set()  # the client checks for an outage
        await trio.testing.wait_all_tasks_blocked()
        brokers.owed, brokers.answered_at = None, trio.current_time() + 0.001
        await trio.sleep(5)  # virtual time: autojump_clock
    assert warnings(caplog) == []


async def test_an_outage_is_logged_within_two_seconds_repeatedly_and_at_its_end(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers()
    async with metadata_of(brokers):
        await trio.sleep(2)  # virtual time: autojump_clock
        assert warnings(caplog) == ["no broker answers at h:1 (no connection to h:1: refused), for 1 s now"]
        await trio.sleep(10)  # virtual time: autojump_clock
        assert warnings(caplog)[1:] == ["no broker answers at h:1 (no connection to h:1: refused), for 10 s now"]
        brokers.answer = answer()
        await trio.sleep(5)  # virtual time: autojump_clock
        (end,) = warnings(caplog)[2:]
    assert end in ("after 12 s a broker answers again", "after 13 s a broker answers again")
    told = [getattr(record, BEFORE_CONTACT) for record in caplog.records if record.levelno == logging.WARNING]
    assert told == [told[0]] * len(told), "a command that leaves out the outage leaves out its end"


async def test_a_silence_is_reported_from_the_least_duration_to_its_end(autojump_clock: trio.testing.MockClock) -> None:
    brokers = Brokers()
    async with metadata_of(brokers) as metadata:
        await trio.sleep(0.9)  # virtual time: autojump_clock
        assert metadata.silence_of(1.0) is None
        await trio.sleep(0.2)  # virtual time: autojump_clock
        assert metadata.silence_of(1.0) == "no broker answers at h:1 (no connection to h:1: refused)"
        assert metadata.silence_of(2.0) is None
        brokers.answer = answer()
        await trio.sleep(5)  # virtual time: autojump_clock
        assert metadata.silence_of(0.0) is None


async def test_a_broker_that_accepts_requests_and_is_silent_is_an_outage(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with metadata_of(Brokers(silent=True)):
        await trio.sleep(2)  # virtual time: autojump_clock
        assert warnings(caplog) == ["no broker answers at h:1, for 1 s now"]


async def test_of_several_brokers_only_the_one_that_owes_a_response_is_named(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers(answer(LED, hosts="hg"))
    async with metadata_of(brokers) as metadata:
        await metadata.ready(1_000)
        brokers.silent, brokers.owed = True, Unanswered(trio.current_time(), "g:1 has not answered METADATA")
        metadata.request_update()
        await trio.sleep(2)  # virtual time: autojump_clock
        assert warnings(caplog) == ["g:1 has not answered METADATA, for 1 s now"]
        assert metadata.silence_of(1.0) == "g:1 has not answered METADATA"


async def test_while_others_answer_one_silent_broker_is_no_outage(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers(silent=True)
    async with metadata_of(brokers):
        for _ in range(50):
            brokers.answered_at = trio.current_time()
            await trio.sleep(0.1)  # virtual time: autojump_clock
        assert warnings(caplog) == []


async def test_a_producer_logs_a_topic_that_does_not_exist_once_and_again_after_it_existed(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers(answer(ABSENT))
    async with metadata_of(brokers, topic_idle_ms=300_000) as metadata:
        await trio.sleep(120)  # virtual time: autojump_clock
        assert warnings(caplog) == ["topic t does not exist, for 1 s now"]
        brokers.answer = answer({"name": "t"})
        await trio.sleep(5)  # virtual time: autojump_clock
        (end,) = warnings(caplog)[1:]
        assert re.fullmatch(r"this problem is over after 12\d s: topic t does not exist", end)
        brokers.answer = answer(ABSENT)
        metadata.request_update()
        await trio.sleep(120)  # virtual time: autojump_clock
        assert warnings(caplog)[2:] == ["topic t does not exist, for 1 s now"]
        await trio.sleep(300)  # virtual time: autojump_clock
    assert len(warnings(caplog)) == 3  # the topic is idle: it is not asked for, and not known to exist


async def test_the_error_of_a_late_record_names_the_last_refusal(caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker({"t": 1})
    async with broker.client(Producer, request_timeout_ms=200, delivery_timeout_ms=300, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"x")
        broker.faults[TopicPartition("t", 0)] = deque([Fault(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000)
        with pytest.raises(KafkaTimeoutError, match=r"within 300 ms \(\d+ attempts?\): NOT_ENOUGH_REPLICAS"):
            await producer.send_and_wait("t", b"x")
    assert any("was not acknowledged within 300 ms" in text for text in warnings(caplog))


async def test_the_error_of_a_late_record_names_the_last_refusal_during_a_retry() -> None:
    broker = FakeBroker({"t": 1})
    settings = {"request_timeout_ms": 950, "delivery_timeout_ms": 1000, "linger_ms": 0, "retry_backoff_ms": 200}
    async with broker.client(Producer, **settings) as producer:
        await producer.send_and_wait("t", b"x")
        broker.faults[TopicPartition("t", 0)] = deque([Fault(ErrorCode.NOT_ENOUGH_REPLICAS), Fault(SILENCE)])
        with pytest.raises(KafkaTimeoutError, match=r"NOT_ENOUGH_REPLICAS.*; the broker has not answered since$"):
            await producer.send_and_wait("t", b"x")


async def test_a_lost_connection_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "anabranch.client")
    async with FakeBroker({"t": 1}).client(Producer) as producer:
        await producer.send_and_wait("t", b"x")
        for slot in producer._connections._slots.values():
            if slot.connection is not None:
                slot.connection._stream.close()
        with trio.fail_after(10):
            while not any("was lost: " in record.getMessage() for record in caplog.records):
                await trio.sleep(0.001)  # polls: the log


async def test_a_listener_that_never_answers_is_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with listener:
        async with Admin(bootstrap_servers=address) as admin, trio.open_nursery() as nursery:
            nursery.start_soon(admin.list_topics)
            with trio.fail_after(20):
                while not warnings(caplog):
                    await trio.sleep(0.01)  # polls: the log
            nursery.cancel_scope.cancel()
    why = f"{address} has not completed the handshake"
    assert warnings(caplog)[0] == f"no broker answers at {address} ({why}), for 1 s now"


async def test_a_broker_that_stops_answering_fetches_is_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = FakeBroker({"t": 1})
    async with broker.client(Consumer, fetch_max_wait_ms=700) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        await consumer.getmany(timeout_ms=10)
        broker.is_silent = True
        with trio.fail_after(20):
            while not warnings(caplog):
                await consumer.getmany(timeout_ms=10)
        assert warnings(caplog)[0].startswith(f"no broker answers at {broker.address} ({broker.address} has not ")
        broker.is_silent = False


async def test_the_log_reports_that_an_unanswered_produce_may_wait_for_replicas(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker may work while another in-sync replica does not."""
    broker = FakeBroker({"t": 1})
    async with broker.client(Producer) as producer:
        await producer.send_and_wait("t", b"x")
        broker.faults[TopicPartition("t", 0)] = deque([Fault(SILENCE)])
        await producer.send("t", b"x")
        with trio.fail_after(20):
            while not warnings(caplog):
                await trio.sleep(0.01)  # polls: the log
        assert "has not answered PRODUCE, which may wait for replicas)" in warnings(caplog)[0]
        await producer.close(timeout_ms=0)


async def test_an_admin_call_ends_at_its_timeout_while_a_request_is_unanswered() -> None:
    broker = FakeBroker({"t": 1})
    broker.is_silent = True
    async with broker.client(Admin, default_api_timeout_ms=50) as admin:
        with trio.fail_after(20), pytest.raises(KafkaTimeoutError, match="Metadata did not succeed within 50 ms"):
            await admin.list_topics()
        with (
            trio.fail_after(20),
            pytest.raises(KafkaTimeoutError, match="the request may still be carried out"),
        ):
            await admin.create_topics([NewTopic("new")])


async def test_a_fetch_is_not_overdue_while_the_broker_may_hold_it() -> None:
    """The broker must not hold the first fetch of a partition, but may hold the next fetch."""
    broker = FakeBroker({"t": 1})
    async with broker.client(Consumer, fetch_max_wait_ms=60_000) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        with trio.fail_after(20):
            while not any(fetch.max_wait_ms for fetch in broker.seen(ApiKey.FETCH)):
                await consumer.getmany(timeout_ms=10)
        unanswered = consumer._connections.unanswered()
        assert unanswered is None or "FETCH" not in unanswered.what
