"""The producer against a broker that answers, refuses, and closes connections."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from anabranch import Producer
from anabranch.client.errors import (
    BufferExhaustedError,
    ClientClosedError,
    ErrorCode,
    KafkaError,
    RefusedWithBatchError,
)
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import positive_hash
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.real_anyio import client_env
from tests.unit.client.fake_broker import DROP, FakeBroker, Fault

T0 = TopicPartition("t", 0)


async def test_a_handle_returns_the_partition_and_offset_of_its_record() -> None:
    broker = FakeBroker({"t": 3})
    async with broker.client(Producer) as producer:
        first = await producer.send("t", key=b"k", value=b"v", headers={"h": b"1"}, timestamp_ms=1234)
        metadata = await first
        assert (metadata.topic, metadata.offset, metadata.timestamp) == ("t", 0, 1234)
        assert metadata.partition == positive_hash(b"k") % 3
        assert await first == metadata, "a handle can be awaited again"
        (record,) = RecordBatch(broker.logs[metadata.topic_partition].batches[0])
        assert (record.key, record.value, record.headers) == (b"k", b"v", [("h", b"1")])


class HandClock:
    """A real clock whose wall time is set by the test."""

    def __init__(self) -> None:
        self._real = client_env().clock
        self.wall_ms = 1_000_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self._real.monotonic()


@contextlib.asynccontextmanager
async def producing_by_hand(broker: FakeBroker, **config: Any) -> AsyncIterator[tuple[Producer, HandClock]]:
    """Run a producer and its clock. The producer has sent a record, so only the sender delays the next record."""
    clock = HandClock()
    env = dataclasses.replace(client_env(), clock=clock)
    async with broker.running(), Producer(env=env, bootstrap_servers=broker.address, **config) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        yield producer, clock


async def test_records_sent_in_one_loop_leave_in_one_request() -> None:
    """Even without ``linger_ms`` the sender runs after the loop of sends, and not at the first record."""
    broker = FakeBroker({"t": 4})
    async with producing_by_hand(broker) as (producer, clock):
        clock.wall_ms += 1_000
        handles = [await producer.send("t", b"x", partition=number % 4) for number in range(64)]
        for handle in handles:
            await handle
        _first, *rest = broker.seen(ApiKey.PRODUCE)
        assert [len(request.topic_data[0].partition_data) for request in rest] == [4]


@pytest.mark.parametrize("reason", ["full", "time"])
async def test_a_loop_of_sends_lets_the_sender_run(reason: str) -> None:
    """The loop awaits only the sends. If a send never paused, no record would leave before the end of the loop."""
    broker = FakeBroker({"t": 1})
    async with producing_by_hand(broker, batch_size=200 if reason == "full" else 1 << 20) as (producer, clock):
        first = await producer.send("t", b"x", partition=0)
        for _ in range(10_000):
            if reason == "time":
                clock.wall_ms += 1
            await producer.send("t", b"x", partition=0)
            if first.done():
                return
        pytest.fail("the first record is not acknowledged")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_compressed_with_the_configured_codec(codec: str) -> None:
    async with FakeBroker({"t": 1}).running() as broker:
        async with Producer(bootstrap_servers=broker.address, compression_type=codec, linger_ms=50) as producer:
            for number in range(100):
                await producer.send("t", value=b"value-%d" % number)
        log = broker.logs[T0]
        assert log.values() == [b"value-%d" % number for number in range(100)]
        assert RecordBatch(log.batches[0]).compression == CompressionType[codec.upper()]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, DROP])
async def test_retries_keep_the_order_and_neither_lose_nor_duplicate_records(
    error: ErrorCode | str, applied: bool
) -> None:
    """Up to five requests are in flight. The first, second and fourth batch fail, written or not."""
    broker = FakeBroker({"t": 1})
    broker.faults[T0] = deque([Fault(error, applied), Fault(error, applied), None, Fault(error, applied)])
    async with broker.running():
        async with Producer(
            bootstrap_servers=broker.address,
            batch_size=200,
            retry_backoff_ms=5,
            reconnect_backoff_ms=5,
            reconnect_backoff_max_ms=20,
        ) as producer:
            for number in range(200):
                await producer.send("t", value=b"%d" % number)
        assert broker.logs[T0].values() == [b"%d" % number for number in range(200)]
        assert broker.producer_ids == 1


async def test_a_batch_that_is_too_large_is_split() -> None:
    broker = FakeBroker({"t": 1})
    broker.max_batch_bytes = 400
    async with broker.running():
        async with Producer(bootstrap_servers=broker.address, linger_ms=20, retry_backoff_ms=5) as producer:
            handles = [await producer.send("t", value=b"%03d" % number * 10) for number in range(60)]
        assert [(await handle).offset for handle in handles] == list(range(60))
        assert broker.logs[T0].values() == [b"%03d" % number * 10 for number in range(60)]


async def test_one_record_that_is_too_large_fails_alone() -> None:
    broker = FakeBroker({"t": 1})
    broker.max_batch_bytes = 400
    async with broker.running():
        async with Producer(bootstrap_servers=broker.address, linger_ms=20, retry_backoff_ms=5) as producer:
            small = [await producer.send("t", value=b"a")]
            large = await producer.send("t", value=b"x" * 1000)
            small += [await producer.send("t", value=b"b"), await producer.send("t", value=b"c")]
        with pytest.raises(KafkaError) as refused:
            await large
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert [(await handle).offset for handle in small] == [0, 1, 2]
        assert broker.logs[T0].values() == [b"a", b"b", b"c"]


async def test_lost_producer_state_starts_a_new_epoch() -> None:
    broker = FakeBroker({"t": 1})
    async with broker.client(Producer, retry_backoff_ms=5) as producer:
        await producer.send_and_wait("t", value=b"1")
        await producer.send_and_wait("t", value=b"2")
        broker.logs[T0].producers.clear()
        await producer.send_and_wait("t", value=b"3")
        assert broker.logs[T0].values() == [b"1", b"2", b"3"]
        assert broker.producer_ids == 2


async def test_a_refusal_that_names_a_record_gives_the_rest_of_the_batch_another_error() -> None:
    broker = FakeBroker({"t": 1})
    broker.faults[T0] = deque([Fault(ErrorCode.INVALID_RECORD, record_errors={1: "it has no key"})])
    async with broker.running():
        async with Producer(bootstrap_servers=broker.address, linger_ms=20) as producer:
            handles = [await producer.send("t", key=key, value=b"v") for key in (b"a", None, b"b")]
        errors = []
        for handle in handles:
            with pytest.raises(KafkaError) as refused:
                await handle
            errors.append(refused.value)
    assert [error.code for error in errors] == [ErrorCode.INVALID_RECORD] * 3
    assert [isinstance(error, RefusedWithBatchError) for error in errors] == [True, False, True]
    assert "it has no key" in errors[1].message


async def test_a_send_to_a_full_buffer_raises_after_max_block_ms() -> None:
    broker = FakeBroker({"t": 1})
    broker.faults[T0] = deque([Fault(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000)
    async with broker.running():

        async def fill() -> None:
            async with Producer(
                bootstrap_servers=broker.address, buffer_memory=2000, max_block_ms=500, retry_backoff_ms=5
            ) as producer:
                for _ in range(3):
                    await producer.send("t", value=b"x" * 900)

        with pytest.raises(BufferExhaustedError):
            await fill()


async def test_linger_collects_and_flush_does_not_wait_for_it() -> None:
    broker = FakeBroker({"t": 1})
    async with broker.client(Producer, linger_ms=60_000) as producer:
        handles = [await producer.send("t", value=b"%d" % n) for n in range(10)]
        assert not any(handle.done() for handle in handles)
        await producer.flush()
        assert all(handle.done() for handle in handles)
        assert len(broker.logs[T0].batches) == 1


async def test_with_acks_0_a_send_waits_for_no_response() -> None:
    broker = FakeBroker({"t": 1})
    async with broker.client(Producer, acks=0) as producer:
        assert (await producer.send_and_wait("t", value=b"1")).offset == -1
        assert not producer.config.enable_idempotence


async def test_records_without_a_key_go_to_one_partition_per_batch() -> None:
    broker = FakeBroker({"t": 4})
    async with broker.client(Producer, linger_ms=20) as producer:
        used = {(await producer.send("t", value=b"x")).partition for _ in range(20)}
        assert len(used) == 1
        await producer.flush()
        after = (await producer.send("t", value=b"x")).partition
        assert after not in used


async def test_a_send_outside_of_the_async_with_block_raises() -> None:
    broker = FakeBroker({"t": 1})
    producer = Producer(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(ClientClosedError, match="outside of"):
        await producer.send("t", value=b"x")
    async with broker.running():
        producer = Producer(bootstrap_servers=broker.address)
        async with producer:
            await producer.send("t", value=b"x")
        with pytest.raises(ClientClosedError, match="is closed"):
            await producer.send("t", value=b"x")


async def test_wrong_types_are_refused_at_once() -> None:
    broker = FakeBroker({"t": 1})
    async with broker.client(Producer) as producer:
        with pytest.raises(TypeError, match="value_serializer"):
            await producer.send("t", value="text")
        with pytest.raises(TypeError, match="header"):
            await producer.send("t", value=b"x", headers=[("a", "b")])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="partition -1 is not a whole number from 0"):
            await producer.send("t", value=b"x", partition=-1)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
async def test_the_callers_buffer_is_copied(kind: Callable[[bytes], Any]) -> None:
    broker = FakeBroker({"t": 1})
    async with broker.client(Producer) as producer:
        headers = [("h", kind(b"header"))]
        await producer.send_and_wait("t", key=kind(b"key"), value=kind(b"value"), headers=headers)
        [request] = broker.seen(ApiKey.PRODUCE)
        [record] = RecordBatch(bytes(request.topic_data[0].partition_data[0].records))
        assert (record.key, record.value, record.headers) == (b"key", b"value", [("h", b"header")])


async def test_handles_fail_when_the_last_flush_is_cancelled() -> None:
    broker = FakeBroker({"t": 1})
    async with broker.running():
        with anyio.CancelScope() as scope:
            async with Producer(bootstrap_servers=broker.address, linger_ms=60_000) as producer:
                handle = await producer.send("t", value=b"x")
                scope.cancel()
        with pytest.raises(KafkaError, match="closed"):
            await handle
