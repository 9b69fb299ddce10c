"""Every operation that could hold a broker's event loop for long, at size, while a probe watches the loop.

Bounds are on what is done between two moments at which other tasks run: steps, records, bytes. Of what the disk has to
be waited for the bound is none. Time is never asserted. A new operation of that kind gets its line here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.log.cold_reads import load_records
from broker.log.log_config import LogConfig
from broker.log.log_manager import LogManager, LogManagerConfig
from broker.log.partition_log import PartitionLog
from broker.log.time_search import TimeSearch
from protocol.batch_builder import build_batch
from protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.types import TopicPartition
from runtime.sim_zk import FakeZk
from tests.broker_harness import OneBroker, one_broker
from tests.cold_disk import ColdDisk
from tests.log_world import START_MS, TOPIC_ID, LogWorld, batch, idempotent

pytestmark = pytest.mark.trio
T = TopicPartition("t", 0)

# ---------------------------------------------------------------- what the page cache has dropped

BATCHES = 60
SMALL_SEGMENTS = LogConfig(
    segment_bytes=20 * len(batch(b"value")), index_interval_bytes=1, cleanup_policy=("compact",), retention_ms=-1
)


def record(number: int) -> bytearray:
    return idempotent(number, keys=[b"%d" % (number % 7)], timestamp=START_MS + 1000 * number)


async def cold_logs(world: LogWorld, disk: ColdDisk) -> LogManager:
    """A started manager of one log of several segments, of which nothing is in the page cache."""
    dirs = (str(world.root / "d"), str(world.root / "e"))
    manager = LogManager(LogManagerConfig(1, "c", dirs, SMALL_SEGMENTS), world.env)
    await manager.start()
    log = manager.create(T, TOPIC_ID, 1, SMALL_SEGMENTS)
    for number in range(BATCHES):
        log.append_as_leader(record(number), 0)
    log.advance_high_watermark(log.log_end_offset)
    await manager.shutdown()
    manager = LogManager(LogManagerConfig(1, "c", dirs, SMALL_SEGMENTS), world.env)
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
    await search.finish(manager._env.clock)
    assert search.found is None
    search = TimeSearch(log_of(manager), START_MS)
    await search.finish(manager._env.clock)
    assert search.found == (START_MS, 0, 0)


async def compact(manager: LogManager) -> None:
    log = log_of(manager)
    log.update_config(LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0))
    before = log.size_bytes
    assert await manager.cleaner.clean_dirtiest()
    assert log.size_bytes < before


async def read_whole(manager: LogManager) -> None:
    """As a move to another log dir does, and a group coordinator."""
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
    manager = await cold_logs(LogWorld(tmp_path), disk)
    await work(manager)
    assert disk.waited == [] and disk.reads_in_threads > 0
    manager.close_at_once()


async def fetch(broker: OneBroker, isolation: int) -> None:
    asked = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in range(3)]
    request = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        topics=[FetchTopic(topic="t", partitions=asked)],
    )
    found = (await broker.request(request)).responses[0].partitions
    assert [len(partition.records) > 0 for partition in found] == [True] * 3


async def fetch_uncommitted(broker: OneBroker) -> None:
    await fetch(broker, 0)


async def fetch_committed(broker: OneBroker) -> None:
    await fetch(broker, 1)


async def list_offsets(broker: OneBroker) -> None:
    asked = [ListOffsetsPartition(partition_index=index, timestamp=START_MS + 5) for index in range(3)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asked)])
    found = (await broker.request(request)).topics[0].partitions
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
            data = [PartitionProduceData(index=index, records=record) for index in range(3)]
            topics = [TopicProduceData(name="t", partition_data=data)]
            await broker.request(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics))
    async with one_broker(tmp_path, settings, zk) as broker:
        await broker.create_topic("t", 3, leader_epoch=1)
        disk.drop()
        await ask(broker)
        assert disk.waited == [] and disk.reads_in_threads > 0
