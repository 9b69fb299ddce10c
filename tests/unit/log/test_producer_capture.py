"""A roll takes the snapshot of many producers in steps, but the snapshot has the state at the roll."""

from __future__ import annotations

import random
from typing import Any

import pytest

from anabranch.broker.log import producer_capture, snapshot_files
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.producer_snapshot import decode_snapshot
from anabranch.broker.log.slices import TimeSlice
from tests.support.log.log_fixture import LogFixture, idempotent

pytestmark = pytest.mark.trio
FEW = 10


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (producer_capture, snapshot_files):
        monkeypatch.setattr(module, "PRODUCERS_AT_ONCE", FEW)


def filled(log_fixture: LogFixture, producers: int = 5 * FEW, rounds: int = 3) -> PartitionLog:
    log = log_fixture.create()
    for number in range(producers * rounds):
        append(log, number % producers, number // producers)
    return log


def append(log: PartitionLog, producer_id: int, sequence: int) -> None:
    log.append_as_leader(idempotent(sequence, producer_id=producer_id), 0)
    log.advance_high_watermark(log.log_end_offset)


def on_disk(log_fixture: LogFixture, offset: int) -> list[Any]:
    path = f"{log_fixture.directory}/{offset:020d}.snapshot"
    return sorted(decode_snapshot(path, log_fixture.storage.read_bytes(path)))


async def test_a_snapshot_has_the_state_at_the_roll_despite_changes_while_it_is_taken(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(log_fixture)
    rng = random.Random(1)
    sequences = dict.fromkeys(range(5 * FEW), 3)
    expected, offset = sorted(log.producers.snapshot()), log.log_end_offset
    log.roll()
    assert not log_fixture.names(".snapshot")

    async def append_in_between(_slice: TimeSlice) -> None:
        for producer_id in (rng.randrange(5 * FEW), 1000 + rng.randrange(3)):
            append(log, producer_id, sequences.setdefault(producer_id, 0))
            sequences[producer_id] += 1
        log.producers.producers.pop(rng.randrange(5 * FEW), None)  # the producer expires

    monkeypatch.setattr(TimeSlice, "pause", append_in_between)
    await log.snapshots.write_begun(log_fixture.env.clock)
    assert on_disk(log_fixture, offset) == expected


async def test_a_truncation_below_the_roll_cancels_the_snapshot(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    log.roll()
    append(log, 0, 3)
    assert log.truncate_to(20)
    await log.snapshots.write_begun(log_fixture.env.clock)
    assert all(int(name.partition(".")[0]) <= 20 for name in log_fixture.names(".snapshot"))


async def test_closing_the_log_writes_its_snapshot(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    expected, offset = sorted(log.producers.snapshot()), log.log_end_offset
    await log.close()
    assert on_disk(log_fixture, offset) == expected


async def test_a_later_roll_replaces_an_unwritten_snapshot(log_fixture: LogFixture) -> None:
    """A later roll replaces a snapshot that is not written yet."""
    log = filled(log_fixture)
    log.roll()
    append(log, 0, 3)
    offset = log.log_end_offset
    log.roll()
    await log.snapshots.write_begun(log_fixture.env.clock)
    assert log_fixture.names(".snapshot") == [f"{offset:020d}.snapshot"]


async def test_no_snapshot_is_written_for_a_log_that_is_closed_meanwhile(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(log_fixture)
    log.roll()

    async def closed_in_between(_slice: TimeSlice) -> None:
        log.close_files()

    monkeypatch.setattr(TimeSlice, "pause", closed_in_between)
    await log.snapshots.write_begun(log_fixture.env.clock)
    assert not log_fixture.names(".snapshot")
