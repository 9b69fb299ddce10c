from __future__ import annotations

import errno
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.partition_log import AppendOrigin, PartitionLog
from anabranch.broker.log.paths import PARTITION_METADATA
from anabranch.broker.log.txn_index import AbortedTxn
from anabranch.protocol.batch_layout import CONTROL_ABORT
from anabranch.protocol.errors import ErrorCode, KafkaError
from tests.support.log.batches import build_control_batch
from tests.support.log.log_fixture import START_MS, LogFixture, batch, find_time, idempotent, read_all, values

TWO_BATCHES = 2 * len(batch(b"a0", b"b0"))


def fill(log: PartitionLog, count: int, *, epoch: int = 0, step_ms: int = 10) -> None:
    """Append ``count`` batches of two records. The batches are ``step_ms`` apart."""
    for number in range(count):
        log.append_as_leader(batch(b"a%d" % number, b"b%d" % number, timestamp=START_MS + number * step_ms), epoch)
    log.advance_high_watermark(log.log_end_offset)


def code_of(call, *args, **kwargs) -> ErrorCode:  # type: ignore[no-untyped-def]
    with pytest.raises(KafkaError) as caught:
        call(*args, **kwargs)
    return caught.value.code


def test_offsets_are_assigned_in_order_and_written_into_the_batches(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    data = batch(b"a", b"b")
    first = log.append_as_leader(memoryview(data), 7)
    second = log.append_as_leader(memoryview(data), 7)
    assert (first.base_offset, first.last_offset, first.log_append_time_ms) == (0, 1, -1)
    assert (second.base_offset, second.last_offset, log.log_end_offset) == (2, 3, 4)
    assert [(each.base_offset, each.partition_leader_epoch) for each in read_all(log)] == [(0, 7), (2, 7)]
    assert all(each.verify_crc() for each in read_all(log))


def test_log_append_time_is_reported(log_fixture: LogFixture) -> None:
    log = log_fixture.create(message_timestamp_type="LogAppendTime")
    log_fixture.clock.ms += 5
    assert log.append_as_leader(batch(b"a"), 0).log_append_time_ms == START_MS + 5


def test_a_repeated_batch_gets_the_offsets_of_its_first_append(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    log.append_as_leader(idempotent(0, 3), 0)
    log.append_as_leader(batch(b"other"), 0)
    again = log.append_as_leader(idempotent(0, 3), 0)
    assert (again.base_offset, again.last_offset, again.duplicate) == (0, 2, True)
    assert log.log_end_offset == 4
    assert code_of(log.append_as_leader, idempotent(4), 0) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("ahead_ms", "clock_moves_ms", "config"),
    [
        (3_000_000, -1_200_000, {}),
        (0, 2_000, {"message_timestamp_before_max_ms": 1_000}),
        (0, 0, {"max_message_bytes": 70}),
        (0, 0, {"cleanup_policy": ("compact",)}),
    ],
    ids=["the clock was ahead", "time has passed", "the limit was lowered", "keys are required"],
)
def test_a_repeated_batch_that_the_log_would_refuse_now_is_recognised(
    log_fixture: LogFixture, ahead_ms: int, clock_moves_ms: int, config: dict[str, Any]
) -> None:
    """Its producer had no answer. It would report the records as failed, or send some of them once more."""

    def sent(sequence: int, epoch: int = 0) -> memoryview:
        timestamp = START_MS + ahead_ms
        return memoryview(bytes(idempotent(sequence, 3, epoch=epoch, key=None, timestamp=timestamp)))

    log = log_fixture.create()
    log.append_as_leader(sent(0), 0)
    log.config = LogConfig(**config)
    log_fixture.clock.ms += clock_moves_ms
    again = [log.append_as_leader(batch, 0) for batch in (sent(0), sent(0, epoch=1))]
    assert [(each.base_offset, each.last_offset, each.duplicate) for each in again] == [(0, 2, True)] * 2
    assert code_of(log.append_as_leader, sent(3, epoch=1), 0) in (
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
    )
    assert log.log_end_offset == 3


def test_reads_begin_with_the_batch_that_holds_the_offset(log_fixture: LogFixture) -> None:
    log = log_fixture.create(index_interval_bytes=100)
    fill(log, 300)
    for offset in (0, 1, 2, 77, 300, 598, 599):
        found = log.read(offset, 1, upper_bound=600)
        first = read_all(log)[offset // 2]
        assert found.records.read() == bytes(first.buffer), offset  # type: ignore[union-attr]


def test_reads_end_below_the_upper_bound_and_within_the_size_limit(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    fill(log, 10)
    size = read_all(log)[0].length
    assert log.read(0, 10**6, upper_bound=8).size_bytes == 4 * size
    assert log.read(8, 10**6, upper_bound=8).size_bytes == 0
    assert log.read(20, 10**6, upper_bound=20).size_bytes == 0
    assert log.read(0, 1, upper_bound=20).size_bytes == size
    assert log.read(0, 1, upper_bound=20, at_least_one=False).size_bytes == 0
    assert size < log.read(0, size * 2, upper_bound=20).size_bytes <= size * 2


@pytest.mark.parametrize("offset", [-1, 21])
def test_reads_outside_of_the_log_are_out_of_range(log_fixture: LogFixture, offset: int) -> None:
    log = log_fixture.create()
    fill(log, 10)
    assert code_of(log.read, offset, 100, upper_bound=20) == ErrorCode.OFFSET_OUT_OF_RANGE


# ---------------------------------------------------------------- roll


def test_a_segment_is_rolled_by_size(log_fixture: LogFixture) -> None:
    size = len(batch(b"a0", b"b0"))
    log = log_fixture.create(segment_bytes=3 * size)
    fill(log, 7)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 12]
    assert [record[0] for record in values(log)] == list(range(14))


def test_a_segment_is_rolled_by_the_timestamps_of_its_records(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_ms=100)
    log.append_as_leader(batch(b"a", timestamp=START_MS), 0)
    log_fixture.clock.ms += 10_000
    log.append_as_leader(batch(b"b", timestamp=START_MS + 100), 0)
    assert len(log.segments) == 1, "the timestamps of the records count, not the clock"
    log.append_as_leader(batch(b"c", timestamp=START_MS + 101), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_segment_is_rolled_by_the_clock_when_records_have_no_timestamp(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_ms=100)
    log.append_as_leader(batch(b"a", timestamp=-1), 0)
    log_fixture.clock.ms += 101
    log.append_as_leader(batch(b"b", timestamp=-1), 0)
    assert len(log.segments) == 2


def test_a_segment_is_rolled_when_an_index_is_full(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_index_bytes=36, index_interval_bytes=1)
    fill(log, 10)
    assert len(log.segments) > 1
    assert all(segment.offset_index.count <= 4 for segment in log.segments)


def test_a_segment_is_rolled_when_an_offset_is_too_far_for_an_index_entry(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    log.append_as_follower(bytes(batch(b"a", base_offset=5)))
    log.append_as_follower(bytes(batch(b"b", base_offset=5 + 2**31)))
    log.append_as_follower(bytes(batch(b"c", base_offset=6 + 2**32)))
    assert [segment.base_offset for segment in log.segments] == [0, 6, 6 + 2**32]
    assert log.log_end_offset == 7 + 2**32


def test_jitter_rolls_a_segment_before_segment_ms(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_ms=1000, segment_jitter_ms=1000)
    log.append_as_leader(batch(b"a", timestamp=START_MS), 0)
    log.append_as_leader(batch(b"b", timestamp=START_MS + 1000), 0)
    assert len(log.segments) == 2


# ---------------------------------------------------------------- find


def test_the_offset_for_a_time_is_that_of_the_first_record_not_before_it(log_fixture: LogFixture) -> None:
    log = log_fixture.create(index_interval_bytes=200, segment_bytes=2000)
    fill(log, 100, epoch=3)
    assert len(log.segments) > 3
    assert find_time(log, 0) == (START_MS, 0, 3)
    assert find_time(log, START_MS + 1) == (START_MS + 1, 1, 3)
    assert find_time(log, START_MS + 502) == (START_MS + 510, 102, 3)
    assert find_time(log, START_MS + 991) == (START_MS + 991, 199, 3)
    assert find_time(log, START_MS + 992) is None


def test_the_offset_for_a_time_is_not_below_the_log_start(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    fill(log, 10)
    log.delete_records_before(5)
    assert find_time(log, 0) == (START_MS + 21, 5, 0)


def test_the_largest_timestamp_is_found_with_its_offset(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=500)
    assert find_time(log, None) is None
    fill(log, 10)
    log.append_as_leader(batch(b"x", b"y", timestamp=START_MS + 10**6), 1)
    fill(log, 10)
    assert find_time(log, None) == (START_MS + 10**6 + 1, 21, 1)


# ---------------------------------------------------------------- watermarks


def test_the_high_watermark_only_rises_and_stays_within_the_log(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    fill(log, 2)
    assert log.high_watermark == 4
    assert not log.advance_high_watermark(3)
    assert not log.advance_high_watermark(99) and log.high_watermark == 4


def test_an_open_transaction_holds_the_last_stable_offset(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    fill(log, 1)
    log.append_as_leader(idempotent(0, 2, is_transactional=True), 0)
    log.advance_high_watermark(4)
    assert (log.last_stable_offset, log.high_watermark) == (2, 4)
    log.append_as_leader(build_control_batch(CONTROL_ABORT, 9, 0, 1, START_MS), 0, origin=AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == 2
    log.advance_high_watermark(5)
    assert log.last_stable_offset == 5
    aborted = [AbortedTxn(9, 2, 4, 5)]
    assert log.read(0, 1000, upper_bound=5, include_aborted=True).aborted_transactions == aborted
    assert log.read(0, 1000, upper_bound=2, include_aborted=True).aborted_transactions == []
    assert log.read(0, 1000, upper_bound=5).aborted_transactions is None


def test_the_last_stable_offset_is_not_below_the_log_start(log_fixture: LogFixture) -> None:
    """The first records of the open transaction were deleted."""
    log = log_fixture.create()
    log.append_as_leader(idempotent(0, 2, is_transactional=True), 0)
    fill(log, 2)
    log.advance_high_watermark(6)
    log.advance_log_start(4)
    assert (log.last_stable_offset, log.high_watermark) == (4, 6)


# ---------------------------------------------------------------- delete


def test_delete_records_moves_the_log_start_and_deletes_whole_segments(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=TWO_BATCHES, file_delete_delay_ms=1000)
    fill(log, 6)
    moved: list[int] = []
    log.on_log_start_moved = lambda moved_log: moved.append(moved_log.log_start_offset)
    assert log.delete_records_before(5) == 5
    assert moved == [5]
    assert code_of(log.read, 4, 100, upper_bound=12) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_of(log.delete_records_before, 13) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.delete_records_before(3) == 5
    assert log.delete_old_segments() == 1
    assert len(log_fixture.names(".deleted")) == 3
    log_fixture.clock.ms += 1000
    assert log.remove_due_files() == 3 and log_fixture.names(".deleted") == []
    assert log.delete_records_before(-1) == 12


def test_delete_records_is_refused_for_a_log_that_is_only_compacted(log_fixture: LogFixture) -> None:
    log = log_fixture.create(cleanup_policy=("compact",))
    fill(log, 1)
    assert code_of(log.delete_records_before, 1) == ErrorCode.POLICY_VIOLATION


def test_retention_by_time_deletes_the_active_segment_too(log_fixture: LogFixture) -> None:
    log = log_fixture.create(retention_ms=1000, segment_bytes=TWO_BATCHES)
    fill(log, 3)
    assert log.delete_old_segments() == 0
    log_fixture.clock.ms += 2000
    assert log.delete_old_segments() == 2
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (6, 6, 0)
    assert log.append_as_leader(batch(b"next"), 0).base_offset == 6


def test_nothing_above_the_high_watermark_is_deleted(log_fixture: LogFixture) -> None:
    log = log_fixture.create(retention_ms=0, segment_bytes=TWO_BATCHES)
    for _ in range(6):
        log.append_as_leader(batch(b"a0", b"b0"), 0)
    log_fixture.clock.ms += 1000
    log.advance_high_watermark(5)
    assert log.delete_old_segments() == 1
    assert log.log_start_offset == 4


def test_a_changed_configuration_acts_at_once(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    fill(log, 3)
    log_fixture.clock.ms += 10_000
    assert log.delete_old_segments() == 0
    log.update_config(LogConfig(retention_ms=1))
    assert log.delete_old_segments() == 1


# ---------------------------------------------------------------- truncate, follow


def test_truncation_resets_offsets_epochs_and_producers(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=TWO_BATCHES)
    for sequence in range(8):
        log.append_as_leader(idempotent(sequence), sequence // 3)
    log.advance_high_watermark(8)
    assert len(log.segments) > 2
    assert log.truncate_to(4)
    assert (log.log_end_offset, log.high_watermark, log.leader_epoch_cache.latest_epoch) == (4, 4, 1)
    assert log.append_as_leader(idempotent(3), 1).duplicate
    assert code_of(log.append_as_leader, idempotent(6), 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
        "a truncated batch is not treated as a duplicate"
    )
    assert log.append_as_leader(idempotent(4), 1).base_offset == 4
    assert not log.truncate_to(9)
    assert [record[0] for record in values(log)] == list(range(5))


def test_truncation_below_the_first_segment_leaves_an_empty_log_there(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    log.truncate_fully_and_start_at(10)
    fill(log, 2)
    assert log.truncate_to(5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)


def test_a_follower_appends_batches_unchanged(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    sent = bytes(batch(b"a", b"b", base_offset=10, leader_epoch=2)) + bytes(batch(b"c", base_offset=14, leader_epoch=3))
    assert log.append_as_follower(sent + sent[:20]) == 15
    assert b"".join(bytes(each.buffer) for each in read_all(log)) == sent
    assert [log.end_offset_for_epoch(epoch) for epoch in (2, 3)] == [(2, 14), (3, 15)]
    assert code_of(log.append_as_follower, sent) == ErrorCode.CORRUPT_MESSAGE


# ---------------------------------------------------------------- full disk, flush


def test_a_full_disk_fails_the_append_and_nothing_else(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=500)
    log.append_as_leader(idempotent(0), 0)
    before = log_fixture.file("00000000000000000000.log").read_bytes()
    log_fixture.storage.full = True
    assert code_of(log.append_as_leader, idempotent(1), 5) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log_fixture.file("00000000000000000000.log").read_bytes() == before
    assert (log.log_end_offset, log.leader_epoch_cache.latest_epoch) == (1, 0)
    assert [record[0] for record in values(log)] == [0]
    log_fixture.storage.full = False
    assert log.append_as_leader(idempotent(1), 5).base_offset == 1


@pytest.mark.trio
async def test_flush_raises_the_recovery_point(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=TWO_BATCHES, flush_messages=5)
    wanted: list[int] = []
    log.on_flush_needed = lambda flushed: wanted.append(flushed.log_end_offset)
    fill(log, 1)
    assert log.recovery_point == 0 and not log.flush_due and wanted == []
    fill(log, 2)
    assert log.flush_due and wanted == [4, 6]  # a roll, then five records
    await log.flush()
    assert log.recovery_point == 6 and not log.flush_due


@pytest.mark.trio
async def test_a_later_sync_does_not_repair_a_failed_one(log_fixture: LogFixture, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The kernel drops pages that it could not write, and lets the next fdatasync succeed ("fsyncgate")."""

    async def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def flush_code() -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            await log.flush()
        return caught.value.code

    log = log_fixture.create()
    fill(log, 1)
    await log.flush()
    fill(log, 1)
    monkeypatch.setattr(log_fixture.storage, "before_sync", fail)
    assert await flush_code() == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    assert await flush_code() == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.recovery_point == 2
    again = await log_fixture.reopen()
    await again.flush()
    assert again.recovery_point == 4


@pytest.mark.trio
async def test_the_identity_of_the_log_is_on_disk_before_any_record(log_fixture: LogFixture) -> None:
    """Records of an unknown incarnation could be treated as records of another incarnation."""
    log = log_fixture.create()
    fill(log, 1)
    assert log_fixture.storage.synced == []
    await log.flush()
    fill(log, 1)
    await log.flush()
    segment = f"{0:020}.log"
    assert [name for name in log_fixture.storage.synced if not name.endswith("checkpoint")] == [
        PARTITION_METADATA,
        segment,
        segment,
    ]


@pytest.mark.trio
async def test_after_a_kill_the_next_process_syncs_the_identity_of_the_log(log_fixture: LogFixture) -> None:
    """The next process cannot know whether the earlier process has synced the identity."""
    log_fixture.create().close_files()
    again = await log_fixture.reopen()
    fill(again, 1)
    await again.flush()
    assert log_fixture.storage.synced[0] == PARTITION_METADATA
    await again.close()
    log_fixture.storage.synced.clear()
    clean = await log_fixture.reopen(clean=True)
    fill(clean, 1)
    await clean.flush()
    assert PARTITION_METADATA not in log_fixture.storage.synced


@pytest.mark.trio
async def test_no_record_counts_as_synced_before_the_partition_metadata(log_fixture: LogFixture, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    async def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    log = log_fixture.create()
    fill(log, 1)
    monkeypatch.setattr(log_fixture.storage, "before_sync", fail)
    with pytest.raises(KafkaError, match=PARTITION_METADATA):
        await log.flush()
    monkeypatch.undo()
    with pytest.raises(KafkaError, match=PARTITION_METADATA):
        await log.flush()
    assert log.is_broken and log.recovery_point == 0


@pytest.mark.trio
async def test_records_after_a_truncation_during_a_sync_do_not_count_as_synced(
    log_fixture: LogFixture, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    log = log_fixture.create()
    await log.sync_identity()
    fill(log, 4)

    async def truncate_and_regrow() -> None:
        monkeypatch.undo()
        log.truncate_to(2)
        fill(log, 5, epoch=1)

    monkeypatch.setattr(log_fixture.storage, "before_sync", truncate_and_regrow)
    await log.flush()
    assert (log.log_end_offset, log.recovery_point, log.truncation_synced) == (12, 2, False)
    await log.flush()
    assert log.recovery_point == 12 and log.truncation_synced


@pytest.mark.trio
async def test_callers_during_a_flush_share_the_next_flush(log_fixture: LogFixture, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    log = log_fixture.create()
    started, release = trio.Event(), trio.Event()

    async def hold() -> None:
        started.set()
        await release.wait()

    monkeypatch.setattr(log_fixture.storage, "before_sync", hold)
    fill(log, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.flush)
        await started.wait()
        for _ in range(20):
            fill(log, 1)
            nursery.start_soon(log.flush)
        await trio.testing.wait_all_tasks_blocked()
        release.set()
    assert (log.recovery_point, log_fixture.storage.syncs) == (42, 2)
