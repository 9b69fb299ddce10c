"""A replica in use moves to another log dir of its broker (KIP-113). After a crash there is exactly one log."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.layout_history import LayoutEntry
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogManager
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import PARTITION_METADATA, parse_future_directory_name
from anabranch.broker.log.producer_rebuild import ProducerRebuild
from anabranch.broker.log.repeated_batches import Answer, ProducerConnection
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from tests.support.log.log_fixture import START_MS, TOPIC_ID, LogFixture, batch, idempotent, values

pytestmark = pytest.mark.trio

T = TopicPartition("t", 0)
DEADLINE_S = 10


async def started(log_fixture: LogFixture) -> LogManager:
    return await log_fixture.started("d", "e", topic_defaults=LogConfig(segment_bytes=400))


def put(manager: LogManager, *contents: bytes, leader_epoch: int = 0) -> None:
    log = log_of(manager)
    for content in contents:
        log.append_as_leader(batch(content), leader_epoch)
    log.advance_high_watermark(log.log_end_offset)


def log_of(manager: LogManager) -> PartitionLog:
    log = manager.get(T)
    assert log is not None
    return log


def dir_of(manager: LogManager) -> str:
    return Path(log_of(manager).directory).parent.name


def other_dir(log_fixture: LogFixture, manager: LogManager) -> str:
    return str(log_fixture.root / ("e" if dir_of(manager) == "d" else "d"))


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.005)  # polls: the move runs in a task of its own


@asynccontextmanager
async def running(log_fixture: LogFixture, start_offset: int = 0) -> AsyncIterator[LogManager]:
    manager = await started(log_fixture)
    manager.create(T, TOPIC_ID, 7, start_offset=start_offset)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.moves.run)
        yield manager
        nursery.cancel_scope.cancel()
    manager.close_at_once()


async def test_a_moved_log_is_complete_and_takes_appends(log_fixture: LogFixture) -> None:
    async with running(log_fixture) as manager:
        put(manager, *[b"%d" % number * 20 for number in range(30)])
        put(manager, b"later", leader_epoch=4)
        log_of(manager).assign_epoch(5)
        log_of(manager).layouts.assign(LayoutEntry(0, 4, 4, 0))
        before = log_of(manager)
        target = other_dir(log_fixture, manager)
        switched: list[PartitionLog] = []
        manager.on_switched = switched.append
        manager.moves.request(T, target)
        await until(lambda: log_of(manager) is not before)
        after = log_of(manager)
        assert after.directory == f"{target}/t-0" and switched == [after]
        assert (after.identity.incarnation, after.identity.topic_id) == (7, TOPIC_ID)
        assert after.leader_epoch_cache.latest_epoch == 5
        assert after.leader_epoch_cache.entries == before.leader_epoch_cache.entries
        after.layouts.assign(LayoutEntry(5, 4, 6, 1))
        assert Path(after.directory, "partition-count-checkpoint").read_text() == "0\n2\n0 4 4 0\n5 4 6 1\n"
        assert (after.high_watermark, after.log_end_offset) == (31, 31)
        put(manager, b"new", leader_epoch=5)
        after.roll()
        assert len(values(after)) == 32
        assert all(path.name.endswith("-delete") for path in Path(before.directory).parent.glob("t-*"))


async def test_an_identity_that_is_assigned_during_a_move_is_kept(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the new identity were lost, the broker would replace the log when the controller sends the new topic id."""
    identity, flush = LogIdentity(uuid.UUID(int=8), 7), PartitionLog.flush
    async with running(log_fixture) as manager:
        before = log_of(manager)

        async def identify_then_flush(log: PartitionLog) -> None:
            if log is not before:
                before.identity.replace(identity)
            await flush(log)

        monkeypatch.setattr(PartitionLog, "flush", identify_then_flush)
        put(manager, b"1")
        manager.moves.request(T, other_dir(log_fixture, manager))
        await until(lambda: log_of(manager) is not before)
        assert log_of(manager).identity.metadata == identity
        assert b"incarnation: 7" in (Path(log_of(manager).directory) / PARTITION_METADATA).read_bytes()


async def test_a_moved_log_knows_what_was_answered_and_when_producers_appended(log_fixture: LogFixture) -> None:
    """Otherwise an equal batch that the producer sends in its next epoch would be taken for a repetition."""
    async with running(log_fixture) as manager:
        before, connection = log_of(manager), ProducerConnection()
        before.append_as_leader(idempotent(0), 0, connection=connection)
        before.producers.record_answer(9, Answer(0, connection, 0))
        log_fixture.clock.ms += 1000
        manager.moves.request(T, other_dir(log_fixture, manager))
        await until(lambda: log_of(manager) is not before)
        moved = log_of(manager)
        assert moved.producers.producers[9].appended_ms == START_MS
        assert not moved.append_as_leader(idempotent(0, epoch=1), 0, connection=connection).duplicate


async def test_a_moved_log_whose_producers_are_read_again_may_lack_what_the_log_took(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It then goes on like a new leader, which does not know the epochs that its predecessor took without writing."""
    update_config = PartitionLog.update_config

    def truncate(copy: PartitionLog, config: LogConfig) -> None:
        update_config(copy, config)
        copy.rebuild = cast(ProducerRebuild, object())

    monkeypatch.setattr(PartitionLog, "update_config", truncate)
    async with running(log_fixture) as manager:
        before = log_of(manager)
        before.append_as_leader(idempotent(0), 0)
        assert before.append_as_leader(idempotent(0, epoch=2), 0).duplicate
        manager.moves.request(T, other_dir(log_fixture, manager))
        await until(lambda: log_of(manager) is not before)
        moved = log_of(manager)
        moved.rebuild = None
        assert moved.append_as_leader(idempotent(1, epoch=2), 0).base_offset == 1


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_moved_log_knows_producers_without_records(log_fixture: LogFixture, restarts: bool) -> None:
    """If the moved log forgot such a producer, a batch that the producer repeats would be written again."""
    async with running(log_fixture) as manager:
        before = log_of(manager)
        for sequence in range(3):
            before.append_as_leader(idempotent(sequence), 0)
        before.roll()
        put(manager, b"another's")
        before.delete_records_before(3)
        assert before.delete_old_segments() == 1
        manager.moves.request(T, other_dir(log_fixture, manager))
        await until(lambda: log_of(manager) is not before)
        moved = log_of(manager)
        if restarts:
            await moved.flush()
        else:
            assert moved.append_as_leader(idempotent(2), 0).duplicate
    if restarts:
        again = await started(log_fixture)
        assert log_of(again).append_as_leader(idempotent(2), 0).duplicate
        again.close_at_once()


async def test_a_moved_log_is_found_after_a_restart(log_fixture: LogFixture) -> None:
    async with running(log_fixture) as manager:
        put(manager, *[b"%d" % number * 20 for number in range(30)])
        before = log_of(manager)
        target = other_dir(log_fixture, manager)
        manager.moves.request(T, target)
        await until(lambda: log_of(manager) is not before)
        expected = values(log_of(manager))
        put(manager, b"after")
    again = await started(log_fixture)
    assert log_of(again).directory == f"{target}/t-0"
    assert values(log_of(again)) == [*expected, (30, b"k", b"after")]


async def test_records_written_during_a_move_are_copied(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.log.log_moves.CHUNK_BYTES", 1)
    async with running(log_fixture) as manager:
        put(manager, *[b"%d" % number for number in range(50)])
        before = log_of(manager)
        real_flush = PartitionLog.flush

        async def flush_then_write(log: PartitionLog) -> None:
            await real_flush(log)
            if log is not before and before.log_end_offset == 50:
                put(manager, b"while it moved")

        monkeypatch.setattr(PartitionLog, "flush", flush_then_write)
        manager.moves.request(T, other_dir(log_fixture, manager))
        await until(lambda: log_of(manager) is not before)
        assert values(log_of(manager))[-1] == (50, b"k", b"while it moved")
        assert len(values(log_of(manager))) == 51


async def test_an_empty_log_that_begins_above_0_keeps_its_offsets_in_a_move(log_fixture: LogFixture) -> None:
    """A partition that was created again has such a log until its first record."""
    async with running(log_fixture, start_offset=40) as manager:
        before = log_of(manager)
        before.assign_epoch(3)
        manager.moves.request(T, other_dir(log_fixture, manager))
        await until(lambda: log_of(manager) is not before)
        after = log_of(manager)
        assert (after.log_start_offset, after.log_end_offset, after.high_watermark) == (40, 40, 40)
        assert after.end_offset_for_epoch(2) == (2, 40)


async def test_a_log_whose_start_lies_inside_of_a_batch_moves(log_fixture: LogFixture) -> None:
    async with running(log_fixture) as manager:
        log = log_of(manager)
        log.append_as_leader(batch(b"a", b"b", b"c"), 0)
        log.advance_high_watermark(3)
        log.delete_records_before(1)
        manager.moves.request(T, other_dir(log_fixture, manager))
        await until(lambda: log_of(manager) is not log)
        assert (log_of(manager).log_start_offset, log_of(manager).log_end_offset) == (1, 3)


@pytest.mark.parametrize("start", [55, 60])
async def test_a_log_whose_start_rises_during_a_move_is_copied_again(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    async with running(log_fixture) as manager:
        put(manager, *[b"%d" % number * 20 for number in range(30)])
        before = log_of(manager)
        real_flush = PartitionLog.flush

        async def flush_then_write_and_delete(log: PartitionLog) -> None:
            await real_flush(log)
            if log is not before and before.log_end_offset == 30:
                put(manager, *[b"%d" % number * 20 for number in range(30, 60)])
                before.delete_records_before(start)

        monkeypatch.setattr(PartitionLog, "flush", flush_then_write_and_delete)
        manager.moves.request(T, other_dir(log_fixture, manager))
        await until(lambda: log_of(manager) is not before)
        after = log_of(manager)
        assert (after.log_start_offset, after.log_end_offset) == (start, 60)
        assert [offset for offset, _, _ in values(after)] == list(range(start, 60))


async def test_a_move_to_an_unknown_dir_or_of_an_unknown_replica_is_refused(log_fixture: LogFixture) -> None:
    async with running(log_fixture) as manager:
        with pytest.raises(KafkaError) as unknown:
            manager.moves.request(T, "/nowhere")
        assert unknown.value.code is ErrorCode.LOG_DIR_NOT_FOUND
        other = TopicPartition("other", 1)
        wanted = other_dir(log_fixture, manager)
        with pytest.raises(KafkaError) as foreign:
            manager.moves.request(other, wanted, exists=False)
        assert foreign.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert manager.moves.preferred(other) is None
        with pytest.raises(KafkaError) as absent:
            manager.moves.request(other, wanted)
        assert absent.value.code is ErrorCode.REPLICA_NOT_AVAILABLE
        assert Path(manager.create(other, TOPIC_ID, 8).directory).parent == Path(wanted)


async def test_a_move_back_or_a_deletion_cancels_the_move(log_fixture: LogFixture) -> None:
    manager = await started(log_fixture)
    manager.create(T, TOPIC_ID, 7)
    put(manager, b"1")
    here = dir_of(manager)
    manager.moves.request(T, other_dir(log_fixture, manager))
    manager.moves.request(T, str(log_fixture.root / here))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.moves.run)
        await trio.testing.wait_all_tasks_blocked()
        assert dir_of(manager) == here
        nursery.cancel_scope.cancel()
    manager.moves.request(T, other_dir(log_fixture, manager))
    manager.delete(T)
    assert list(manager.moves.futures()) == []


async def test_a_move_whose_copy_was_interrupted_by_a_crash_starts_again(log_fixture: LogFixture) -> None:
    manager = await started(log_fixture)
    manager.create(T, TOPIC_ID, 7)
    put(manager, b"1")
    target = other_dir(log_fixture, manager)
    await manager.moves._create(log_of(manager), manager.directories.get(target))  # type: ignore[arg-type]
    manager.close_at_once()
    assert any(parse_future_directory_name(path.name) for path in Path(target).iterdir())
    again = await started(log_fixture)
    before = log_of(again)
    assert not any(parse_future_directory_name(path.name) for path in Path(target).iterdir())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.moves.run)
        await until(lambda: log_of(again) is not before)
        nursery.cancel_scope.cancel()
    assert log_of(again).directory == f"{target}/t-0"


async def test_after_a_crash_between_the_two_renames_the_copy_is_the_log(log_fixture: LogFixture) -> None:
    async with running(log_fixture) as manager:
        put(manager, b"1", b"2")
        before = log_of(manager)
        manager.moves.request(T, other_dir(log_fixture, manager))
        await until(lambda: log_of(manager) is not before)
        moved = Path(log_of(manager).directory)
    moved.rename(moved.with_name(f"t-0.{'0' * 32}-future"))
    again = await started(log_fixture)
    assert log_of(again).directory == str(moved)
    assert values(log_of(again)) == [(0, b"k", b"1"), (1, b"k", b"2")]
