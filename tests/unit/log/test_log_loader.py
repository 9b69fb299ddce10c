from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.broker.log.log_loader import Checkpoints
from anabranch.broker.log.partition_log import AppendOrigin, PartitionLog
from anabranch.protocol.batch_layout import CONTROL_ABORT
from anabranch.protocol.types import ZERO_UUID
from tests.support.log.batches import build_control_batch
from tests.support.log.log_fixture import START_MS, TOPIC_ID, LogFixture, batch, find_time, idempotent, values

pytestmark = pytest.mark.trio

SIZE = len(idempotent(0))
LOG = "00000000000000000000.log"


def fill(log: PartitionLog, count: int) -> None:
    for sequence in range(log.log_end_offset, log.log_end_offset + count):
        log.append_as_leader(idempotent(sequence, timestamp=START_MS + sequence), sequence // 4)
    log.advance_high_watermark(log.log_end_offset)


async def test_a_clean_shutdown_needs_no_recovery_and_loses_nothing(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=3 * SIZE, index_interval_bytes=10)
    fill(log, 10)
    before = values(log)
    await log.close()
    stamps = {name: log_fixture.file(name).stat().st_mtime_ns for name in log_fixture.names()}
    again = await log_fixture.reopen(clean=True, checkpoints=Checkpoints(10, 0, 8))
    assert values(again) == before
    assert (again.high_watermark, again.recovery_point, again.leader_epoch_cache.latest_epoch) == (8, 10, 2)
    assert (again.identity.topic_id, again.identity.incarnation) == (TOPIC_ID, 5)
    assert find_time(again, None) == (START_MS + 9, 9, 2)
    assert again.append_as_leader(idempotent(9), 2).duplicate
    assert {name: log_fixture.file(name).stat().st_mtime_ns for name in log_fixture.names()} == stamps


async def test_recovery_after_a_kill_rebuilds_indexes_epochs_and_producers(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=4 * SIZE, index_interval_bytes=10)
    fill(log, 10)
    before = values(log)
    for name in log_fixture.names():
        if not name.endswith((".log", "partition.metadata")):
            log_fixture.file(name).unlink()
    again = await log_fixture.reopen(index_interval_bytes=10)
    assert values(again) == before
    assert again.leader_epoch_cache.entries == [(0, 0), (1, 4), (2, 8)]
    assert again.append_as_leader(idempotent(9), 2).duplicate
    assert again.append_as_leader(idempotent(10), 2).base_offset == 10
    assert again.segments[0].offset_index.count == 3
    assert find_time(again, START_MS + 6) == (START_MS + 6, 6, 1)


def torn(data: bytes) -> bytes:
    return data[:-5]


def flipped(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 0xFF]) + data[-4:]


def zeros(data: bytes) -> bytes:
    return data[:-SIZE] + bytes(SIZE)


def garbage_length(data: bytes) -> bytes:
    return data[: -SIZE + 8] + b"\x7f\xff\xff\xff" + data[-SIZE + 12 :]


def negative_length(data: bytes) -> bytes:
    return data[: -SIZE + 8] + b"\xff\xff\xff\xff" + data[-SIZE + 12 :]


def offset_goes_back(data: bytes) -> bytes:
    return data[:-SIZE] + bytes(8) + data[-SIZE + 8 :]


@pytest.mark.parametrize("damage", [torn, flipped, zeros, garbage_length, negative_length, offset_goes_back])
async def test_the_log_ends_before_the_first_bad_batch(
    log_fixture: LogFixture, damage: Callable[[bytes], bytes]
) -> None:
    fill(log_fixture.create(), 5)
    log_fixture.file(LOG).write_bytes(damage(log_fixture.file(LOG).read_bytes()))
    again = await log_fixture.reopen(checkpoints=Checkpoints(high_watermark=5))
    assert [record[0] for record in values(again)] == [0, 1, 2, 3]
    assert (again.log_end_offset, again.high_watermark) == (4, 4)
    assert log_fixture.file(LOG).stat().st_size == 4 * SIZE
    assert again.append_as_leader(idempotent(4), 1).base_offset == 4


async def test_segments_after_a_bad_batch_are_removed(log_fixture: LogFixture) -> None:
    fill(log_fixture.create(segment_bytes=3 * SIZE), 9)
    log_fixture.file(LOG).write_bytes(flipped(log_fixture.file(LOG).read_bytes()))
    again = await log_fixture.reopen()
    assert again.log_end_offset == 2
    assert log_fixture.names(".log") == [LOG]
    assert all(int(name[:20]) <= 2 for name in log_fixture.names(".snapshot"))


async def test_a_hole_between_segments_ends_the_log_unless_compaction_made_it(log_fixture: LogFixture) -> None:
    fill(log_fixture.create(segment_bytes=3 * SIZE), 9)
    log_fixture.file(LOG).write_bytes(log_fixture.file(LOG).read_bytes()[: 2 * SIZE])
    again = await log_fixture.reopen(checkpoints=Checkpoints(first_dirty_offset=3))
    assert [record[0] for record in values(again)] == [0, 1, 3, 4, 5, 6, 7, 8]
    again = await log_fixture.reopen(cleanup_policy=("compact",))
    assert again.log_end_offset == 9
    again = await log_fixture.reopen()
    assert [record[0] for record in values(again)] == [0, 1]
    assert again.log_end_offset == 2


async def test_segments_below_the_recovery_point_are_not_read(log_fixture: LogFixture) -> None:
    fill(log_fixture.create(segment_bytes=3 * SIZE), 9)
    log_fixture.file(LOG).write_bytes(flipped(log_fixture.file(LOG).read_bytes()))
    again = await log_fixture.reopen(checkpoints=Checkpoints(recovery_point=3))
    assert again.log_end_offset == 9


async def test_a_damaged_tail_is_recovered_even_after_a_clean_shutdown(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    fill(log, 5)
    await log.close()
    log_fixture.file(LOG).write_bytes(torn(log_fixture.file(LOG).read_bytes()))
    again = await log_fixture.reopen(clean=True)
    assert again.log_end_offset == 4


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd size", "nonsense"])
async def test_a_bad_index_of_a_sealed_segment_is_built_again(
    log_fixture: LogFixture, suffix: str, damage: str
) -> None:
    log = log_fixture.create(segment_bytes=3 * SIZE, index_interval_bytes=10)
    fill(log, 9)
    await log.close()
    path = log_fixture.file("00000000000000000000" + suffix)
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[:-1] if damage == "odd size" else b"\xff" * len(whole))
    again = await log_fixture.reopen(clean=True, index_interval_bytes=10)
    assert [record[0] for record in values(again)] == list(range(9))
    assert path.read_bytes() == whole


async def test_leftovers_of_a_crash_are_removed(log_fixture: LogFixture) -> None:
    fill(log_fixture.create(), 3)
    for name in (f"{5:020d}.log.deleted", f"{0:020d}.log.cleaned", f"{0:020d}.index.swap", "x.tmp", f"{7:020d}.index"):
        log_fixture.file(name).write_bytes(b"x")
    again = await log_fixture.reopen()
    assert again.log_end_offset == 3
    assert [
        name for name in log_fixture.names() if "." in name and name.split(".", 1)[1] not in ("log", "metadata")
    ] == [
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
    ]


async def test_the_log_start_survives_and_an_empty_log_begins_there(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    fill(log, 5)
    log.delete_records_before(3)
    again = await log_fixture.reopen(checkpoints=Checkpoints(0, 3, 5))
    assert [record[0] for record in values(again)] == [3, 4]
    log_fixture.file(LOG).write_bytes(b"")
    empty = await log_fixture.reopen(checkpoints=Checkpoints(0, 3, 5))
    assert (empty.log_start_offset, empty.log_end_offset, empty.high_watermark) == (3, 3, 3)
    assert empty.append_as_leader(batch(b"next"), 9).base_offset == 3


async def test_a_directory_without_files_is_an_empty_log_without_an_identity(log_fixture: LogFixture) -> None:
    log_fixture.storage.makedirs(log_fixture.directory)
    log = await log_fixture.reopen()
    assert (log.log_end_offset, log.identity.topic_id, log.identity.incarnation) == (0, ZERO_UUID, -1)


async def test_a_malformed_epoch_file_is_built_again(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    fill(log, 6)
    await log.close()
    log_fixture.file("leader-epoch-checkpoint").write_bytes(b"rubbish")
    again = await log_fixture.reopen(clean=True)
    assert again.leader_epoch_cache.entries == [(0, 0), (1, 4)]


async def test_an_earlier_snapshot_is_used_instead_of_a_damaged_one(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=3 * SIZE)
    fill(log, 8)
    await log.close()
    newest = log_fixture.names(".snapshot")[-1]
    log_fixture.file(newest).write_bytes(b"\x00\x01rubbish")
    again = await log_fixture.reopen(clean=True)
    assert again.append_as_leader(idempotent(7), 1).duplicate
    assert again.append_as_leader(idempotent(8), 1).base_offset == 8


async def test_aborted_transactions_survive_a_restart(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    log.append_as_leader(idempotent(0, 2, is_transactional=True), 0)
    log.append_as_leader(build_control_batch(CONTROL_ABORT, 9, 0, 1, START_MS), 0, origin=AppendOrigin.COORDINATOR)
    log.append_as_leader(idempotent(2, 2, is_transactional=True), 0)
    log.advance_high_watermark(5)
    aborted = log.read(0, 1000, upper_bound=5, include_aborted=True).aborted_transactions
    assert aborted
    for lose_index in (False, True):
        if lose_index:
            log_fixture.file("00000000000000000000.txnindex").unlink()
        again = await log_fixture.reopen(checkpoints=Checkpoints(high_watermark=5))
        assert again.read(0, 1000, upper_bound=5, include_aborted=True).aborted_transactions == aborted
        assert again.last_stable_offset == 3


async def test_a_log_opens_on_a_full_disk(log_fixture: LogFixture) -> None:
    fill(log_fixture.create(segment_bytes=3 * SIZE), 8)
    log_fixture.storage.full = True
    again = await log_fixture.reopen()
    assert [record[0] for record in values(again)] == list(range(8))


async def test_a_crash_at_any_change_keeps_acknowledged_records(log_fixture: LogFixture) -> None:
    """The run appends, rolls, flushes, applies retention and closes.

    The process is killed at each change to the disk, with half of the change written.
    """
    crash_at = 0
    while True:
        trial = LogFixture(log_fixture.root / str(crash_at))
        acknowledged, finished, recovery_point = 0, False, 0
        log = trial.create(segment_bytes=3 * SIZE, retention_bytes=6 * SIZE, index_interval_bytes=10)
        trial.storage.changes, trial.storage.crash_at = 0, crash_at
        try:
            for sequence in range(12):
                log.append_as_leader(idempotent(sequence), sequence // 5)
                acknowledged = sequence + 1
                if sequence == 6:
                    await log.flush()
                    recovery_point = log.recovery_point
            log.advance_high_watermark(12)
            log.delete_old_segments()
            await log.close()
            finished = True
        except BaseException as error:
            if "Crash" not in repr(error):
                raise
        trial.storage.crash_at = -1
        again = await trial.reopen(
            checkpoints=Checkpoints(recovery_point, log.log_start_offset, 0), index_interval_bytes=10
        )
        end = again.log_end_offset
        assert end in (acknowledged, acknowledged + 1), (
            f"crash at {crash_at}: one more batch may be written than was acknowledged"
        )
        assert again.log_start_offset == log.log_start_offset
        assert [record[0] for record in values(again)] == list(range(again.log_start_offset, end)), crash_at
        if end:
            assert again.append_as_leader(idempotent(end - 1), 9).duplicate
        assert again.append_as_leader(idempotent(end), 9).base_offset == end
        if finished:
            break
        crash_at += 1
    assert crash_at > 30


async def test_epochs_are_taken_from_the_log_when_the_checkpoint_contradicts_it(log_fixture: LogFixture) -> None:
    """A power failure undid a truncation: the log has old batches, and the checkpoint has new epochs (KIP-101)."""
    log = log_fixture.create()
    fill(log, 8)  # epochs 0 and 1, with four records each
    assert log.leader_epoch_cache.entries == [(0, 0), (1, 4)]
    log.close_files()
    old = log_fixture.file(LOG).read_bytes()
    log = await log_fixture.reopen()
    log.truncate_to(4)
    log.append_as_leader(batch(b"new"), 2)
    assert log.leader_epoch_cache.entries == [(0, 0), (2, 4)]
    log.close_files()
    log_fixture.file(LOG).write_bytes(old)
    again = await log_fixture.reopen()
    assert again.leader_epoch_cache.entries == [(0, 0), (1, 4)]
    assert (again.leader_epoch_cache.latest_epoch, again.end_offset_for_epoch(1)) == (1, (1, 8))
