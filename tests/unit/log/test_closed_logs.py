"""After a clean stop the next start opens logs by stored facts, and reads a log's files only if they changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.log import directory_loader, log_manager
from anabranch.broker.log.layout_history import LayoutEntry
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogManager
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import CLEAN_SHUTDOWN_MARKER, CLOSED_LOGS, PARTITION_METADATA
from anabranch.protocol.types import TopicPartition
from tests.support.log.log_fixture import TOPIC_ID, LogFixture, batch, idempotent, values

pytestmark = pytest.mark.trio

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
SIZE = len(batch(b"value"))
CONFIG = LogConfig(segment_bytes=3 * SIZE, index_interval_bytes=SIZE // 2)


@pytest.fixture
def read_logs(monkeypatch: pytest.MonkeyPatch) -> list[TopicPartition]:
    """The logs whose files were read at a start."""
    found: list[TopicPartition] = []
    original = directory_loader.open_log

    async def noted(env: Any, directory: str, partition: TopicPartition, *rest: Any, **more: Any) -> PartitionLog:
        found.append(partition)
        return await original(env, directory, partition, *rest, **more)

    monkeypatch.setattr(directory_loader, "open_log", noted)
    return found


def fill(manager: LogManager) -> None:
    log = manager.create(A, TOPIC_ID, 4)
    for number in range(8):
        log.append_as_leader(batch(b"value", timestamp=1_700_000_000_000 + 7 * number), number // 3)
    log.append_as_leader(idempotent(0), 5)
    log.layouts.assign(LayoutEntry(3, 1, 2, 1))
    log.advance_high_watermark(log.log_end_offset - 1)
    log.advance_log_start(2)
    manager.create(B, TOPIC_ID, 5, start_offset=9)


def state(log: PartitionLog) -> dict[str, Any]:
    return {
        "identity": log.identity.metadata,
        "offsets": (log.log_start_offset, log.high_watermark, log.log_end_offset, log.recovery_point),
        "epochs": log.leader_epoch_cache.entries,
        "layouts": log.layouts.entries,
        "segments": [segment.closed for segment in log.segments],
        "sealed": [(segment.is_sealed, segment.is_flushed) for segment in log.segments],
        "snapshots": log.snapshots.offsets,
        "producers": [(entry.producer_id, entry.latest()) for entry in log.producers.producers.values()],
        "producers_end": log.producers.map_end_offset,
        "synced": log.is_synced,
    }


async def test_a_log_is_opened_by_the_facts_as_by_its_files(
    log_fixture: LogFixture, read_logs: list[TopicPartition]
) -> None:
    manager = await log_fixture.started(topic_defaults=CONFIG)
    fill(manager)
    await manager.shutdown()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == []
    by_facts = {partition: state(manager.get(partition)) for partition in (A, B)}  # type: ignore[arg-type]
    manager.close_at_once()
    (log_fixture.root / "d" / CLEAN_SHUTDOWN_MARKER).touch()  # an earlier release wrote no facts
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == [A, B]
    assert {partition: state(manager.get(partition)) for partition in (A, B)} == by_facts  # type: ignore[arg-type]


async def test_a_log_that_was_opened_by_the_facts_takes_records_and_is_recovered(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started(topic_defaults=CONFIG)
    fill(manager)
    before = values(manager.get(A))  # type: ignore[arg-type]
    await manager.shutdown()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    log = manager.get(A)
    assert log is not None and values(log) == before
    result = log.append_as_leader(idempotent(0), 5)
    assert result.duplicate
    log.append_as_leader(idempotent(1), 6)
    for _ in range(5):
        log.append_as_leader(batch(b"value"), 6)
    after = values(log)
    manager.close_at_once()  # a crash
    manager = await log_fixture.started(topic_defaults=CONFIG)
    log = manager.get(A)
    assert log is not None and values(log) == after and log.leader_epoch_cache.latest_epoch == 6


async def test_the_facts_have_the_latest_epoch_though_no_record_is_in_it(log_fixture: LogFixture) -> None:
    """It is evidence against older data of ZooKeeper (ADR 60)."""
    manager = await log_fixture.started(topic_defaults=CONFIG)
    fill(manager)
    log = manager.get(A)
    assert log is not None
    log.leader_epoch_cache.begin(8, log.log_end_offset)
    before = log.leader_epoch_cache.entries
    await manager.shutdown()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    log = manager.get(A)
    assert log is not None and log.leader_epoch_cache.entries == before
    assert (log.leader_epoch_cache.latest_epoch, log.leader_epoch_cache.recorded_epoch) == (8, 5)


async def test_a_producer_is_known_though_its_records_are_gone_and_its_snapshot_failed(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started(topic_defaults=LogConfig(retention_ms=1000))
    log = manager.create(A, TOPIC_ID, 4)
    log.append_as_leader(idempotent(0), 0)
    log.advance_high_watermark(log.log_end_offset)
    log_fixture.clock.ms += 10_000
    log_fixture.storage.full_for = ".snapshot"
    assert log.delete_old_segments() == 1
    log_fixture.storage.full_for = ""
    await manager.shutdown()
    manager = await log_fixture.started()
    reopened = manager.get(A)
    assert reopened is not None and reopened.append_as_leader(idempotent(0), 0).duplicate


def _append(folder: Path) -> None:
    with (folder / "leader-epoch-checkpoint").open("ab") as file:
        file.write(b"\n")


def _touch(folder: Path) -> None:
    os.utime(folder / "leader-epoch-checkpoint", (1, 1))


CHANGES: list[Callable[[Path], object]] = [
    lambda folder: (folder / "00000000000000000003.log").unlink(),
    lambda folder: (folder / "00000000000000000099.log").touch(),
    lambda folder: (folder / "partition.metadata").rename(folder / "other"),
    _append,
    _touch,
]


@pytest.mark.parametrize("change", CHANGES)
async def test_the_files_are_read_if_one_was_changed(
    log_fixture: LogFixture, read_logs: list[TopicPartition], change: Callable[[Path], object]
) -> None:
    manager = await log_fixture.started(topic_defaults=CONFIG)
    fill(manager)
    await manager.shutdown()
    change(log_fixture.root / "d" / "a-0")
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == [A]


async def test_facts_of_an_earlier_stop_are_not_used(log_fixture: LogFixture, read_logs: list[TopicPartition]) -> None:
    folder = log_fixture.root / "d"
    manager = await log_fixture.started(topic_defaults=CONFIG)
    fill(manager)
    await manager.shutdown()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    manager.close_at_once()
    (folder / CLEAN_SHUTDOWN_MARKER).write_bytes(b"")  # an earlier release, which does not know the facts, stopped
    assert (folder / CLOSED_LOGS).exists()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == [A, B]


def _tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("damage", [_tear, Path.unlink])
async def test_the_files_are_read_if_the_facts_are_torn_or_missing(
    log_fixture: LogFixture, read_logs: list[TopicPartition], damage: Callable[[Path], object]
) -> None:
    manager = await log_fixture.started(topic_defaults=CONFIG)
    fill(manager)
    before = values(manager.get(A))  # type: ignore[arg-type]
    await manager.shutdown()
    damage(log_fixture.root / "d" / CLOSED_LOGS)
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == [A, B]
    assert values(manager.get(A)) == before  # type: ignore[arg-type]
    manager.close_at_once()


async def test_a_stop_neither_writes_nor_syncs_files_of_a_log_without_records(
    log_fixture: LogFixture, read_logs: list[TopicPartition]
) -> None:
    manager = await log_fixture.started(topic_defaults=CONFIG)
    log = manager.create(B, TOPIC_ID, 5, start_offset=9)
    log.assign_epoch(3)
    folder = log_fixture.root / "d" / "b-0"
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())}
    await manager.shutdown()
    assert {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())} == before
    assert log_fixture.storage.synced == []
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == []
    log = manager.get(B)  # type: ignore[assignment]
    log.append_as_leader(batch(b"1"), 4)
    await log.flush()
    assert log_fixture.storage.synced[0] == PARTITION_METADATA
    await manager.shutdown()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == [] and values(manager.get(B)) != []  # type: ignore[arg-type]
    manager.close_at_once()


async def test_after_a_crash_every_log_is_recovered(log_fixture: LogFixture, read_logs: list[TopicPartition]) -> None:
    manager = await log_fixture.started(topic_defaults=CONFIG)
    fill(manager)
    await manager.shutdown()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    manager.close_at_once()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == [A, B]


async def test_a_log_with_unfinished_work_has_no_facts(
    log_fixture: LogFixture, read_logs: list[TopicPartition]
) -> None:
    manager = await log_fixture.started(topic_defaults=CONFIG)
    fill(manager)
    (log_fixture.root / "d" / "a-0" / "00000000000000000003.log.cleaned").touch()
    await manager.shutdown()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == [A]


async def test_only_the_log_that_cannot_be_described_at_the_stop_is_read_at_the_start(
    log_fixture: LogFixture, read_logs: list[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = await log_fixture.started(topic_defaults=CONFIG)
    fill(manager)
    original = log_manager.describe

    def broken(storage: Any, log: PartitionLog) -> Any:
        if log.partition == A:
            raise OSError("cannot list the directory")
        return original(storage, log)

    with monkeypatch.context() as patch:
        patch.setattr(log_manager, "describe", broken)
        await manager.shutdown()
    manager = await log_fixture.started(topic_defaults=CONFIG)
    assert read_logs == [A]
    log = manager.get(A)
    assert log is not None and values(log)
