from __future__ import annotations

import errno
import random
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.log import directory_loader, partition_log
from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogDirError, LogManager, LogManagerConfig
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import PARTITION_METADATA
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.log.retention import FILES_REMOVED_AT_ONCE, SEGMENTS_DELETED_AT_ONCE
from anabranch.broker.log.slices import TimeSlice
from anabranch.broker.log.snapshot_files import SnapshotFiles
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.real_trio import TrioClock as LoopClock
from anabranch.zk_schemas.broker_keys import BrokerKeys
from sim.network import SimFabric
from sim.storage import SimDisk
from tests.support.log.log_fixture import START_MS, TOPIC_ID, LogFixture, batch, values

pytestmark = pytest.mark.trio

CHECKPOINT_INTERVALS = (
    "high_watermark_checkpoint_interval_ms",
    "flush_offset_checkpoint_interval_ms",
    "flush_start_offset_checkpoint_interval_ms",
)
A, B, C = TopicPartition("a", 0), TopicPartition("a-b", 3), TopicPartition("c", 0)


def put(manager: LogManager, partition: TopicPartition, value: bytes) -> int:
    log = manager.get(partition)
    assert log is not None
    result = log.append_as_leader(batch(value), 0)
    log.advance_high_watermark(log.log_end_offset)
    return result.base_offset


async def test_logs_are_found_again_after_a_shutdown(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started("d", "e")
    for partition in (A, B):
        manager.create(partition, TOPIC_ID, 7)
        put(manager, partition, b"1")
    assert sorted(Path(log.directory).parent.name for log in manager.logs()) == ["d", "e"]
    await manager.shutdown()
    assert (log_fixture.root / "d" / ".kafka_cleanshutdown").exists()
    assert (log_fixture.root / "d" / "meta.properties").read_text() == "#\nbroker.id=1\ncluster.id=c\nversion=0\n"
    again = log_fixture.manager("d", "e")
    await again.start(lambda topic: LogConfig(retention_ms=len(topic)))
    assert not (log_fixture.root / "d" / ".kafka_cleanshutdown").exists(), (
        "a crash while loading is not a clean shutdown"
    )
    found = again.get(B)
    assert found is not None and found.config.retention_ms == 3
    assert found.identity.metadata == LogIdentity(TOPIC_ID, 7)
    assert (found.high_watermark, len(values(found))) == (1, 1)


async def test_a_log_may_be_created_while_others_are_closed() -> None:
    """A broker that shuts down still carries out the controller's last requests."""
    disk = SimDisk(random.Random(0), sync_delay_s=lambda: 0.01)
    env = Env(disk.clock, SimFabric(random.Random(0)).node("here"), random.Random(0), disk.mount())
    manager = LogManager(LogManagerConfig(1, "c", ("/d",)), env)
    await manager.start()
    manager.create(A, TOPIC_ID, 7)
    put(manager, A, b"1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.shutdown)
        await trio.testing.wait_all_tasks_blocked()
        manager.create(B, TOPIC_ID, 8)
        put(manager, B, b"1")
    assert disk.mount().exists("/d/.kafka_cleanshutdown")
    identity = disk.files["/d/a-b-3/partition.metadata"]
    assert identity.synced_size == len(identity.content) > 0, "the marker covers the last log, too"


@pytest.mark.parametrize("fault", ["broken", "a sync that fails", "no descriptor", "producers that are behind"])
async def test_a_log_dir_gets_no_clean_shutdown_marker_if_one_of_its_logs_did_not_close(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The next start recovers the logs of the dir and finds the acknowledged records."""
    manager = await log_fixture.started("d", "e")
    for partition in (A, B):
        manager.create(partition, TOPIC_ID, 7)
        for _ in range(3):
            put(manager, partition, b"1")
    log = manager.get(A)
    assert log is not None

    async def refuse() -> None:
        raise OSError(errno.EIO, "Input/output error")

    really_take = SnapshotFiles.take

    def take(files: SnapshotFiles, state: ProducerState) -> None:
        if files is log.snapshots:
            raise OSError(errno.EMFILE, "Too many open files")
        really_take(files, state)

    async def behind(found: PartitionLog) -> None:
        if found is log:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "Too many open files")

    with monkeypatch.context() as patch:
        if fault == "broken":
            log.fail("the disk failed")
        elif fault == "a sync that fails":
            patch.setattr(log.segments[0].file, "sync", refuse)
        elif fault == "no descriptor":
            patch.setattr(SnapshotFiles, "take", take)
        else:
            patch.setattr(partition_log, "catch_up", behind)
        await manager.shutdown()
    home = Path(log.directory).parent.name
    assert not (log_fixture.root / home / ".kafka_cleanshutdown").exists()
    assert (log_fixture.root / ("e" if home == "d" else "d") / ".kafka_cleanshutdown").exists()
    again = await log_fixture.started("d", "e")
    found = again.get(A)
    assert found is not None and not found.is_broken and len(values(found)) == 3


async def test_a_log_dir_in_use_is_refused_and_the_locks_of_others_are_released(log_fixture: LogFixture) -> None:
    first = await log_fixture.started("d")
    second = log_fixture.manager("e", "d")
    with pytest.raises(LogDirError, match=r"d is in use by another process.*\.lock"):
        await second.start()
    first.close_at_once()
    await log_fixture.started("d", "e")


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"broker_id": 2}, "belongs to another broker"), ({"cluster_id": "other"}, "belongs to another cluster")],
)
async def test_a_log_dir_of_another_broker_or_cluster_is_refused(
    log_fixture: LogFixture, settings: dict[str, Any], message: str
) -> None:
    manager = await log_fixture.started()
    await manager.shutdown()
    with pytest.raises(LogDirError, match=message):
        await log_fixture.manager(**settings).start()
    await log_fixture.started()


async def test_the_error_for_malformed_meta_properties_names_the_file(log_fixture: LogFixture) -> None:
    (log_fixture.root / "d").mkdir()
    (log_fixture.root / "d" / "meta.properties").write_text("nothing\n")
    with pytest.raises(LogDirError, match=r"d/meta\.properties: broker\.id is missing"):
        await log_fixture.manager().start()


async def test_directories_are_removed_outside_of_the_event_loops_thread(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = await log_fixture.started(topic_defaults=LogConfig(file_delete_delay_ms=0))
    manager.create(A, TOPIC_ID, 7)
    manager.delete(A)
    removers: list[str] = []
    remove_tree = log_fixture.storage.remove_tree

    def remove(path: str) -> None:
        removers.append(threading.current_thread().name)
        remove_tree(path)

    monkeypatch.setattr(log_fixture.storage, "remove_tree", remove)
    await manager.maintenance.remove_deleted()
    assert len(removers) == 1 and removers[0] != threading.current_thread().name
    assert not any(name.endswith("-delete") for name in log_fixture.storage.listdir(str(log_fixture.root / "d")))


async def test_retention_and_removal_take_a_bounded_number_of_files_at_a_time(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pauses a bounded number of files is renamed or removed, however many are due."""
    manager = await log_fixture.started(
        topic_defaults=LogConfig(file_delete_delay_ms=0, segment_bytes=100, retention_ms=1)
    )
    log = manager.create(A, TOPIC_ID, 7)
    segments = 3 * SEGMENTS_DELETED_AT_ONCE
    for _ in range(segments + 1):
        put(manager, A, b"x" * 20)
    assert len(log.segments) == segments + 1
    log_fixture.clock.ms += 1000
    steps = Steps(monkeypatch, log_fixture.storage)
    await manager.maintenance.apply_retention()
    assert len(log.segments) == 1
    assert 0 < max(steps.renames) <= 5 * SEGMENTS_DELETED_AT_ONCE
    await manager.maintenance.remove_deleted()
    assert sum(steps.removals) >= segments and max(steps.removals) <= FILES_REMOVED_AT_ONCE + 5


class Steps:
    """Counts the renames and removals between two steps of sliced work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, storage: Any) -> None:
        self.renames, self.removals = [0], [0]
        rename, remove, due = storage.rename, storage.remove, TimeSlice.due

        def counted_rename(old: str, new: str) -> None:
            self.renames[-1] += 1
            rename(old, new)

        def counted_remove(path: str) -> None:
            self.removals[-1] += 1
            remove(path)

        def step(work: TimeSlice) -> bool:
            self.renames.append(0)
            self.removals.append(0)
            return due(work)

        monkeypatch.setattr(storage, "rename", counted_rename)
        monkeypatch.setattr(storage, "remove", counted_remove)
        monkeypatch.setattr(TimeSlice, "due", step)


async def test_a_deleted_log_is_gone_at_once_and_its_files_later(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started(topic_defaults=LogConfig(file_delete_delay_ms=5000))
    manager.create(A, TOPIC_ID, 7)
    put(manager, A, b"1")
    manager.delete(A)
    assert manager.get(A) is None
    (doomed,) = (log_fixture.root / "d").glob("*-delete")
    assert doomed.name.startswith("a-0.")
    await manager.maintenance.remove_deleted()
    assert doomed.exists()
    log_fixture.clock.ms += 5000
    await manager.maintenance.remove_deleted()
    assert not doomed.exists()


async def test_a_log_created_again_shares_nothing_with_the_deleted_one(log_fixture: LogFixture) -> None:
    """KAFKA-12257, 14616, 10548: checkpoints of the old log must not truncate the log of a re-created topic."""
    manager = await log_fixture.started()
    manager.create(A, TOPIC_ID, 7)
    for _ in range(5):
        put(manager, A, b"old")
    log = manager.get(A)
    assert log is not None
    log.delete_records_before(4)
    await log.flush()
    manager.checkpoints.write_recovery_points()
    manager.checkpoints.write_log_starts()
    manager.delete(A)
    other = uuid.UUID(int=5)
    manager.create(A, other, 8)
    put(manager, A, b"new")
    manager.close_at_once()
    again = await log_fixture.started()
    found = again.get(A)
    assert found is not None
    assert (found.identity.topic_id, found.identity.incarnation, values(found)) == (other, 8, [(0, b"k", b"new")])
    assert [log.partition for log in again.logs()] == [A]


async def test_checkpoints_are_written_in_the_background(
    log_fixture: LogFixture, autojump_clock: trio.testing.MockClock
) -> None:
    manager = await log_fixture.started()
    log = manager.create(A, TOPIC_ID, 7)
    for _ in range(3):
        put(manager, A, b"1")
    log.delete_records_before(2)
    await log.flush()
    with trio.move_on_after(61):
        await manager.run()
    read = {path.name: path.read_text() for path in (log_fixture.root / "d").glob("*-checkpoint")}
    assert read["recovery-point-offset-checkpoint"] == "0\n1\na 0 3\n"
    assert read["replication-offset-checkpoint"] == "0\n1\na 0 3\n"
    assert read["log-start-offset-checkpoint"] == "0\n1\na 0 2\n"


async def run_until(manager: LogManager, condition: Callable[[], bool]) -> None:
    """Run the background work until the condition holds. Syncs run in threads, so the clock is real."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.run)
        with trio.fail_after(10):
            while not condition():
                await trio.sleep(0.001)  # polls: the condition
        nursery.cancel_scope.cancel()


async def test_flushes_by_count_and_by_time_run_in_the_background(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started(flush_scheduler_interval_ms=5)
    by_count = manager.create(A, TOPIC_ID, 7, LogConfig(flush_messages=3))
    by_time = manager.create(B, TOPIC_ID, 7, LogConfig(flush_ms=1000))
    for _ in range(3):
        put(manager, A, b"1")
        put(manager, B, b"1")
    await run_until(manager, lambda: by_count.recovery_point == 3)
    assert by_time.recovery_point == 0
    log_fixture.clock.ms += 1000
    await run_until(manager, lambda: by_time.recovery_point == 3)


async def test_the_identity_of_a_log_with_records_is_synced_in_the_background(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started()
    manager.create(C, TOPIC_ID, 7)
    for partition in (A, B):
        manager.create(partition, TOPIC_ID, 7)
        put(manager, partition, b"1")
    await run_until(manager, lambda: len(log_fixture.storage.synced) == 2)
    assert log_fixture.storage.synced == [PARTITION_METADATA] * 2


async def test_retention_and_compaction_run_in_the_background(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started(retention_check_interval_ms=5, cleaner_backoff_ms=5)
    expiring = manager.create(A, TOPIC_ID, 7, LogConfig(retention_ms=1000))
    compacted = manager.create(B, TOPIC_ID, 7, LogConfig(cleanup_policy=("compact",)))
    for value in (b"1", b"2", b"3"):
        put(manager, A, value)
        put(manager, B, value)
    compacted.roll()
    log_fixture.clock.ms = START_MS + 5000
    await run_until(manager, lambda: expiring.log_start_offset == 3 and len(values(compacted)) == 1)
    assert values(compacted) == [(2, b"k", b"3")]
    await manager.shutdown()
    assert "a-b 3 3" in (log_fixture.root / "d" / "cleaner-offset-checkpoint").read_text()


async def test_idle_producers_are_forgotten(log_fixture: LogFixture, autojump_clock: trio.testing.MockClock) -> None:
    manager = await log_fixture.started(producer_id_expiration_ms=1000, producer_id_expiration_check_interval_ms=1000)
    log = manager.create(A, TOPIC_ID, 7)
    log.append_as_leader(batch(b"1", producer_id=9, producer_epoch=0, base_sequence=0), 0)
    log_fixture.clock.ms += 1000
    with trio.move_on_after(2):
        await manager.run()
    assert log.producers.producers == {}


async def test_a_changed_producer_expiration_applies_at_once(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started(producer_id_expiration_ms=1_000_000)
    log = manager.create(A, TOPIC_ID, 7)
    log.append_as_leader(batch(b"1", producer_id=4, producer_epoch=0, base_sequence=0), 0)
    log_fixture.clock.ms += 5_000
    await manager.maintenance.expire_producers()
    assert list(log.producers.producers) == [4]
    manager.reconfigure(log_fixture.config(producer_id_expiration_ms=5_000))
    await manager.maintenance.expire_producers()
    assert list(log.producers.producers) == []


async def test_a_changed_cleaner_backoff_applies_at_once(log_fixture: LogFixture) -> None:
    """The present pause has the old length, which may be a day."""
    manager = await log_fixture.started(cleaner_backoff_ms=86_400_000)
    log = manager.create(A, TOPIC_ID, 7, LogConfig(cleanup_policy=("compact",)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.cleaner.run)
        await trio.testing.wait_all_tasks_blocked()
        for value in (b"1", b"2"):
            put(manager, A, value)
        log.roll()
        manager.reconfigure(log_fixture.config(cleaner_backoff_ms=86_000_000))
        with trio.fail_after(30):
            while len(values(log)) > 1:
                await trio.sleep(0.001)  # polls: the cleaner syncs in a thread
        nursery.cancel_scope.cancel()
    assert values(log) == [(1, b"k", b"2")]


async def test_creating_on_a_full_disk_is_a_storage_error(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started()
    log_fixture.storage.full = True
    with pytest.raises(KafkaError) as caught:
        manager.create(A, TOPIC_ID, 7)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert manager.get(A) is None
    log_fixture.storage.full = False
    manager.create(A, TOPIC_ID, 7)
    with pytest.raises(ValueError, match="a-0 has a log already"):
        manager.create(A, TOPIC_ID, 7)


async def test_log_dirs_are_described(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started()
    manager.create(A, TOPIC_ID, 7)
    put(manager, A, b"1")
    (described,) = manager.log_dirs()
    assert described.path == str(log_fixture.root / "d")
    assert described.size_bytes == {A: len(batch(b"1"))}
    assert 0 < described.usable_bytes <= described.total_bytes


async def test_configurations_are_read_by_kafkas_keys() -> None:
    keys = BrokerKeys(broker_id=1, zookeeper_connect="z", log_cleaner_backoff_ms=5, log_retention_check_interval_ms=6)
    config = LogManagerConfig.of(keys, broker_id=1, cluster_id="c", log_dirs=("d",))
    assert (config.cleaner_backoff_ms, config.retention_check_interval_ms) == (5, 6)
    topic = LogConfig.of({"cleanup.policy": ["compact", "delete"], "segment.bytes": 100, "other": 1})
    assert topic == LogConfig(cleanup_policy=["compact", "delete"], segment_bytes=100)


async def test_a_truncation_lowers_the_recovery_point_on_disk_at_once(log_fixture: LogFixture) -> None:
    """Unsynced records appended after the truncation must not be below the recovery point after a crash."""
    manager = await log_fixture.started()
    log = manager.create(A, TOPIC_ID, 7)
    for value in (b"1", b"2", b"3"):
        put(manager, A, value)
    await log.flush()
    directory = manager.directories.get(str(log_fixture.root / "d"))
    assert directory is not None
    directory.write_recovery_points()
    assert directory.read_checkpoints()[A].recovery_point == 3
    log.truncate_to(1)
    assert directory.read_checkpoints()[A].recovery_point == 1


async def test_checkpoints_of_other_log_dirs_are_written_while_one_refuses_writes(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    log_fixture.env.clock = LoopClock()
    manager = await log_fixture.started("d", "e", **dict.fromkeys(CHECKPOINT_INTERVALS, 100))
    for partition in (A, B):
        manager.create(partition, TOPIC_ID, 7, LogConfig(segment_bytes=300, file_delete_delay_ms=0))
        for _ in range(10):
            put(manager, partition, b"v" * 50)
    refusing, working = (Path(log.directory).parent for log in manager.logs())
    really_open = log_fixture.storage.open

    def open_or_refuse(path: str, *, create: bool = False) -> Any:
        if create and path.startswith(str(refusing)) and path.endswith(".tmp"):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return really_open(path, create=create)

    monkeypatch.setattr(log_fixture.storage, "open", open_or_refuse)
    for log in manager.logs():
        log.delete_records_before(8)
        log.delete_old_segments()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.run)
        await trio.sleep(10)  # virtual time: the clock jumps
        nursery.cancel_scope.cancel()
    for name in ("replication-offset-checkpoint", "log-start-offset-checkpoint", "recovery-point-offset-checkpoint"):
        assert (working / name).exists() and not (refusing / name).exists()
    assert not list(log_fixture.root.rglob("*.deleted"))


class SlowlyReadable:
    """Replaces ``open_log``: the first call has no descriptor, and the next one waits for ``may_open``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.is_opening, self.may_open = trio.Event(), trio.Event()
        self._open_log = directory_loader.open_log
        monkeypatch.setattr(directory_loader, "open_log", self._open)

    async def _open(self, *args: Any, **keys: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise OSError(errno.EMFILE, "no descriptor")
        found = await self._open_log(*args, **keys)
        self.is_opening.set()
        await self.may_open.wait()
        return found


async def manager_that_opens_again(log_fixture: LogFixture, slowly: SlowlyReadable) -> LogManager:
    before = log_fixture.manager()
    slowly.calls = 1
    slowly.may_open.set()
    await before.start()
    before.create(A, TOPIC_ID, 7)
    put(before, A, b"1")
    before.close_at_once()
    slowly.calls, slowly.may_open, slowly.is_opening = 0, trio.Event(), trio.Event()
    manager = await log_fixture.started()
    assert manager.get(A) is None
    return manager


async def test_a_log_that_is_being_opened_again_is_not_created(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller may create the partition meanwhile. If that created a second log, the records would be lost."""
    slowly = SlowlyReadable(monkeypatch)
    manager = await manager_that_opens_again(log_fixture, slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.open_again)
        await slowly.is_opening.wait()
        with pytest.raises(KafkaError) as refused:
            manager.create(A, TOPIC_ID, 7)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        slowly.may_open.set()
    found = manager.get(A)
    assert found is not None and [value for _, _, value in values(found)] == [b"1"]


async def test_a_log_that_is_deleted_while_it_is_opened_again_stays_deleted(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = SlowlyReadable(monkeypatch)
    manager = await manager_that_opens_again(log_fixture, slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.open_again)
        await slowly.is_opening.wait()
        manager.delete(A)
        slowly.may_open.set()
    assert manager.get(A) is None
    manager.create(A, TOPIC_ID, 8)
    assert put(manager, A, b"2") == 0
