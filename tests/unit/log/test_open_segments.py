"""A sealed segment has neither descriptors nor indexes in memory while it is not in use."""

from __future__ import annotations

import os

import pytest
import trio

from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogManager
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.time_search import TimeSearch
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import FileRange
from tests.support.log.log_fixture import TOPIC_ID, LogFixture, batch, values

pytestmark = pytest.mark.trio

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
SIZE = len(batch(b"value"))
SEGMENTS = 40
DEADLINE_S = 60
CONFIG = LogConfig(segment_bytes=2 * SIZE, index_interval_bytes=SIZE // 2)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def files_of(log_fixture: LogFixture) -> list[str]:
    """Return the partition's open files. Files of another test's abandoned log may be open, too."""
    return [name for name in open_files() if name.startswith(f"{log_fixture.root}/d/a-0/")]


def indexes_in_memory(log: PartitionLog) -> int:
    return sum(
        index._data is not None
        for segment in log.segments
        for index in (segment.offset_index, segment.time_index, segment.txn_index)
    )


def fill(log: PartitionLog, segments: int = SEGMENTS) -> None:
    for _ in range(2 * segments):
        log.append_as_leader(batch(b"value"), 0)
    log.advance_high_watermark(log.log_end_offset)


def read(log: PartitionLog, offset: int) -> FileRange:
    records = log.read(offset, 1, upper_bound=log.log_end_offset).records
    assert not isinstance(records, bytes)
    return records


async def start(log_fixture: LogFixture, limit: int) -> LogManager:
    return await log_fixture.started(topic_defaults=CONFIG, open_segments=limit)


async def test_flushed_segments_are_closed(log_fixture: LogFixture) -> None:
    manager = await start(log_fixture, limit=10)
    log = manager.create(A, TOPIC_ID, 1)
    before = descriptors()
    fill(log)
    assert len(log.segments) == SEGMENTS
    await log.flush()
    assert descriptors() <= before + 1
    assert indexes_in_memory(log) <= 3, "the indexes of the segment that takes appends"


@pytest.mark.parametrize("clean", [True, False])
async def test_a_log_has_no_open_files_before_it_is_used(log_fixture: LogFixture, clean: bool) -> None:
    manager = await start(log_fixture, limit=10)
    fill(manager.create(A, TOPIC_ID, 1))
    if clean:
        await manager.shutdown()
    else:
        manager.close_at_once()
        with trio.fail_after(DEADLINE_S):
            while files_of(log_fixture):  # a thread that flushes a segment closes it afterwards
                await trio.sleep(0.005)  # polls: the thread has no event
    manager = await start(log_fixture, limit=10)
    log = manager.get(A)
    assert log is not None
    held = files_of(log_fixture)
    assert (held, indexes_in_memory(log)) == ([], 0)
    log.append_as_leader(batch(b"value"), 0)
    await log.flush()
    assert len(files_of(log_fixture)) == 1
    assert len(values(log)) == 2 * SEGMENTS + 1


def open_files() -> list[str]:
    names = []
    for name in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return names


async def test_readers_keep_a_bounded_number_of_segments_open_over_all_logs(log_fixture: LogFixture) -> None:
    manager = await start(log_fixture, limit=10)
    logs = [manager.create(partition, TOPIC_ID, 1) for partition in (A, B)]
    for log in logs:
        fill(log, 50)
        await log.flush()
    before = descriptors()
    for log in logs:
        assert len(values(log)) == 100
        search = TimeSearch(log, 0)
        assert search.advance() and search.found is not None
    assert descriptors() <= before + 10
    assert sum(indexes_in_memory(log) for log in logs) <= 3 * (10 + 2)
    assert len(manager.open_segments) == 10
    manager.delete(A)
    manager.delete(B)
    assert len(manager.open_segments) == 0


async def test_a_range_that_is_being_sent_keeps_its_file(log_fixture: LogFixture) -> None:
    manager = await start(log_fixture, limit=1)
    log = manager.create(A, TOPIC_ID, 1)
    fill(log, 5)
    await log.flush()
    first = read(log, 0)
    expected = first.read()
    before = descriptors()
    read(log, 2)  # closes the first segment
    manager.delete(A)
    assert first.read() == expected
    del first
    assert descriptors() < before


async def test_a_segment_that_is_not_synced_stays_open(log_fixture: LogFixture) -> None:
    """Only the open file can report a write that fails later."""
    manager = await start(log_fixture, limit=1)
    log = manager.create(A, TOPIC_ID, 1)
    before = descriptors()
    fill(log, 5)
    values(log)
    log.release_caches()
    assert descriptors() == before + 5
    await log.flush()
    assert descriptors() <= before + 2


async def test_a_log_without_recent_appends_holds_no_descriptor(log_fixture: LogFixture) -> None:
    manager = await start(log_fixture, limit=1)
    before = descriptors()
    log = manager.create(A, TOPIC_ID, 1)
    assert descriptors() == before  # it has no records yet
    wanted: list[PartitionLog] = []
    log.on_flush_needed = wanted.append
    fill(log, 1)
    log.release_caches()
    assert (descriptors(), wanted) == (before + 1, [])  # it was appended to since the last call
    log.release_caches()
    assert (descriptors(), wanted) == (before + 1, [log])  # only the open file reports a write that fails later
    await log.flush()
    log.release_caches()
    assert descriptors() == before
    fill(log, 1)
    assert len(values(log)) == 4


async def test_a_log_that_had_deleted_segments_before_it_was_hosted_is_asked_for_files_to_remove(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery, and the copy of a log to another log dir, delete segments too."""
    manager = await start(log_fixture, limit=1)
    asked: list[TopicPartition] = []
    monkeypatch.setattr(PartitionLog, "has_deleted_files", property(lambda log: log.partition not in asked))
    monkeypatch.setattr(PartitionLog, "remove_due_files", lambda log: asked.append(log.partition))
    manager.create(A, TOPIC_ID, 1)
    await manager.maintenance.remove_deleted()
    assert asked == [A]


async def test_only_logs_with_deleted_segments_are_asked_for_files_to_remove(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = await start(log_fixture, limit=1)
    logs = [manager.create(partition, TOPIC_ID, 1) for partition in (A, B)]
    asked: list[TopicPartition] = []
    remove = PartitionLog.remove_due_files

    def noted(log: PartitionLog) -> int:
        asked.append(log.partition)
        return remove(log)

    monkeypatch.setattr(PartitionLog, "remove_due_files", noted)
    fill(logs[0], 3)
    logs[0].truncate_to(0)
    assert logs[0].has_deleted_files
    await manager.maintenance.remove_deleted()
    assert set(asked) == {A}
    log_fixture.clock.ms += 3_600_000
    await manager.maintenance.remove_deleted()
    assert not logs[0].has_deleted_files
    asked.clear()
    await manager.maintenance.remove_deleted()
    assert asked == []
