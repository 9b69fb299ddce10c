"""``partition-count-checkpoint``: the earlier layouts of a partition, kept for the audit (KIP-253)."""

from __future__ import annotations

import contextlib

import pytest

from anabranch.broker.log.layout_history import LayoutEntry, LayoutHistory
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import PARTITION_COUNT_CHECKPOINT, join
from tests.support.log.log_fixture import Crash, LogFixture, batch

FIRST, GROWN, SHRUNK = LayoutEntry(0, 4, 4, 0), LayoutEntry(2, 4, 6, 1), LayoutEntry(5, 4, 4, 2)


def history(log_fixture: LogFixture) -> LayoutHistory:
    found = LayoutHistory(log_fixture.storage, str(log_fixture.root / "partition-count-checkpoint"))
    found.load()
    return found


def test_each_change_of_the_layout_is_one_line_of_the_file(log_fixture: LogFixture) -> None:
    layouts = history(log_fixture)
    for entry in (FIRST, LayoutEntry(1, 4, 4, 0), GROWN, LayoutEntry(4, 4, 6, 1), SHRUNK):
        layouts.assign(entry)  # an election that keeps the layout changes nothing
    text = (log_fixture.root / "partition-count-checkpoint").read_text()
    assert text == "0\n3\n0 4 4 0\n2 4 6 1\n5 4 4 2\n"
    assert history(log_fixture).entries == [FIRST, GROWN, SHRUNK]


def test_known_and_older_epochs_change_nothing(log_fixture: LogFixture) -> None:
    layouts = history(log_fixture)
    layouts.assign(GROWN)
    layouts.assign(LayoutEntry(2, 4, 9, 3))
    layouts.assign(LayoutEntry(1, 4, 9, 3))
    assert history(log_fixture).entries == [GROWN]


def test_a_failed_write_is_repeated_by_the_next_save(log_fixture: LogFixture) -> None:
    layouts = history(log_fixture)
    log_fixture.storage.full = True
    layouts.assign(FIRST)
    assert history(log_fixture).entries == []
    log_fixture.storage.full = False
    layouts.save()
    assert history(log_fixture).entries == [FIRST]


@pytest.mark.parametrize("crash_at", range(4))
def test_a_process_that_dies_leaves_the_old_or_the_new_file(log_fixture: LogFixture, crash_at: int) -> None:
    layouts = history(log_fixture)
    layouts.assign(FIRST)
    log_fixture.storage.crash_at = log_fixture.storage.changes + crash_at
    with contextlib.suppress(Crash):
        layouts.assign(GROWN)
    log_fixture.storage.crash_at = -1
    assert history(log_fixture).entries in ([FIRST], [FIRST, GROWN])


@pytest.mark.parametrize("text", ["", "0\n1\n", "0\n1\n0 4 4\n", "0\n2\n3 4 4 0\n2 4 6 1\n", "0\n1\n0 4 4 x\n"])
def test_a_damaged_file_is_treated_as_missing(log_fixture: LogFixture, text: str) -> None:
    (log_fixture.root / "partition-count-checkpoint").write_text(text)
    layouts = history(log_fixture)
    assert layouts.entries == []
    layouts.assign(FIRST)
    assert history(log_fixture).entries == [FIRST]


@pytest.mark.trio
async def test_a_flush_syncs_the_history(log_fixture: LogFixture) -> None:
    """A power failure loses unsynced bytes; after a flush there are none."""
    log = log_fixture.create()
    await log.flush()
    log.layouts.assign(FIRST)
    assert log.layouts.unsynced
    before = log_fixture.storage.syncs
    await log.flush()
    assert log_fixture.storage.syncs == before + 1 and not log.layouts.unsynced
    await log.flush()
    assert log_fixture.storage.syncs == before + 1


@pytest.mark.trio
async def test_the_history_is_read_again_when_the_log_is_opened(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    log.layouts.assign(FIRST)
    log.layouts.assign(GROWN)
    log.close_files()
    assert (await log_fixture.reopen()).layouts.entries == [FIRST, GROWN]


def stored(log: PartitionLog) -> LayoutHistory:
    found = LayoutHistory(log._storage, join(log.directory, PARTITION_COUNT_CHECKPOINT))
    found.load()
    return found


def test_the_first_layout_is_written_with_the_first_record(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    log.assign_epoch(FIRST.leader_epoch)
    log.assign_layout(FIRST)
    assert log.layouts.entries == [FIRST] and stored(log).entries == []
    log.append_as_leader(batch(b"1"), FIRST.leader_epoch)
    assert stored(log).entries == [FIRST]
    log.assign_layout(GROWN)
    assert stored(log).entries == [FIRST, GROWN]


@pytest.mark.parametrize("first", [LayoutEntry(2, 4, 6, 1), LayoutEntry(2, 6, 6, 3)])
def test_the_layout_of_a_resized_topic_is_written_at_once(log_fixture: LogFixture, first: LayoutEntry) -> None:
    log = log_fixture.create()
    log.assign_layout(first)
    assert stored(log).entries == [first]


def test_a_pending_layout_is_written_before_the_next_layout(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    log.assign_layout(FIRST)
    log.assign_layout(GROWN)
    assert stored(log).entries == [FIRST, GROWN]
