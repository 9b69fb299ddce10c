"""If the disk refuses a step half-way, the log is unchanged in memory and on disk, or it accepts no appends."""

from __future__ import annotations

import pytest

from anabranch.broker.log.log_loader import Checkpoints
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.protocol.errors import ErrorCode, KafkaError
from tests.support.log.log_fixture import LogFixture, batch, idempotent, values

pytestmark = pytest.mark.trio

SIZE = len(idempotent(0))
SMALL = len(batch(b"small"))
LOG = "{:020d}.log"


def with_failed_roll(log_fixture: LogFixture, suffix: str) -> PartitionLog:
    """Return a log with a refused roll.

    Offsets 0 to 3 are from before the roll. The disk refuses one file of the roll, so offsets 4 to 6 are in the same
    segment.
    """
    log = log_fixture.create(segment_bytes=2000)
    for _ in range(4):
        log.append_as_leader(batch(b"a" * 300), 0)
    log_fixture.storage.full_for = suffix
    with pytest.raises(KafkaError) as raised:
        log.append_as_leader(batch(b"L" * 1500), 0)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    log_fixture.storage.full_for = ""
    for _ in range(3):
        log.append_as_leader(batch(b"small"), 0)
    return log


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
async def test_records_after_a_failed_roll_are_kept(log_fixture: LogFixture, suffix: str, clean: bool) -> None:
    log = with_failed_roll(log_fixture, suffix)
    assert log_fixture.names(".log") == [LOG.format(0)]
    before = values(log)
    if clean:
        await log.close()
    again = await log_fixture.reopen(clean=clean, segment_bytes=2000)
    assert values(again) == before
    assert again.append_as_leader(batch(b"next"), 0).base_offset == 7


@pytest.mark.parametrize("clean", [True, False])
async def test_an_empty_segment_that_a_failed_roll_left_is_removed(log_fixture: LogFixture, clean: bool) -> None:
    log = with_failed_roll(log_fixture, ".log")
    for _ in range(12):
        log.append_as_leader(batch(b"b" * 300), 0)
    before = values(log)
    await (log.close() if clean else log.flush())
    for suffix in (".log", ".index"):
        log_fixture.file(f"{4:020d}{suffix}").write_bytes(b"")
    again = await log_fixture.reopen(
        clean=clean, segment_bytes=2000, checkpoints=Checkpoints(recovery_point=log.recovery_point)
    )
    assert values(again) == before
    assert LOG.format(4) not in log_fixture.names()


@pytest.mark.parametrize("name", [f"{0:020d}.timeindex", f"{3:020d}.snapshot.tmp"])
async def test_a_roll_without_a_complete_index_or_a_snapshot_loses_no_record(
    log_fixture: LogFixture, name: str
) -> None:
    log = log_fixture.create(segment_bytes=3 * SIZE)
    for sequence in range(3):
        log.append_as_leader(idempotent(sequence), 0)
    log_fixture.storage.full_for = name
    assert log.append_as_leader(idempotent(3), 0).base_offset == 3
    log_fixture.storage.full_for = ""
    assert log_fixture.names(".log") == [LOG.format(0), LOG.format(3)]
    assert name.removesuffix(".tmp") not in [
        found for found in log_fixture.names() if log_fixture.file(found).stat().st_size
    ]
    before = values(log)
    again = await log_fixture.reopen(segment_bytes=3 * SIZE)
    assert values(again) == before
    assert again.append_as_leader(idempotent(3), 0).duplicate


async def test_a_new_segment_is_empty_although_files_of_its_names_exist(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=3 * SIZE)
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        log_fixture.file(f"{3:020d}{suffix}").write_bytes(b"left over" * 10)
    for sequence in range(4):
        log.append_as_leader(idempotent(sequence), 0)
    assert [offset for offset, _, _ in values(log)] == [0, 1, 2, 3]
    assert log_fixture.file(LOG.format(3)).stat().st_size == SIZE


def leave_a_part(log_fixture: LogFixture, log: PartitionLog) -> None:
    """Let the disk refuse an append half-way."""
    log_fixture.storage.full_with_parts = log_fixture.storage.full = True
    with pytest.raises(KafkaError) as raised:
        log.append_as_leader(batch(b"small"), 0)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    log_fixture.storage.full_with_parts = log_fixture.storage.full = False
    path = log_fixture.file(LOG.format(0))
    assert path.stat().st_size > log.segments[-1].size_bytes


@pytest.mark.parametrize("clean", [True, False])
async def test_a_partial_batch_is_cut_off_before_a_new_segment(log_fixture: LogFixture, clean: bool) -> None:
    """If the part stayed at the end of the sealed segment, the part would count as records after a clean restart."""
    log = log_fixture.create(segment_bytes=2 * SMALL)
    log.append_as_leader(batch(b"small"), 0)
    leave_a_part(log_fixture, log)
    log.append_as_leader(batch(b"large" * 100), 0)
    assert log_fixture.names(".log") == [LOG.format(0), LOG.format(1)]
    assert log_fixture.file(LOG.format(0)).stat().st_size == SMALL
    await (log.close() if clean else log.flush())
    again = await log_fixture.reopen(clean=clean, segment_bytes=2 * SMALL)
    assert [offset for offset, _, _ in values(again)] == [0, 1]


# ---------------------------------------------------------------- segments that do not join


async def hole(log_fixture: LogFixture, *, clean: bool = True, **checkpoints: int) -> PartitionLog:
    """Return a log of three segments, the second of which is missing."""
    log = log_fixture.create(segment_bytes=3 * SIZE)
    for sequence in range(9):
        log.append_as_leader(idempotent(sequence), 0)
    await log.close()
    log_fixture.file(LOG.format(3)).unlink()
    return await log_fixture.reopen(
        clean=clean, segment_bytes=3 * SIZE, checkpoints=Checkpoints(9, high_watermark=9, **checkpoints)
    )


@pytest.mark.parametrize("clean", [True, False])
async def test_a_log_with_a_hole_is_broken_and_ends_before_it(log_fixture: LogFixture, clean: bool) -> None:
    log = await hole(log_fixture, clean=clean)
    assert log.is_broken
    assert f"{LOG.format(0)} and {log_fixture.directory}/{LOG.format(6)} lack offsets 3 to 5" in log.failure
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (3, 3, 3)
    with pytest.raises(KafkaError, match="lack offsets 3 to 5"):
        log.append_as_leader(batch(b"x"), 0)
    with pytest.raises(KafkaError, match="lack offsets 3 to 5"):
        await log.close()
    assert log_fixture.names(".log") == [LOG.format(0), LOG.format(6)]


async def test_a_broken_log_is_complete_again_when_its_file_is_back(log_fixture: LogFixture) -> None:
    lost = None
    log = log_fixture.create(segment_bytes=3 * SIZE)
    for sequence in range(9):
        log.append_as_leader(idempotent(sequence), 0)
    await log.close()
    before = values(log)
    lost = log_fixture.file(LOG.format(3)).read_bytes()
    log_fixture.file(LOG.format(3)).unlink()
    assert (await log_fixture.reopen(clean=True)).is_broken
    log_fixture.file(LOG.format(3)).write_bytes(lost)
    again = await log_fixture.reopen(checkpoints=Checkpoints(3))
    assert not again.is_broken and values(again) == before


async def test_a_gap_that_compaction_made_is_no_hole(log_fixture: LogFixture) -> None:
    log = await hole(log_fixture, first_dirty_offset=6)
    assert not log.is_broken
    assert [offset for offset, _, _ in values(log)] == [0, 1, 2, 6, 7, 8]


async def test_a_hole_below_the_log_start_does_not_break_the_log(log_fixture: LogFixture) -> None:
    log = await hole(log_fixture, log_start_offset=6)
    assert not log.is_broken
    assert [offset for offset, _, _ in values(log)] == [6, 7, 8]


async def test_segments_with_the_same_offsets_break_a_log(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=3 * SIZE)
    for sequence in range(9):
        log.append_as_leader(idempotent(sequence), 0)
    await log.close()
    with log_fixture.file(LOG.format(0)).open("ab") as file:
        file.write(log_fixture.file(LOG.format(3)).read_bytes()[:SIZE])
    again = await log_fixture.reopen(clean=True)
    assert "both have offsets 3 to 3" in again.failure


async def test_a_damaged_segment_below_the_recovery_point_is_not_cut(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=3 * SIZE)
    for sequence in range(9):
        log.append_as_leader(idempotent(sequence), 0)
    await log.close()
    path = log_fixture.file(LOG.format(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + b"\xff" + whole[-4:])
    log_fixture.file(f"{3:020d}.index").unlink()  # makes the loader read the segment
    again = await log_fixture.reopen(clean=True)
    assert again.is_broken and path.name in again.failure
    assert (again.log_end_offset, path.stat().st_size) == (5, len(whole))


async def test_a_follower_of_a_compacted_log_has_no_holes_between_segments(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=2 * SIZE)
    for offset in (0, 4, 9, 11):
        log.append_as_follower(bytes(batch(b"v", base_offset=offset)))
    await log.close()
    assert [segment.base_offset for segment in log.segments] == [0, 5, 10][: len(log.segments)]
    again = await log_fixture.reopen(clean=True)
    assert [offset for offset, _, _ in values(again)] == [0, 4, 9, 11]


# ---------------------------------------------------------------- truncation


async def test_a_truncation_that_cannot_rebuild_the_producers_breaks_the_log(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    for sequence in range(4):
        log.append_as_leader(idempotent(sequence), 0)
    segment = log.segments[-1]

    def unreadable() -> int:
        raise OSError(5, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(segment), "load_tail", lambda _self: unreadable())
        with pytest.raises(KafkaError):
            log.truncate_to(2)
    assert log.is_broken
    with pytest.raises(KafkaError):
        log.append_as_leader(idempotent(4), 0)
    assert (await log_fixture.reopen()).log_end_offset == 2


async def test_a_flush_syncs_a_truncated_segment_although_a_new_segment_follows(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=3 * SIZE)
    for sequence in range(5):
        log.append_as_leader(idempotent(sequence), 0)
    await log.flush()
    log.truncate_to(4)
    log.roll()
    log.append_as_leader(idempotent(4), 1)
    log_fixture.storage.synced.clear()
    await log.flush()
    assert LOG.format(3) in log_fixture.storage.synced, (
        "otherwise a power failure brings back the old record below the new one"
    )


async def test_truncating_fully_renames_the_empty_log(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=3 * SIZE)
    for sequence in range(9):
        log.append_as_leader(idempotent(sequence), 0)
    for start in (100, 100, 4):
        log.truncate_fully_and_start_at(start)
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (start,) * 3
        assert log_fixture.names(".log") == [LOG.format(start)]
    assert log.append_as_leader(idempotent(0), 1).base_offset == 4
    assert (await log_fixture.reopen()).log_start_offset == 4


async def test_a_log_that_broke_names_the_step_the_error_and_the_file(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    log.append_as_leader(batch(b"v"), 0)
    segment = log.segments[-1]
    with pytest.MonkeyPatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise OSError(5, "Input/output error", segment.file.path)

        patch.setattr(type(log._segments), "read", fail)
        with pytest.raises(KafkaError):
            log.read(0, 1000, upper_bound=1)
    assert log.is_broken
    assert log.failure == f"read failed: [Errno 5] Input/output error: '{segment.file.path}'"
    with pytest.raises(KafkaError, match=r"the log is broken: read failed: \[Errno 5\]"):
        log.append_as_leader(batch(b"v"), 0)
