"""The consumer without a group, against a broker that changes leader epochs and damages data."""

from __future__ import annotations

import tracemalloc
from typing import Any

import anyio
import pytest

from anabranch import Consumer
from anabranch.client.client_metrics import CONSUMER_TRAFFIC
from anabranch.client.errors import (
    ClientClosedError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
)
from anabranch.client.subscription.fetched_batch import Deserializers, FetchedBatch, without_response
from anabranch.client.subscription.subscription import AssignedPartition, Subscription
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.framing import BUFFER_BYTES
from anabranch.protocol.generated.fetch import EpochEndOffset as FetchEpochEnd
from anabranch.protocol.generated.fetch import FetchResponse
from anabranch.protocol.generated.metadata import MetadataResponse
from anabranch.protocol.generated.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from anabranch.protocol.records import RecordBatch, set_base_offset
from anabranch.protocol.types import TopicPartition
from tests.support.protocol.messages import by_partition
from tests.unit.client.fake_broker import FakeBroker

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def filled(count: int, *, per_batch: int = 10, partitions: int = 1) -> FakeBroker:
    """Return a broker whose topic ``t`` has ``count`` numbered values in every partition."""
    broker = FakeBroker({"t": partitions})
    for partition in range(partitions):
        log = broker.logs[TopicPartition("t", partition)]
        for first in range(0, count, per_batch):
            numbers = range(first, min(first + per_batch, count))
            log.append(build_batch([(b"k", b"%d" % n, [("h", b"x")], 1000 + n) for n in numbers]))
    return broker


async def read(consumer: Consumer, count: int, **arguments: Any) -> list[Any]:
    """Return the next ``count`` records of any partition."""
    records: list[Any] = []
    while len(records) < count:
        for batch in (await consumer.getmany(timeout_ms=5000, **arguments)).values():
            records += batch
    return records


async def test_a_consumed_record_has_the_fields_that_were_written() -> None:
    async with filled(25).client(Consumer, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        records = await read(consumer, 25)
        assert [r.offset for r in records] == list(range(25))
        assert [r.value for r in records] == [b"%d" % n for n in range(25)]
        first = records[0]
        assert (first.topic, first.partition, first.key, first.headers) == ("t", 0, b"k", [("h", b"x")])
        assert (first.timestamp, first.leader_epoch) == (1000, 0)
        assert await consumer.position(T0) == 25


@pytest.mark.parametrize("limit", [1, 3, 10, 14])
async def test_max_poll_records_splits_batches(limit: int) -> None:
    async with filled(25).client(Consumer, auto_offset_reset="earliest", max_poll_records=limit) as consumer:
        consumer.assign([T0])
        seen: list[int] = []
        while len(seen) < 25:
            found = await consumer.getmany(timeout_ms=5000)
            assert sum(map(len, found.values())) <= limit
            seen += [r.offset for r in found[T0]]
            assert await consumer.position(T0) == seen[-1] + 1
        assert seen == list(range(25))


async def test_iteration_moves_the_position_record_by_record() -> None:
    async with filled(25).client(Consumer, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        async for record in consumer:
            assert await consumer.position(T0) == record.offset + 1
            if record.offset == 17:
                break


async def test_small_batches_that_wait_take_little_memory() -> None:
    """The batches of a slow reader do not keep the buffers of 64 KiB in which the responses arrived."""
    batches = 100

    broker = filled(1)
    async with broker.client(Consumer, auto_offset_reset="earliest", fetch_max_wait_ms=5) as consumer:
        consumer.assign([T0])
        await read(consumer, 1)
        tracemalloc.start()
        for number in range(1, batches + 1):
            broker.logs[T0].append(build_batch([(b"k", b"%d" % number, [], 1000)]))
            while number >= max(
                p.fetch_offset for f in broker.seen(ApiKey.FETCH) for t in f.topics for p in t.partitions
            ):
                await anyio.sleep(0.001)  # polls: until the consumer has the batch
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_bytes < batches * BUFFER_BYTES / 2
        assert [record.value for record in await read(consumer, batches)][-1] == b"%d" % batches


def test_a_small_part_of_a_response_is_copied_and_a_large_part_is_not() -> None:
    response = memoryview(bytearray(100_000))
    small, large = response[100:20_100], response[100:30_100]
    assert without_response(small) == small
    assert without_response(small) is not small
    assert without_response(large) is large


async def test_a_resumed_partition_does_not_wait_for_a_held_fetch() -> None:
    """The broker holds a fetch of an idle partition for longer than the test.

    The records of the resumed partition arrive at once.
    """
    broker = filled(3, partitions=2)
    broker.logs[T0].start_offset = broker.logs[T0].end_offset

    def session(body: Any, response: FetchResponse) -> None:
        response.session_id = 7

    broker.fetch_hook = session
    async with broker.client(Consumer, fetch_max_wait_ms=600_000) as consumer:
        consumer.assign([T0, T1])
        consumer.pause(T1)
        while len(broker.seen(ApiKey.FETCH)) < 2:
            await consumer.getmany(timeout_ms=20)
        consumer.seek(T1, 0)
        consumer.resume(T1)
        assert (await consumer.getone()).partition == 1
    asked = [
        (f.session_epoch, [p.partition for t in f.topics for p in t.partitions]) for f in broker.seen(ApiKey.FETCH)
    ]
    assert asked[:3] == [(0, [0]), (1, []), (2, [1])]


class Elected(FakeBroker):
    """Ten records of leader epoch 2; setting ``epoch`` changes the epoch in metadata."""

    def __init__(self) -> None:
        super().__init__({"t": 1})
        self.epoch = 2
        self.metadata_hook = self.set_epoch
        self.fill(10)

    def fill(self, count: int) -> None:
        log = self.logs[T0]
        for number in range(count):
            log.append(build_batch([(None, b"%d" % number, [], 0)]))
            stored = bytearray(log.batches[-1])
            set_base_offset(stored, log.end_offset - 1, 2)
            log.batches[-1] = bytes(stored)

    def set_epoch(self, response: MetadataResponse) -> None:
        response.topics[0].partitions[0].leader_epoch = self.epoch

    def ends(self, body: Any) -> OffsetForLeaderEpochResponse:
        return by_partition(OffsetForLeaderEpochResponse, {"t": {0: {"leader_epoch": 2, "end_offset": 10}}})


@pytest.mark.parametrize(("fetch_version", "asks"), [(12, False), (11, True)])
async def test_offset_for_leader_epoch_is_sent_only_where_fetches_report_no_divergence(
    fetch_version: int, asks: bool
) -> None:
    """OffsetForLeaderEpoch (KIP-320) is sent only for fetch versions below 12.

    From version 12 on a fetch names the last fetched epoch, and the response names the divergence (KIP-595).
    """
    broker = Elected()
    broker.answers[ApiKey.OFFSET_FOR_LEADER_EPOCH] = broker.ends
    broker.max_versions[ApiKey.FETCH] = fetch_version
    async with broker.client(Consumer, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer:
        consumer.assign([T0])
        assert len(await read(consumer, 10)) == 10
        broker.epoch = 3
        await consumer._metadata.refresh()
        broker.fill(1)
        assert (await consumer.getone()).offset == 10
    assert bool(broker.seen(ApiKey.OFFSET_FOR_LEADER_EPOCH)) is asks


@pytest.mark.parametrize(("end", "again"), [(4, [4, 5]), (10, []), (12, [])])
async def test_a_diverging_fetch_moves_the_position_back_to_the_divergence(end: int, again: list[int]) -> None:
    """A divergence before the position moves the position back.

    After any other divergence, reading continues at the position, with the epoch that the leader knows.
    """
    broker = Elected()
    positions: list[tuple[int, int]] = []

    def differs(body: Any, response: FetchResponse) -> None:
        for topic, asked in zip(response.responses, body.topics, strict=True):
            (found,), (position,) = topic.partitions, asked.partitions
            if position.current_leader_epoch == 3:
                if position.last_fetched_epoch != 1:
                    found.diverging_epoch, found.records = FetchEpochEnd(epoch=1, end_offset=end), b""
                positions.append((position.fetch_offset, position.last_fetched_epoch))

    broker.fetch_hook = differs
    async with broker.client(Consumer, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer:
        consumer.assign([T0])
        assert len(await read(consumer, 10)) == 10
        broker.epoch = 3
        await consumer._metadata.refresh()
        while len(positions) < 2:
            await anyio.sleep(0.001)  # polls: until the consumer has seen the divergence
        assert positions[:2] == [(10, 2), (min(end, 10), 1)]
        broker.fill(1)
        found = [(await consumer.getone()).offset for _ in range(len(again) or 1)]
        assert found == (again or [10])


async def test_a_fetch_of_an_older_leader_epoch_is_repeated_as_soon_as_the_newer_one_is_known() -> None:
    """Metadata with the newer epoch ends the pause after the refusal, and no other backoff applies."""
    broker = Elected()

    def fence(body: Any, response: FetchResponse) -> None:
        for topic, asked in zip(response.responses, body.topics, strict=True):
            if asked.partitions[0].current_leader_epoch < 3:
                broker.epoch, found = 3, topic.partitions[0]
                found.error_code, found.records = ErrorCode.FENCED_LEADER_EPOCH, b""

    broker.fetch_hook = fence
    pauses = ("retry_backoff_ms", "retry_backoff_max_ms", "layout_backoff_ms", "layout_backoff_max_ms")
    longer_than_a_test = dict.fromkeys(pauses, 600_000)
    async with broker.client(Consumer, auto_offset_reset="earliest", **longer_than_a_test) as consumer:
        consumer.assign([T0])
        assert (await consumer.getone()).offset == 0
    assert len(broker.seen(ApiKey.METADATA)) == 2


async def test_a_lost_session_starts_again_with_a_full_fetch() -> None:
    broker = filled(10)
    fetches: list[int] = []

    def forget(body: Any, response: FetchResponse) -> None:
        fetches.append(body.session_epoch)
        response.session_id = 7
        if body.session_epoch > 0:
            response.error_code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            response.responses = []

    broker.fetch_hook = forget
    async with broker.client(Consumer, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer:
        consumer.assign([T0])
        assert len(await read(consumer, 10)) == 10
        while fetches[:3] != [0, 1, 0]:
            await consumer.getmany(timeout_ms=20)


async def test_reading_follows_pause_and_seek_and_the_ends_of_a_log_are_found() -> None:
    async with filled(20, partitions=2).client(
        Consumer, auto_offset_reset="earliest", fetch_max_wait_ms=20
    ) as consumer:
        consumer.assign([T0, T1])
        consumer.pause(T0)
        assert {r.partition for r in await read(consumer, 20)} == {1}
        assert consumer.paused() == {T0}
        consumer.resume(T0)
        consumer.seek(T0, 15)
        assert [r.offset for r in await read(consumer, 5)] == [15, 16, 17, 18, 19]
        await consumer.seek_to_beginning(T0)
        assert await consumer.position(T0) == 0
        await consumer.seek_to_end(T0)
        assert await consumer.position(T0) == 20
        assert await consumer.end_offsets([T0, T1]) == {T0: 20, T1: 20}
        assert await consumer.beginning_offsets([T0]) == {T0: 0}
        assert await consumer.partitions_for_topic("t") == {0, 1}


async def test_an_offset_out_of_range_is_reset_or_raises_by_policy() -> None:
    broker = filled(10)
    broker.logs[T0].start_offset = 4
    async with broker.running():
        async with Consumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 2)
            assert (await consumer.getone()).offset == 4
        async with Consumer(bootstrap_servers=broker.address, auto_offset_reset="none") as consumer:
            consumer.assign([T0])
            with pytest.raises(NoOffsetForPartitionError):
                await consumer.getmany(timeout_ms=5000)
            consumer.seek(T0, 99)
            with pytest.raises(OffsetOutOfRangeError) as raised:
                await consumer.getmany(timeout_ms=5000)
            assert raised.value.offsets == {T0: 99}


def damage(broker: FakeBroker, number: int) -> None:
    """Flip the last bit of a stored batch."""
    stored = bytearray(broker.logs[T0].batches[number])
    stored[-1] ^= 1
    broker.logs[T0].batches[number] = bytes(stored)


async def test_a_bad_crc_is_reported_after_the_good_records() -> None:
    broker = filled(20)
    damage(broker, 1)
    async with broker.client(Consumer, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        assert [r.offset for r in await read(consumer, 10)] == list(range(10))
        with pytest.raises(KafkaError, match="CRC32C") as raised:
            await consumer.getmany(timeout_ms=5000)
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
        assert await consumer.position(T0) == 10


@pytest.mark.parametrize("padding", [0, 400_000])
async def test_a_consumer_stays_before_a_batch_that_decompresses_to_too_much(padding: int) -> None:
    """The position moves only when the user seeks. ``padding``: also for records that are not kept decompressed."""
    broker, limit = FakeBroker({"t": 1}), 20_000 + padding
    for value, codec in ((b"a", CompressionType.NONE), (bytes(limit), CompressionType.GZIP), (b"c", 0)):
        broker.logs[T0].append(build_batch([(b"k", value, (), 1_000)], compression=CompressionType(codec)))
    config: Any = {"auto_offset_reset": "earliest", "max_decompressed_batch_bytes": limit}
    async with broker.client(Consumer, **config) as consumer:
        consumer.assign([T0])
        text = rf"t-0: the batch of \d+ bytes at offset 1: .* {limit} bytes allowed by max_decompressed_batch_bytes"
        assert (await consumer.getone()).value == b"a"
        for _ in range(2):
            with pytest.raises(KafkaError, match=text + r"\. Raise it, or seek to offset 2$") as raised:
                await consumer.getone()
            assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
            assert await consumer.position(T0) == 1
        consumer.seek(T0, 2)
        assert (await consumer.getone()).value == b"c"


def test_the_size_of_a_batch_is_judged_once() -> None:
    """Each call for one record would decompress the whole batch again."""
    raw = build_batch([(None, bytes(1_000), (), 0)] * 1_000, compression=CompressionType.GZIP)
    batch = RecordBatch(raw, 1_200_000)
    state = AssignedPartition(T0)
    state.seek(0)
    state.add(FetchedBatch(batch, 0))
    assert len(state.take(1)) == 1
    batch.buffer = memoryview(bytes(len(raw)))  # it cannot be decompressed any more
    assert len(state.take(1)) == 1
    assert state.error is None


def test_a_paused_partition_delivers_no_record_before_its_error() -> None:
    """The record was taken, and the batch after it refused; then the reader paused without having read the record."""
    subscription = Subscription()
    subscription.assign([T0])
    state = subscription.state(T0)
    state.seek(0)
    state.add(FetchedBatch(RecordBatch(build_batch([(None, b"v", (), 0)])), 0))
    large = build_batch([(None, bytes(1_000), (), 0)], compression=CompressionType.GZIP, base_offset=1)
    state.add(FetchedBatch(RecordBatch(large, 100), 1))
    state.give_back(state.take(9), 0)
    state.paused = True
    assert subscription.collect(9, (), Deserializers()) == {}
    state.paused = False
    assert len(subscription.collect(9, (), Deserializers())[T0]) == 1
    with pytest.raises(KafkaError, match="seek to offset 2"):
        subscription.collect(9, (), Deserializers())


async def test_records_that_are_read_one_by_one_move_the_position_one_by_one() -> None:
    """Between two of them anything may happen: a seek, a look for many records, a pause, a faulty record, Ctrl-C."""
    faulty, interrupted = 23, 26

    def number(data: bytes | None) -> int:
        assert data is not None
        if data == b"%d" % faulty:
            raise ValueError("a faulty record")
        if data == b"%d" % interrupted:
            raise KeyboardInterrupt
        return int(data)

    async with filled(60, per_batch=20).client(
        Consumer, auto_offset_reset="earliest", value_deserializer=number, max_poll_records=7
    ) as consumer:
        consumer.assign([T0])

        async def reads(*values: int) -> None:
            for value in values:
                record = await anext(consumer)
                assert (record.value, record.offset, record.key) == (value, value, b"k")
                assert await consumer.position(T0) == value + 1

        await reads(*range(5))
        consumer.seek(T0, 2)
        await reads(*range(2, 9))
        found = (await consumer.getmany(timeout_ms=5000, max_records=3))[T0]
        assert [record.value for record in found] == [9, 10, 11]
        await reads(*range(12, faulty))
        with pytest.raises(RecordDeserializationError, match="a faulty record"):
            await consumer.getone()
        assert await consumer.position(T0) == faulty + 1
        await reads(*range(faulty + 1, interrupted))
        with pytest.raises(KeyboardInterrupt):
            await consumer.getone()
        await reads(*range(interrupted + 1, 30))
        consumer.pause(T0)
        assert await consumer.poll(0.01) is None and await consumer.position(T0) == 30
        consumer.resume(T0)
        await reads(*range(30, 60))
        assert consumer.metrics()[CONSUMER_TRAFFIC]["records-consumed-total"] == 60 + 3


async def test_calls_without_an_assignment_a_group_or_an_open_client_raise() -> None:
    async with filled(1).running() as broker:
        async with Consumer(bootstrap_servers=broker.address) as consumer:
            with pytest.raises(IllegalStateError, match="not assigned"):
                consumer.seek(T0, 1)
            with pytest.raises(IllegalStateError, match="group_id"):
                await consumer.commit()
        with pytest.raises(ClientClosedError):
            await consumer.getmany()


async def test_a_poll_that_the_user_cancels_loses_no_record() -> None:
    async with filled(500, per_batch=50).client(Consumer, auto_offset_reset="earliest", max_poll_records=7) as consumer:
        consumer.assign([T0])
        seen: list[int] = []
        while len(seen) < 500:
            with anyio.move_on_after(0.002):
                seen += [r.offset for r in (await consumer.getmany(timeout_ms=5000)).get(T0, [])]
        assert seen == list(range(500))
