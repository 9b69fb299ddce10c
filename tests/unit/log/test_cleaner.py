from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.coordinator.consumer_offsets_records import decode, encode
from anabranch.broker.coordinator.durable import OffsetRecord, StoredOffset
from anabranch.broker.log.cleaner import LogCleaner, group_segments
from anabranch.broker.log.compaction import CleanedTransactions, KeyOffsets
from anabranch.broker.log.current_logs import CurrentLogs
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_directory import LogDirectory
from anabranch.broker.log.manager_config import LogManagerConfig
from anabranch.broker.log.partition_log import AppendOrigin, PartitionLog
from anabranch.broker.log.slices import at_once
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT, MAX_LONG
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from tests.support.log.batches import build_control_batch
from tests.support.log.log_fixture import START_MS, TOPIC_ID, Crash, LogFixture, batch, idempotent, read_all, values

pytestmark = pytest.mark.trio

DAY_MS = 86_400_000


def cleaner_for(log_fixture: LogFixture, log: PartitionLog, **config: Any) -> LogCleaner:
    logs = CurrentLogs()
    logs.add(log, LogDirectory(log_fixture.storage, str(log_fixture.root)))
    return LogCleaner(log_fixture.env, LogManagerConfig(1, "c", (str(log_fixture.root),), **config), logs)


def compacted(log_fixture: LogFixture, **config: Any) -> PartitionLog:
    settings: dict[str, Any] = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0, **config}
    return log_fixture.create(**settings)


def put(log: PartitionLog, **pairs: bytes | None) -> None:
    log.append_as_leader(batch(*pairs.values(), keys=[name.encode() for name in pairs]), 0)
    log.advance_high_watermark(log.log_end_offset)


async def clean(cleaner: LogCleaner) -> None:
    while await cleaner.clean_dirtiest():
        pass


async def test_the_last_value_of_each_key_stays_at_its_offset(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture)
    put(log, a=b"1", b=b"1", c=b"1")
    log.roll()
    put(log, a=b"2")
    put(log, b=b"2", d=b"1")
    log.roll()
    put(log, c=b"active")
    cleaner = cleaner_for(log_fixture, log)
    await clean(cleaner)
    assert values(log) == [(2, b"c", b"1"), (3, b"a", b"2"), (4, b"b", b"2"), (5, b"d", b"1"), (6, b"c", b"active")]
    assert len(log.segments) == 2
    assert log.read(0, 1000, upper_bound=7).size_bytes > 0, (
        "a read at a removed offset begins at the next one that exists"
    )
    assert (log_fixture.root / "cleaner-offset-checkpoint").read_bytes() == b"0\n1\nt 0 6\n"
    assert not await cleaner.clean_dirtiest()
    again = await log_fixture.reopen()
    assert values(again) == values(log)


async def test_kip_915_compaction_keeps_records_of_a_newer_coordinator_unchanged(log_fixture: LogFixture) -> None:
    """KIP-915: compaction keeps the last record of each key byte for byte.

    This includes unknown tagged fields and unknown key types.
    """
    record = OffsetRecord("g", TopicPartition("t", 0), StoredOffset(5, commit_timestamp_ms=START_MS))
    key, value = encode(record)
    assert value is not None and value.endswith(b"\x00"), "the value has no tagged fields yet"
    tagged = value[:-1] + b"\x01\x63\x02\xab\xcd"  # one tag, number 99, two bytes
    unknown_key = b"\x00\x09\x00\x01x"
    log = compacted(log_fixture)
    log.append_as_leader(batch(value, b"old", keys=[key, unknown_key]), 0)
    log.append_as_leader(batch(tagged, b"new", keys=[key, unknown_key]), 0)
    log.advance_high_watermark(log.log_end_offset)
    log.roll()
    await clean(cleaner_for(log_fixture, log))
    assert values(log) == [(2, key, tagged), (3, unknown_key, b"new")]
    assert decode(key, tagged) == record


async def test_a_range_read_before_compaction_stays_readable(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture)
    put(log, a=b"1")
    put(log, a=b"2")
    log.roll()
    found = log.read(0, 1000, upper_bound=2).records
    before = found.read()  # type: ignore[union-attr]
    await clean(cleaner_for(log_fixture, log))
    assert found.read() == before  # type: ignore[union-attr]
    assert values(log) == [(1, b"a", b"2")]


async def test_a_tombstone_is_removed_delete_retention_ms_after_its_first_compaction(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture, delete_retention_ms=DAY_MS)
    put(log, a=b"1")
    put(log, a=None, b=b"1")
    log.roll()
    cleaner = cleaner_for(log_fixture, log)
    await clean(cleaner)
    assert values(log) == [(1, b"a", None), (2, b"b", b"1")]
    header = read_all(log)[0]
    assert header.has_delete_horizon and header.base_timestamp == START_MS + DAY_MS and header.verify_crc()
    assert [record.timestamp for record in header] == [START_MS, START_MS + 1], (
        "records keep their timestamps (KIP-534)"
    )
    for elapsed_ms, expected in [(DAY_MS, [1, 2, 3]), (DAY_MS + 1, [2, 4])]:
        log_fixture.clock.ms = START_MS + elapsed_ms
        put(log, c=b"new")
        log.roll()
        await clean(cleaner)
        assert [offset for offset, _, _ in values(log)] == expected


@pytest.mark.parametrize(
    ("timestamp", "horizon"), [(START_MS, MAX_LONG), (NO_TIMESTAMP, MAX_LONG), (-START_MS, MAX_LONG - START_MS + 1)]
)
async def test_tombstones_that_stay_for_ever_can_be_compacted_and_read(
    log_fixture: LogFixture, timestamp: int, horizon: int
) -> None:
    log = compacted(log_fixture, delete_retention_ms=MAX_LONG)
    for pairs in ({b"a": b"1", b"b": None}, {b"a": b"2"}):
        log.append_as_leader(build_batch([(key, value, (), timestamp) for key, value in pairs.items()]), 0)
    log.advance_high_watermark(log.log_end_offset)
    log.roll()
    put(log, c=b"active")
    await clean(cleaner_for(log_fixture, log))
    assert values(log) == [(1, b"b", None), (2, b"a", b"2"), (3, b"c", b"active")]
    header = read_all(log)[0]
    assert (header.has_delete_horizon, header.base_timestamp) == (True, horizon)
    assert [record.timestamp for record in header] == [timestamp]


@pytest.mark.parametrize("kept", [(NO_TIMESTAMP, MAX_LONG), (-START_MS, MAX_LONG)])
async def test_records_whose_timestamps_are_very_far_apart_stay_readable(
    log_fixture: LogFixture, kept: tuple[int, int]
) -> None:
    """The first record, from which the others can be written, is removed."""
    log = compacted(log_fixture, message_timestamp_after_max_ms=MAX_LONG)
    log.append_as_leader(build_batch([(b"%d" % n, b"v", (), timestamp) for n, timestamp in enumerate((0, *kept))]), 0)
    put(log, **{"0": b"new"})
    log.roll()
    put(log, c=b"active")
    await clean(cleaner_for(log_fixture, log))
    assert [offset for offset, _, _ in values(log)] == [1, 2, 3, 4]
    assert [record.timestamp for record in read_all(log)[0]] == list(kept)


async def test_hole_24_a_tombstone_stays_where_another_partition_may_hold_older_values(log_fixture: LogFixture) -> None:
    """Without the tombstone a new reader would use the parent's old record as the value of the key."""
    log = compacted(log_fixture, delete_retention_ms=DAY_MS)
    cleaner = cleaner_for(log_fixture, log)
    first_kept_epoch = 3

    async def known(_partition: TopicPartition) -> int:
        return first_kept_epoch

    cleaner.first_kept_epoch = known
    moved = [(b"m", None, [(MOVED_HEADER, b"")], START_MS)]
    put(log, a=b"1", m=b"1", z=b"1")
    log.append_as_leader(build_batch([(b"z", None, (), START_MS)]), 2)
    log.append_as_leader(build_batch([(b"a", None, (), START_MS)]), 3)
    log.append_as_leader(build_batch(moved), 4)
    log.advance_high_watermark(6)
    log.roll()
    await clean(cleaner)
    assert values(log) == [(3, b"z", None), (4, b"a", None), (5, b"m", None)]
    log_fixture.clock.ms = START_MS + DAY_MS + 1
    put(log, c=b"new")
    log.roll()
    await clean(cleaner)
    why = "a tombstone of an earlier epoch, or of a moved key, is not needed"
    assert values(log) == [(4, b"a", None), (6, b"c", b"new")], why
    first_kept_epoch = 5
    put(log, c=b"newer")
    log.roll()
    await clean(cleaner)
    assert values(log) == [(7, b"c", b"newer")]


async def test_the_last_batch_of_a_producer_stays_without_records(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture)
    log.append_as_leader(idempotent(0, keys=[b"a"]), 0)
    log.append_as_leader(idempotent(1, keys=[b"a"]), 0)
    put(log, a=b"other")
    log.roll()
    await clean(cleaner_for(log_fixture, log))
    assert values(log) == [(2, b"a", b"other")]
    kept = read_all(log)[0]
    assert (kept.base_offset, kept.count, kept.producer_id, kept.last_sequence) == (1, 0, 9, 1)
    for name in log_fixture.names(".snapshot"):
        log_fixture.file(name).unlink()
    again = await log_fixture.reopen()
    assert again.append_as_leader(idempotent(1, keys=[b"a"]), 0).duplicate
    assert again.append_as_leader(idempotent(2, keys=[b"a"]), 0).base_offset == 3


async def test_only_records_older_than_min_compaction_lag_are_cleaned(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture, min_compaction_lag_ms=1000)
    put(log, a=b"1")
    log.roll()
    put(log, a=b"2")
    log.roll()
    cleaner = cleaner_for(log_fixture, log)
    await clean(cleaner)
    assert len(values(log)) == 2
    log_fixture.clock.ms += 1001
    assert await cleaner.clean_dirtiest()
    assert [offset for offset, _, _ in values(log)] == [1]


async def test_nothing_above_the_last_stable_offset_is_cleaned(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture)
    put(log, a=b"1")
    log.append_as_leader(idempotent(0, is_transactional=True), 0)
    put(log, a=b"2")
    log.roll()
    cleaner = cleaner_for(log_fixture, log)
    await clean(cleaner)
    assert [offset for offset, _, _ in values(log)] == [0, 1, 2]
    log.append_as_leader(build_control_batch(CONTROL_COMMIT, 9, 0, 1, START_MS), 0, origin=AppendOrigin.COORDINATOR)
    log.advance_high_watermark(4)
    log.roll()
    await clean(cleaner)
    assert [offset for offset, _, _ in values(log)] == [1, 2, 3]


async def test_a_log_below_the_dirty_ratio_is_cleaned_after_max_compaction_lag(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture, min_cleanable_dirty_ratio=0.6, max_compaction_lag_ms=5000)
    cleaner = cleaner_for(log_fixture, log)
    put(log, a=b"1" * 100)
    log.roll()
    await clean(cleaner)
    put(log, a=b"2" * 100)
    log.roll()
    assert cleaner.dirty_range(log).ratio == 0.5
    assert not await cleaner.clean_dirtiest()
    log_fixture.clock.ms += 5001
    assert await cleaner.clean_dirtiest()
    assert [offset for offset, _, _ in values(log)] == [1]


async def test_the_cleaner_does_not_change_a_log_that_is_not_compacted(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    put(log, a=b"1")
    put(log, a=b"2")
    log.roll()
    assert not await cleaner_for(log_fixture, log).clean_dirtiest()


async def test_keys_that_do_not_fit_in_memory_are_compacted_in_several_runs(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture)
    for value in (b"1", b"2"):
        for number in range(40):
            put(log, **{f"k{number}": value})
    log.roll()
    await clean(cleaner_for(log_fixture, log, cleaner_dedupe_buffer_bytes=200 * 15))
    assert values(log) == [(40 + number, b"k%d" % number, b"2") for number in range(40)]


async def test_compaction_distinguishes_long_keys(log_fixture: LogFixture) -> None:
    keys = KeyOffsets(10_000)
    long = [bytes([letter]) * 100 for letter in b"abc"]
    first = RecordBatch(batch(b"1", b"1", b"1", keys=long))
    at_once(keys.add(first, CleanedTransactions([])))
    second = RecordBatch(batch(b"2", keys=long[:1], base_offset=3))
    at_once(keys.add(second, CleanedTransactions([])))
    assert [keys.is_latest(record) for record in first] == [False, True, True]
    assert keys.is_latest(second.records()[0]) and keys.end_offset == 4


async def test_small_segments_are_merged(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture, segment_bytes=300)
    for number in range(8):
        put(log, **{f"k{number}": b"x" * 30})
        log.roll()
    groups = group_segments(log, log.segments[:-1])
    assert [len(group) for group in groups] == [3, 3, 2]
    before = values(log)
    await clean(cleaner_for(log_fixture, log))
    assert values(log) == before
    assert len(log.segments) == 4


async def test_aborted_records_are_removed_and_their_marker_after_them(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture, delete_retention_ms=1000)
    cleaner = cleaner_for(log_fixture, log)

    def marker(kind: int, producer_id: int) -> None:
        data = build_control_batch(kind, producer_id, 0, 1, START_MS)
        log.append_as_leader(data, 0, origin=AppendOrigin.COORDINATOR)
        log.advance_high_watermark(log.log_end_offset)

    put(log, a=b"committed before")
    log.append_as_leader(idempotent(0, keys=[b"a"], producer_id=1, is_transactional=True), 0)
    log.append_as_leader(idempotent(0, keys=[b"b"], producer_id=2, is_transactional=True), 0)
    marker(CONTROL_ABORT, 1)
    marker(CONTROL_COMMIT, 2)
    put(log, z=b"z")
    log.roll()
    await clean(cleaner)
    kept = [(each.base_offset, each.is_control) for each in read_all(log) if each.count]
    assert kept == [(0, False), (2, False), (3, True), (4, True), (5, False)]
    assert log.read(0, 1000, upper_bound=6, include_aborted=True).aborted_transactions == [(1, 1, 3, 2)]
    # While the producer is active, the marker stays, and the producer's last batch stays without records. Later a
    # run finds no batch of the transaction: the marker gets a delete horizon, and is removed after it.
    log.producers.remove_expired(START_MS + DAY_MS)
    for number in range(4):
        put(log, z=b"%d" % number)
        log.roll()
        log_fixture.clock.ms += 1001
        await clean(cleaner)
    assert [each.base_offset for each in read_all(log) if each.is_control and each.count] == [4]
    assert log.read(0, 1000, upper_bound=6, include_aborted=True).aborted_transactions == []
    assert values(log)[0] == (0, b"a", b"committed before")


async def test_a_crash_at_any_change_keeps_the_last_value_of_each_key(log_fixture: LogFixture) -> None:
    def latest(log: PartitionLog) -> dict[bytes | None, tuple[int, bytes | None]]:
        return {key: (offset, value) for offset, key, value in values(log)}

    crash_at = 0
    finished = False
    while not finished:
        trial = LogFixture(log_fixture.root / str(crash_at))
        log = compacted(trial, segment_bytes=300)
        for number in range(10):
            put(log, **{f"k{number % 4}": b"%d" % number, f"only{number}": b"x"})
        log.roll()
        await log.flush()
        expected, trial.storage.changes, trial.storage.crash_at = latest(log), 0, crash_at
        cleaner = cleaner_for(trial, log)
        try:
            await clean(cleaner)
            finished = True
        except Crash:
            pass
        trial.storage.crash_at = -1
        for clean_start in (True, False):
            again = await trial.reopen(clean=clean_start, cleanup_policy=("compact",))
            assert latest(again) == expected, crash_at
            assert again.log_end_offset == log.log_end_offset
            offsets = [offset for offset, _, _ in values(again)]
            assert offsets == sorted(set(offsets))
        crash_at += 1
    assert crash_at > 40


async def test_the_cleaner_does_not_replace_segments_that_were_deleted_meanwhile(log_fixture: LogFixture) -> None:
    log = compacted(log_fixture)
    put(log, a=b"1")
    put(log, a=b"2")
    log.roll()
    old = list(log.segments[:1])
    log.truncate_fully_and_start_at(9)
    assert not log.replace_segments(old, log.segments[0])


async def test_other_logs_are_cleaned_while_one_is_unreadable(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started()
    for name, batches in (("bad", 40), ("good", 30)):
        settings = LogConfig(cleanup_policy=("compact",), segment_bytes=1000, min_cleanable_dirty_ratio=0.01)
        log = manager.create(TopicPartition(name, 0), TOPIC_ID, 7, settings)
        for _ in range(batches):
            put(log, k=b"v" * 100)
    bad, good = (manager.get(TopicPartition(name, 0)) for name in ("bad", "good"))
    assert bad is not None and good is not None
    damaged = Path(bad.segments[0].path(".log"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:16] + b"\x09" + whole[17:])
    bad.segments[0].close()
    before = good.size_bytes
    await clean(manager.cleaner)
    assert good.size_bytes < before / 3
    assert not await manager.cleaner.clean_dirtiest(), "the bad log is not tried again for a while"
    bad.update_config(LogConfig(cleanup_policy=("compact",), max_compaction_lag_ms=10))
    log_fixture.clock.ms += 1000
    log_fixture.clock.seconds += 10
    assert not await manager.cleaner.clean_dirtiest(), "not even the age of the log can be read"
    damaged.write_bytes(whole)
    bad.segments[0].close()
    log_fixture.clock.seconds += 10
    await clean(manager.cleaner)
    assert bad.size_bytes < before / 3


@pytest.mark.parametrize("clean_shutdown", [True, False])
async def test_a_log_that_was_compacted_loads_without_its_policy_and_checkpoint(
    log_fixture: LogFixture, clean_shutdown: bool
) -> None:
    """The policy is ``delete`` now, and the cleaner's checkpoint is deleted: a gap would look like lost records."""
    log = compacted(log_fixture, segment_bytes=200)
    for value in (b"1", b"2"):
        put(log, a=value)
        put(log, b=value)
        log.roll()
    put(log, c=b"active")
    await clean(cleaner_for(log_fixture, log, cleaner_dedupe_buffer_bytes=1 << 20))
    before = values(log)
    assert [value for _, _, value in before] == [b"2", b"2", b"active"]
    assert len(log.segments) == 3, "the first segment ends with a batch without records"
    log.close_files()
    again = await log_fixture.reopen(clean=clean_shutdown, cleanup_policy=("delete",))
    assert not again.is_broken and values(again) == before
