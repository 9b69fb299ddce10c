"""Looking up a time in a log with equal timestamps, while the log changes."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.time_search import TimeSearch
from tests.support.log.log_fixture import START_MS, LogFixture, batch

pytestmark = pytest.mark.trio

BATCHES = 3000


def unsorted(log_fixture: LogFixture, **config: Any) -> PartitionLog:
    """Return a log of equal timestamps, where no index helps, with one later record at the end."""
    log = log_fixture.create(**config)
    for _ in range(BATCHES):
        log.append_as_leader(batch(b"v"), 3)
    log.append_as_leader(batch(b"late", timestamp=START_MS + 50), 3)
    log.advance_high_watermark(log.log_end_offset)
    return log


async def test_a_search_stops_at_its_step_limit_and_continues(log_fixture: LogFixture) -> None:
    search = TimeSearch(unsorted(log_fixture), START_MS + 1)
    assert not search.advance(1000) and not search.advance(1000) and search.found is None
    assert search.advance(2000) and search.found == (START_MS + 50, BATCHES, 3)


async def test_a_truncation_restarts_the_search(log_fixture: LogFixture) -> None:
    log = unsorted(log_fixture)
    search = TimeSearch(log, START_MS + 1)
    search.advance(1000)
    log.truncate_to(500)
    log.append_as_leader(batch(b"other", timestamp=START_MS + 9), 4)
    assert search.advance() and search.found == (START_MS + 9, 500, 4)


async def test_deleted_segments_are_not_searched_further(log_fixture: LogFixture) -> None:
    log = unsorted(log_fixture, segment_bytes=10_000, file_delete_delay_ms=0)
    search = TimeSearch(log, START_MS + 1)
    search.advance(10)
    log.delete_records_before(log.log_end_offset)
    while log.delete_old_segments():
        pass
    log.remove_due_files()
    assert search.advance() and search.found is None
    log.append_as_leader(batch(b"new", timestamp=START_MS + 70), 4)
    again = TimeSearch(log, START_MS + 60)
    assert again.advance() and again.found == (START_MS + 70, BATCHES + 1, 4)


async def test_concurrent_tasks_finish_one_search_for_the_largest_timestamp(log_fixture: LogFixture) -> None:
    log = unsorted(log_fixture)
    search = TimeSearch(log, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(search.finish, log_fixture.clock)
        nursery.start_soon(search.finish, log_fixture.clock)
    assert search.found == (START_MS + 50, BATCHES, 3)
