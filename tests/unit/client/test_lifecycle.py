"""Rules that hold for every client, however its ``async with`` block ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from anabranch import Admin, Consumer, Producer, TopicPartition
from anabranch.client.errors import ClientClosedError, ClientFailedError, ErrorCode, KafkaError
from anabranch.client.producer.accumulator import Accumulator
from anabranch.client.producer.producer_batch import RecordHandle
from tests.unit.client.fake_broker import FakeBroker, Fault

DEADLINE_S = 5.0
"""Shorter than any timeout of the clients."""


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
async def test_a_client_that_is_cancelled_while_it_starts_ends(kind: Any) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with kind(bootstrap_servers="127.0.0.1:1"):
            await anyio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
async def test_an_async_with_block_continues_after_its_client_is_closed(kind: Any) -> None:
    often = {"metadata_max_age_ms": 1, "retry_backoff_ms": 1, "retry_backoff_max_ms": 1}
    has_continued = False
    async with kind(bootstrap_servers="127.0.0.1:1", **often) as client:
        await client.close()
        await anyio.sleep(0.1)  # pause: a leftover task would use the client within a few ms
        has_continued = True
    assert has_continued


WAITS: dict[str, tuple[type, Callable[[Any], Awaitable[Any]]]] = {
    "list_topics": (Admin, lambda admin: admin.list_topics()),
    "position": (Consumer, lambda consumer: consumer.position(TopicPartition("t", 0))),
    "end_offsets": (Consumer, lambda consumer: consumer.end_offsets([TopicPartition("t", 0)])),
    "partitions_for_topic": (Consumer, lambda consumer: consumer.partitions_for_topic("t")),
    "send": (Producer, lambda producer: producer.send("t", b"v")),
    "send to a partition": (Producer, lambda producer: producer.send("t", b"v", partition=7)),
    "partitions_for": (Producer, lambda producer: producer.partitions_for("t")),
}


@pytest.mark.parametrize("has_broker", [False, True], ids=["no broker", "broker"])
@pytest.mark.parametrize("what", WAITS)
async def test_a_call_that_waits_when_its_client_is_closed_ends(what: str, has_broker: bool) -> None:
    """The call ends even if the response arrives at the moment of the close.

    Otherwise a record that the closed producer accepts would never have an outcome.
    """
    kind, call = WAITS[what]

    broker = FakeBroker({"t": 1})
    async with broker.running():
        for _ in range(10 if has_broker else 1):  # tasks that one event wakes run in any order
            async with kind(bootstrap_servers=broker.address if has_broker else "127.0.0.1:1") as client:
                await closed_while_it_waits(client, call)


async def closed_while_it_waits(client: Any, call: Callable[[Any], Awaitable[Any]]) -> None:
    """Close a client during a call, with or without metadata. The call ends, and a sent record has an outcome."""
    if isinstance(client, Consumer):
        client.assign([TopicPartition("t", 0)])
    answered = anyio.Event()
    client._metadata.on_update(answered.set)

    async def close() -> None:
        with anyio.move_on_after(0.05):  # pause: longer than a running broker takes
            await answered.wait()
        await client.close()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        with anyio.fail_after(DEADLINE_S), suppress(ClientClosedError, KafkaError):
            found = await call(client)
            if isinstance(found, RecordHandle):
                await found.wait()


async def test_start_and_stop_have_the_same_effect_as_the_async_with_block() -> None:
    broker = FakeBroker({"t": 2})
    async with broker.running():
        producer = await Producer(bootstrap_servers=broker.address).start()
        written = await producer.send_many("t", [(b"a", b"1"), (b"b", b"2"), (None, None), (b"a", b"3")])
        assert [w.topic for w in written] == ["t"] * 4
        handle = await producer.send("t", b"4")
        await producer.stop()
        assert handle.done() and not handle.failed  # sent records are acknowledged before the stop
        await producer.stop()
        with pytest.raises(ClientClosedError):
            await producer.send("t", b"5")
        never_started = Producer(bootstrap_servers=broker.address)
        await never_started.stop()


@pytest.mark.parametrize("last", ["first", "second"])
async def test_clients_of_one_task_stop_in_any_order(last: str) -> None:
    async with FakeBroker({"t": 1}).running() as broker:
        first = await Producer(bootstrap_servers=broker.address).start()
        second = await Consumer(bootstrap_servers=broker.address).start()
        for client in (second, first) if last == "first" else (first, second):
            await client.stop()
    with anyio.CancelScope() as scope:  # a scope of a client that was left behind would break this
        scope.cancel()
        await anyio.sleep_forever()


async def test_a_client_is_started_used_and_stopped_by_three_tasks() -> None:
    async with FakeBroker({"t": 1}).running() as broker:
        producer = Producer(bootstrap_servers=broker.address)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.start)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.send, "t", b"v")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.stop)
            tasks.start_soon(producer.stop)  # it waits for the other one
        assert broker.logs[TopicPartition("t", 0)].values() == [b"v"]


@pytest.mark.parametrize("how", ["time limit", "cancelled"])
async def test_a_close_that_gives_up_ends_the_close_of_another_task(how: str) -> None:
    async with FakeBroker({"t": 1}).running() as broker:
        producer = await Producer(bootstrap_servers=broker.address).start()
        await producer.send_and_wait("t", b"v")
        broker.is_silent = True
        handle = await producer.send("t", b"w")
        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.close)
                await anyio.wait_all_tasks_blocked()
                with anyio.move_on_after(0.01 if how == "cancelled" else None):
                    await producer.close(timeout_ms=10 if how == "time limit" else None)
        with pytest.raises(KafkaError, match="was closed"):
            await handle


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
async def test_a_started_client_that_is_closed_leaves_no_task(kind: Any) -> None:
    client = await kind(bootstrap_servers="127.0.0.1:1").start()
    group = client._tasks._group
    await client.close()
    assert client._tasks.closed and client._tasks._ended.is_set() and group.cancel_scope.cancel_called
    await client.stop()


async def test_send_many_raises_the_error_of_a_record() -> None:
    broker = FakeBroker({"t": 2})
    broker.faults[TopicPartition("t", 0)] = deque([Fault(ErrorCode.INVALID_RECORD)])
    async with broker.client(Producer) as producer:
        with pytest.raises(KafkaError) as refused:
            await producer.send_many("t", [(b"k", b"1")], partition=0)
        assert refused.value.code is ErrorCode.INVALID_RECORD
        (written,) = await producer.send_many("t", [(b"k", b"1")], partition=1)
        assert written.partition == 1


async def test_batches_yields_one_partition_at_a_time_and_moves_only_its_position() -> None:
    broker = FakeBroker({"t": 2})
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]
    async with broker.client(Producer) as producer:
        for tp in both:
            await producer.send_many("t", [(None, b"x")] * 3, partition=tp.partition)
        async with Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
            consumer.assign(both)
            seen: list[int] = []
            async for records in consumer.batches():
                seen += [len(records)]
                left = [tp for tp in both if await consumer.position(tp) == 0]
                assert len(left) == 2 - len(seen)
                if not left:
                    break
            assert seen == [3, 3]


FAULT = RuntimeError("a fault of the client")


def end_the_task(*_: object) -> None:
    raise FAULT


async def test_the_cause_that_ends_the_sender_is_the_error_of_each_record_and_of_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def program(address: str) -> None:
        async with Producer(bootstrap_servers=address, linger_ms=60_000) as producer:
            handles = [await producer.send("t", b"v") for _ in range(3)]
            monkeypatch.setattr(Accumulator, "expire", end_the_task)
            producer._sender.wake()
            for handle in handles:
                with pytest.raises(ClientFailedError) as failed:
                    await handle
                assert failed.value.__cause__ is FAULT
            with pytest.raises(ClientFailedError, match="a fault of the client"):
                await producer.send("t", b"v")

    async with FakeBroker({"t": 1}).running() as broker:
        with pytest.raises(ClientFailedError) as failed:
            await program(broker.address)
        assert failed.value.__cause__ is FAULT


@pytest.mark.parametrize("what", ["getmany", "async for", "batches", *WAITS])
async def test_the_cause_that_ends_a_task_is_the_error_of_a_call_that_waits(what: str) -> None:
    calls: dict[str, tuple[type, Callable[[Any], Awaitable[Any]]]] = {
        "getmany": (Consumer, lambda consumer: consumer.getmany(timeout_ms=60_000)),
        "async for": (Consumer, lambda consumer: anext(consumer)),
        "batches": (Consumer, lambda consumer: anext(consumer.batches())),
    }
    kind, call = (calls | WAITS)[what]

    async def program() -> None:
        async with kind(bootstrap_servers="127.0.0.1:1") as client:
            client._metadata.on_update(end_the_task)
            if isinstance(client, Consumer):
                client.assign([TopicPartition("t", 0)])
            client._metadata.request_update()
            with anyio.fail_after(DEADLINE_S):
                await call(client)

    with pytest.raises(ClientFailedError) as failed:
        await program()
    assert failed.value.__cause__ is FAULT
