"""A truncation of a large file cuts the file in a thread. No other change reaches the log's files meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
import trio
import trio.testing

from anabranch.broker.log import segment
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.producer_rebuild import catch_up
from anabranch.broker.replication.follower import FetchOutcome
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import set_base_offset
from tests.support.broker.replica_cluster import ReplicaCluster
from tests.support.log.log_fixture import LogFixture, batch, idempotent, values

pytestmark = pytest.mark.trio

COUNT = 20
LOG = "00000000000000000000.log"


@pytest.fixture(autouse=True)
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "CUT_AT_ONCE_BYTES", 0)


def filled(log_fixture: LogFixture) -> PartitionLog:
    log = log_fixture.create()
    for number in range(COUNT):
        log.append_as_leader(idempotent(number), 0)
    log.advance_high_watermark(log.log_end_offset)
    return log


def sent(offset: int) -> bytes:
    data = batch(b"new")
    set_base_offset(data, offset, 3)
    return bytes(data)


class Held:
    """Holds the cutting thread until the test releases it."""

    def __init__(self, log_fixture: LogFixture) -> None:
        self.begun = 0
        self.go_on = trio.Event()
        log_fixture.storage.before_cut = self._before_cut  # type: ignore[method-assign]

    async def _before_cut(self) -> None:
        self.begun += 1
        await self.go_on.wait()


async def test_a_truncation_shortens_the_log_at_once_and_the_file_in_a_thread(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    size, kept = log_fixture.file(LOG).stat().st_size, log.read(0, 1 << 20, upper_bound=12).records
    assert log.truncate_to(12)
    assert (log.log_end_offset, log.awaits_cut) == (12, True)
    assert [offset for offset, _, _ in values(log)] == list(range(12))
    assert log.size_bytes == len(kept) < log_fixture.file(LOG).stat().st_size == size
    await catch_up(log)
    assert log_fixture.file(LOG).stat().st_size == len(kept) and not log.awaits_cut
    assert log.append_as_follower(sent(12)) == 13
    assert [value for _, _, value in values(log)] == [b"v"] * 12 + [b"new"]
    again = await log_fixture.reopen()
    assert values(again) == values(log)
    assert sorted(again.producers.snapshot()) == sorted(log.producers.snapshot())


CHANGES: dict[str, Callable[[PartitionLog], object]] = {
    "an append of a leader": lambda log: log.append_as_leader(batch(b"x"), 4),
    "an append of a follower": lambda log: log.append_as_follower(sent(12)),
    "a roll": lambda log: log.roll(),
    "another truncation": lambda log: log.truncate_to(5),
    "a start at another offset": lambda log: log.truncate_fully_and_start_at(100),
    "compaction": lambda log: log.replace_segments(log.segments, log.segments[0]),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_during_the_cut_is_refused(name: str, log_fixture: LogFixture) -> None:
    log, held = filled(log_fixture), Held(log_fixture)
    log.truncate_to(12)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(catch_up, log)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(KafkaError, match="not yet cut") as caught:
            CHANGES[name](log)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        held.go_on.set()
    assert log.log_end_offset == 12 and held.begun == 1
    assert log_fixture.file(LOG).stat().st_size == log.size_bytes


async def test_retention_does_not_change_the_log_during_the_cut(log_fixture: LogFixture) -> None:
    log, held = filled(log_fixture), Held(log_fixture)
    log.truncate_to(12)
    log.update_config(LogConfig(retention_ms=1))
    log_fixture.clock.ms += 1_000_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(catch_up, log)
        await trio.testing.wait_all_tasks_blocked()
        assert log.delete_old_segments() == 0 and log.rebuild is not None
        held.go_on.set()
    assert log.delete_old_segments() > 0


async def test_concurrent_flushes_wait_for_one_cut(log_fixture: LogFixture) -> None:
    log, held = filled(log_fixture), Held(log_fixture)
    await log.sync_identity()
    log.truncate_to(12)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(log.flush)
            nursery.start_soon(catch_up, log)
        await trio.testing.wait_all_tasks_blocked()
        assert held.begun == 1 and LOG not in log_fixture.storage.synced
        held.go_on.set()
    assert held.begun == 1 and log.is_synced and log.rebuild is None


async def test_a_process_that_dies_before_the_cut_leaves_the_log_as_it_was(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    before = values(log)
    log.truncate_to(12)
    log.close_files()
    again = await log_fixture.reopen()
    assert values(again) == before and again.log_end_offset == COUNT


async def test_a_crash_during_the_cut_loses_only_the_torn_batch(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    before = values(log)
    log.truncate_to(12)
    with log_fixture.file(LOG).open("r+b") as file:
        file.truncate(log_fixture.file(LOG).stat().st_size - 10)
    again = await log_fixture.reopen()
    assert values(again) == before[:-1]


async def test_a_cut_that_fails_is_tried_again(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    log.truncate_to(12)

    async def fail() -> None:
        raise OSError(errno.EMFILE, "an error that passes")

    cut, log_fixture.storage.before_cut = log_fixture.storage.before_cut, fail  # type: ignore[method-assign]
    for wait in (catch_up(log), log.flush(), log.close()):
        with pytest.raises(KafkaError, match="truncate failed"):
            await wait
        assert log.awaits_cut and log.rebuild is not None and not log.is_broken and not log.truncation_synced
    log_fixture.storage.before_cut = cut  # type: ignore[method-assign]
    await catch_up(log)
    await log.close()
    again = await log_fixture.reopen(clean=True)
    assert again.log_end_offset == 12


async def test_a_follower_retries_its_fetch_later_during_the_cut() -> None:
    cluster = ReplicaCluster(2)
    cluster.elect(1, 0, [1, 2])
    for _ in range(5):
        cluster.append(1, b"old")
    cluster.fetch(2, 1)
    cluster.append(1, b"lost")
    cluster.fetch(2, 1)
    follower = cluster[2].log
    cluster[1].log.truncate_to(3)
    await catch_up(cluster[1].log)
    cluster.elect(1, 1, [1, 2])
    cluster.append(1, b"new")
    assert cluster.fetch(2, 1) is FetchOutcome.MOVED and follower.awaits_cut
    ended = follower.log_end_offset
    assert cluster.fetch(2, 1) is FetchOutcome.RETRY_LATER and follower.log_end_offset == ended
    await follower.finish_truncation()
    cluster.catch_up(1, 2)
    assert cluster[2].records() == cluster[1].records()
