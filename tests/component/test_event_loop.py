"""Runs each operation that could block a broker's event loop for long, with large input. A probe watches the loop.

The bounds limit the work between two points at which other tasks run: steps, records, bytes. The bound is zero for work
that waits for the disk. No time is asserted. A new operation of this kind gets a line here.

Other files test similar work:

- ``test_large_requests``: requests of very many partitions, and large metadata;
- ``test_large_batches``: batches whose keys are checked against the layout;
- ``contract/test_cold_ranges``: sending cold records;
- ``unit/broker/replication/test_settings``: a configuration of all topics;
- ``unit/runtime/test_reclaimer`` and ``unit/log/test_log_manager``: deletion;
- ``unit/log/test_large_truncation``: the truncation of a large tail;
- ``unit/coordinator/test_sweeps``: the offsets of very many groups;
- ``unit/runtime/test_garbage_collection``: garbage collections;
- ``unit/runtime/test_log_output``: log lines without a reader.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from anabranch.broker.log import producer_rebuild, time_search
from anabranch.broker.log.compaction import KeyOffsets
from anabranch.broker.log.load_records import load_records
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogManager, LogManagerConfig
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.pieces import PIECE_BATCHES
from anabranch.broker.log.producer_capture import PRODUCERS_AT_ONCE, ProducerCapture
from anabranch.broker.log.producer_rebuild import catch_up
from anabranch.broker.log.segment import LogSegment
from anabranch.broker.log.slices import TimeSlice
from anabranch.broker.log.time_search import TimeSearch
from anabranch.broker.replication.fetcher import ReplicaFetcher
from anabranch.broker.replication.fetcher_config import FetcherConfig
from anabranch.protocol import batch_builder, records
from anabranch.protocol.batch_builder import RECORDS_AT_ONCE, BatchBuilder, build_batch
from anabranch.protocol.batch_layout import SMALL_BODY_BYTES
from anabranch.protocol.compression import CompressionType, CorruptRecordError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from anabranch.protocol.records import RecordBatch, iter_batches, set_base_offset
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.real_trio import TrioNetwork
from sim.zk import FakeZk
from tests.support.broker import requests
from tests.support.broker.broker_harness import OneBroker, one_broker
from tests.support.broker.loop_probe import LoopProbe
from tests.support.broker.replica_cluster import KEY, ReplicaCluster
from tests.support.log.cold_disk import ColdDisk
from tests.support.log.log_fixture import START_MS, TOPIC_ID, LogFixture, ManualClock, batch, idempotent, read_all

pytestmark = pytest.mark.trio
T = TopicPartition("t", 0)
FETCHER = FetcherConfig(2, 1 << 20, 1, 1 << 20, 500, 1.0, 30.0, flushes=True)

# ---------------------------------------------------------------- the table


class Operation(NamedTuple):
    """An operation. ``most`` is the limit of steps between two pauses.

    ``run`` performs the operation under the probe, and returns the least number of steps that the probe must count.
    """

    run: Callable[[LogFixture, pytest.MonkeyPatch, LoopProbe], Awaitable[int]]
    most: int


def count_calls(patches: pytest.MonkeyPatch, probe: LoopProbe, owner: type, name: str) -> None:
    """Count each call of a function as a step."""
    real = getattr(owner, name)

    def counted(*arguments: Any) -> Any:
        probe.step()
        return real(*arguments)

    patches.setattr(owner, name, counted)


def count_headers(patches: pytest.MonkeyPatch, probe: LoopProbe) -> None:
    """Count each read of a batch header as a step."""
    batches = LogSegment.batches

    def counted(segment: LogSegment, position: int = 0) -> Iterator[Any]:
        for found in batches(segment, position):
            probe.step()
            yield found

    patches.setattr(LogSegment, "batches", counted)


async def search_unsorted_times(log_fixture: LogFixture, patches: pytest.MonkeyPatch, probe: LoopProbe) -> int:
    """Search by time among equal timestamps, where no index helps."""
    log = log_fixture.create()
    for _ in range(3000):
        log.append_as_leader(batch(b"v"), 3)
    log.append_as_leader(batch(b"late", timestamp=START_MS + 50), 3)
    count_headers(patches, probe)
    search = TimeSearch(log, START_MS + 1)
    await search.finish(log_fixture.clock)
    assert search.found == (START_MS + 50, 3000, 3)
    return 3000


async def truncate_a_large_segment(log_fixture: LogFixture, patches: pytest.MonkeyPatch, probe: LoopProbe) -> int:
    log = log_fixture.create()
    for number in range(3000):
        log.append_as_leader(idempotent(number // 100, producer_id=number % 100), 0)
    count_headers(patches, probe)
    asked: list[PartitionLog] = []
    log.on_producers_behind = asked.append
    assert log.truncate_to(2990)
    assert log.log_end_offset == 2990 and asked == [log]
    await catch_up(log)
    assert log.rebuild is None
    patches.undo()  # further reads are not counted
    assert sorted(log.producers.snapshot()) == sorted((await log_fixture.reopen()).producers.snapshot())
    return 2990


async def snapshot_many_producers(log_fixture: LogFixture, patches: pytest.MonkeyPatch, probe: LoopProbe) -> int:
    log = log_fixture.create()
    one = RecordBatch(idempotent(0))
    log.append_as_leader(idempotent(0), 0)
    for one.producer_id in range(100_000):
        log.producers.record(one, 0, START_MS)
    step = ProducerCapture.step

    def counted(capture: ProducerCapture) -> bool:
        before = len(capture.pending)
        more = step(capture)
        probe.step(before - len(capture.pending))
        return more

    patches.setattr(ProducerCapture, "step", counted)
    log.roll()
    await log.snapshots.write_begun(log_fixture.env.clock)
    assert log.snapshots.offsets == [log.log_end_offset]
    return 100_000


async def take_a_large_answer(_log_fixture: LogFixture, patches: pytest.MonkeyPatch, probe: LoopProbe) -> int:
    """Append 10 MiB from a leader, in small batches."""
    cluster = ReplicaCluster.led_by(1, [1, 2])
    fetcher = ReplicaFetcher(1, FETCHER, cluster.clock, TrioNetwork(), lambda: None, lambda: 1, cluster.throttle)
    follower = cluster[2].partition
    follower.log.update_config(LogConfig())
    fetcher.follow(follower)
    fetcher._plan.request(fetcher._followed, FETCHER, 1, 0)
    one = batch(bytes(900))
    count = (10 << 20) // len(one)
    answer = cluster.ask(2, 1)
    answer.records = bytearray(one) * count
    for number in range(count):
        set_base_offset(memoryview(answer.records)[number * len(one) :], number, 0)
    count_calls(patches, probe, LogSegment, "append")
    topic = FetchableTopicResponse(topic=KEY.topic, partitions=[answer])
    channel: Any = None
    for wait in fetcher._take(channel, FetchResponse(responses=[topic]), fetcher._plan.asked):
        await wait()
    assert follower.log.log_end_offset == count
    assert fetcher._plan._changed == {KEY: None}, "the next fetch continues after these records"
    return count


async def compact_a_batch_of_many_records(
    log_fixture: LogFixture, patches: pytest.MonkeyPatch, probe: LoopProbe
) -> int:
    """Compact a batch in which each key occurs twice: every second record stays."""
    many = 200_000
    config = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, max_message_bytes=1 << 30)
    manager = LogManager(LogManagerConfig(1, "c", (str(log_fixture.root / "d"),), config), log_fixture.env)
    await manager.start()
    log = manager.create(T, TOPIC_ID, 1, config)
    log.append_as_leader(batch(*[b"1"] * many, keys=[b"%d" % (number // 2) for number in range(many)]), 0)
    log.roll()
    log.advance_high_watermark(log.log_end_offset)
    patches.setattr(TimeSlice, "due", lambda work: True)
    synced_by: list[int] = []
    fdatasync = os.fdatasync

    def noted(descriptor: int) -> None:
        synced_by.append(threading.get_ident())
        fdatasync(descriptor)

    patches.setattr(os, "fdatasync", noted)
    count_calls(patches, probe, KeyOffsets, "is_latest")
    assert await manager.cleaner.clean_dirtiest()
    assert synced_by and threading.get_ident() not in synced_by, "the event loop does not sync the checkpoint either"
    assert [each.count for each in read_all(log)] == [many // 2]
    manager.close_at_once()
    return many


OPERATIONS = {
    "a look-up by time over unsorted timestamps": Operation(search_unsorted_times, time_search.STEPS_AT_ONCE),
    # The first steps also include the reads after the last index entry, which find the log's end.
    "truncation of a large segment": Operation(truncate_a_large_segment, 2 * producer_rebuild.STEPS_AT_ONCE + 60),
    "a snapshot of 100,000 producers": Operation(snapshot_many_producers, PRODUCERS_AT_ONCE),
    "a follower's answer of 10 MiB": Operation(take_a_large_answer, PIECE_BATCHES),
    "compaction of a batch of 200,000 records": Operation(compact_a_batch_of_many_records, RECORDS_AT_ONCE),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_large_operation_lets_other_tasks_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation, probe = OPERATIONS[name], LoopProbe()
    with probe.watching():
        at_least = await operation.run(LogFixture(tmp_path), monkeypatch, probe)
    assert probe.steps >= at_least > operation.most >= probe.most_steps > 0


# ---------------------------------------------------------------- files outside the page cache

BATCHES = 60
SMALL_SEGMENTS = LogConfig(
    segment_bytes=20 * len(batch(b"value")), index_interval_bytes=1, cleanup_policy=("compact",), retention_ms=-1
)


def record(number: int) -> bytearray:
    return idempotent(number, keys=[b"%d" % (number % 7)], timestamp=START_MS + 1000 * number)


async def cold_logs(log_fixture: LogFixture, disk: ColdDisk) -> LogManager:
    """A started manager of one log with several segments, none of which is in the page cache."""
    dirs = (str(log_fixture.root / "d"), str(log_fixture.root / "e"))
    manager = LogManager(LogManagerConfig(1, "c", dirs, SMALL_SEGMENTS), log_fixture.env)
    await manager.start()
    log = manager.create(T, TOPIC_ID, 1, SMALL_SEGMENTS)
    for number in range(BATCHES):
        log.append_as_leader(record(number), 0)
    log.advance_high_watermark(log.log_end_offset)
    await manager.shutdown()
    manager = LogManager(LogManagerConfig(1, "c", dirs, SMALL_SEGMENTS), log_fixture.env)
    await manager.start()
    disk.drop()
    return manager


def log_of(manager: LogManager) -> PartitionLog:
    log = manager.get(T)
    assert log is not None and len(log.segments) >= 3
    log.advance_high_watermark(log.log_end_offset)
    return log


async def search_by_time(manager: LogManager) -> None:
    search = TimeSearch(log_of(manager), START_MS + 1_000_000)
    search.advance(10)
    await search.finish(ManualClock())
    assert search.found is None
    search = TimeSearch(log_of(manager), START_MS)
    await search.finish(ManualClock())
    assert search.found == (START_MS, 0, 0)


async def compact(manager: LogManager) -> None:
    log = log_of(manager)
    log.update_config(LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0))
    before = log.size_bytes
    assert await manager.cleaner.clean_dirtiest()
    assert log.size_bytes < before


async def read_whole(manager: LogManager) -> None:
    """Read the whole log, as a move to another log dir and a group coordinator do."""
    log, offset = log_of(manager), 0
    while offset < BATCHES:
        data = await load_records(log, offset, 300)
        assert data
        offset += len(data) // len(record(0))


@pytest.mark.parametrize("work", [search_by_time, compact, read_whole], ids=lambda work: work.__name__)
async def test_work_on_a_cold_log_waits_for_the_disk_in_threads(
    work: Callable[[LogManager], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk(monkeypatch)
    manager = await cold_logs(LogFixture(tmp_path), disk)
    await work(manager)
    assert disk.waited == [] and disk.reads_in_threads > 0
    manager.close_at_once()


async def fetch(broker: OneBroker, isolation: int) -> None:
    request = requests.fetch(*range(3), max_wait_ms=60_000, isolation_level=isolation)
    found = (await broker.request(request)).responses[0].partitions
    assert [len(partition.records) > 0 for partition in found] == [True] * 3


async def fetch_uncommitted(broker: OneBroker) -> None:
    await fetch(broker, 0)


async def fetch_committed(broker: OneBroker) -> None:
    await fetch(broker, 1)


async def list_offsets(broker: OneBroker) -> None:
    found = (await broker.request(requests.list_offsets(*range(3), timestamp=START_MS + 5))).topics[0].partitions
    assert [partition.offset for partition in found] == [5] * 3


@pytest.mark.parametrize("ask", [fetch_uncommitted, fetch_committed, list_offsets], ids=lambda ask: ask.__name__)
async def test_a_request_for_cold_records_waits_for_the_disk_in_threads(
    ask: Callable[[OneBroker], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk(monkeypatch)
    zk = FakeZk()
    settings = {"log.segment.bytes": "400", "log.index.interval.bytes": "1"}
    async with one_broker(tmp_path, settings, zk) as broker:
        await broker.create_topic("t", 3)
        for number in range(20):
            record = build_batch([(b"k", b"v", (), START_MS + number)])
            await broker.request(requests.produce(*[record] * 3))
    async with one_broker(tmp_path, settings, zk) as broker:
        await broker.create_topic("t", 3, leader_epoch=1)
        disk.drop()
        await ask(broker)
        assert disk.waited == [] and disk.reads_in_threads > 0


# ---------------------------------------------------------------- batches of many records, or of very many bytes

RECORDS = 6 * RECORDS_AT_ONCE + 7
MANY_BYTES = 8 * SMALL_BODY_BYTES


class CodecWatch:
    """Counts the bytes that codecs process and the records that are read and written, in the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.probe = LoopProbe()
        self.most_bytes = 0
        """The largest number of bytes decompressed or compressed in one piece in the event loop."""
        self.in_threads = 0
        loop_thread = threading.get_ident()
        self._real = records.decompress, batch_builder.compress

        def note(size: int) -> None:
            if threading.get_ident() == loop_thread:
                self.most_bytes = max(self.most_bytes, size)
            else:
                self.in_threads += 1

        def decompress(codec: CompressionType, data: memoryview, max_bytes: int) -> bytes:
            try:
                found = self._real[0](codec, data, max_bytes)
            except CorruptRecordError as error:
                note(max_bytes if error.code == ErrorCode.MESSAGE_TOO_LARGE else 0)
                raise
            note(len(found))
            return found

        def compress(codec: CompressionType, data: memoryview, level: int | None = None) -> bytes:
            note(len(data))
            return self._real[1](codec, data, level)

        read, append_at = records.read_record, BatchBuilder.append_at

        def counted_read(*arguments: Any) -> Any:
            self.probe.step()
            return read(*arguments)

        def counted_append(*arguments: Any) -> Any:
            self.probe.step()
            return append_at(*arguments)

        monkeypatch.setattr(records, "decompress", decompress)
        monkeypatch.setattr(batch_builder, "compress", compress)
        monkeypatch.setattr(records, "read_record", counted_read)
        monkeypatch.setattr(BatchBuilder, "append_at", counted_append)


def of_many_records(codec: CompressionType) -> bytes:
    return build_batch([(b"k%d" % (n % 999), b"v", (), START_MS + n) for n in range(RECORDS)], compression=codec)


def of_many_bytes(codec: CompressionType) -> bytes:
    """Three records that compress well."""
    return build_batch([(b"k%d" % n, bytes(MANY_BYTES // 3), (), START_MS + n) for n in range(3)], compression=codec)


SETTINGS = {
    "read for a compacted topic": {"log.cleanup.policy": "compact"},
    "recompressed for its topic": {"compression.type": "gzip"},
    "read for the bounds of its timestamps": {"log.message.timestamp.before.max.ms": str(10**13)},
}


@pytest.mark.parametrize("build", [of_many_records, of_many_bytes], ids=lambda build: build.__name__)
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD], ids=lambda codec: codec.name)
@pytest.mark.parametrize("why", SETTINGS)
async def test_a_large_batch_is_processed_in_slices_and_threads(
    why: str,
    codec: CompressionType,
    build: Callable[[CompressionType], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = build(codec)
    async with one_broker(tmp_path, {"message.max.bytes": "100000000", **SETTINGS[why]}) as broker:
        await broker.create_topic("t")
        with monkeypatch.context() as patches:
            watch = CodecWatch(patches)
            with watch.probe.watching():
                result = (await broker.request(requests.produce(data))).responses[0].partition_responses[0]
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 0)
        count = RecordBatch(data).count
        assert watch.probe.steps >= count
        assert watch.probe.most_steps <= 2 * RECORDS_AT_ONCE, "one slice of reads and one of writes"
        assert watch.most_bytes <= SMALL_BODY_BYTES
        assert watch.in_threads > 0 or build is of_many_records
        await broker.request(requests.produce(build_batch([(b"next", b"v", (), START_MS)])))
        fetch = FetchRequest(max_bytes=1 << 30, topics=[FetchTopic(topic="t", partitions=[whole_partition()])])
        stored = (await broker.request(fetch)).responses[0].partitions[0].records
        first, following = iter_batches(stored)
        assert list(first) == list(RecordBatch(data)) and following.base_offset == count
        assert first.compression == (CompressionType.GZIP if "recompressed" in why else codec)


def whole_partition() -> FetchPartition:
    return FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)


async def test_a_compressed_batch_is_compacted_and_found_by_time_in_slices_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_fixture = LogFixture(tmp_path)
    config = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, max_message_bytes=1 << 30)
    manager = LogManager(LogManagerConfig(1, "c", (str(tmp_path / "d"),), config), log_fixture.env)
    await manager.start()
    log = manager.create(T, TOPIC_ID, 1, config)
    for data in (of_many_records(CompressionType.ZSTD), of_many_bytes(CompressionType.ZSTD)):
        log.append_as_leader(bytearray(data), 0)
    log.append_as_leader(batch(b"again", key=b"k0", timestamp=START_MS), 0)
    log.roll()
    log.advance_high_watermark(log.log_end_offset)
    watch = CodecWatch(monkeypatch)
    monkeypatch.setattr(TimeSlice, "due", lambda work: True)
    with watch.probe.watching():
        search = TimeSearch(log, START_MS + RECORDS - 1)
        search.advance(1000)
        await search.finish(log_fixture.clock)
        assert search.found == (START_MS + RECORDS - 1, RECORDS - 1, 0)
        assert watch.probe.most_steps <= RECORDS_AT_ONCE
        assert await manager.cleaner.clean_dirtiest()
    assert watch.probe.most_steps <= RECORDS_AT_ONCE and watch.most_bytes <= SMALL_BODY_BYTES
    assert watch.in_threads >= 3, "decompressed twice, compressed once"
    manager.close_at_once()
