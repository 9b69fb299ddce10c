"""After a truncation the producers are read again in steps, and stay correct if the log changes in between."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.log import producer_rebuild
from anabranch.broker.log.cold_reads import ColdError
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.producer_rebuild import STEPS_AT_ONCE, catch_up
from anabranch.broker.log.producer_state import ProducerState
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.runtime.background import Background
from tests.support.log.log_fixture import PARTITION, TOPIC_ID, LogFixture, idempotent

pytestmark = pytest.mark.trio

BATCHES = 4 * STEPS_AT_ONCE


def filled(log_fixture: LogFixture, batches: int = BATCHES, **config: Any) -> PartitionLog:
    """Return a log with batches of 100 producers in turn."""
    log = log_fixture.create(**config)
    for number in range(batches):
        log.append_as_leader(idempotent(number // 100, producer_id=number % 100), 0)
    log.advance_high_watermark(log.log_end_offset)
    return log


def known(producers: ProducerState) -> list[Any]:
    return sorted(producers.snapshot())


async def as_reopened(log_fixture: LogFixture, log: PartitionLog) -> list[Any]:
    """Return the producers as another process reads them from the same files."""
    again = await log_fixture.reopen()
    assert again.log_end_offset == log.log_end_offset
    return known(again.producers)


async def test_a_short_truncation_rebuilds_the_producers_at_once(log_fixture: LogFixture) -> None:
    log = filled(log_fixture, STEPS_AT_ONCE - 10)
    log.truncate_to(STEPS_AT_ONCE - 20)
    assert log.rebuild is None and known(log.producers) == await as_reopened(log_fixture, log)


async def test_a_follower_appends_during_the_rebuild(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    log.truncate_to(BATCHES - 100)
    assert log.rebuild is not None
    for number in range(BATCHES - 100, BATCHES + 50):
        sent = idempotent(number // 100, producer_id=number % 100, base_offset=number)
        log.append_as_follower(sent)
    assert log.rebuild is not None
    await catch_up(log)
    assert known(log.producers) == await as_reopened(log_fixture, log)


async def test_a_segment_that_is_rolled_during_the_rebuild_has_no_snapshot(log_fixture: LogFixture) -> None:
    """A snapshot of half the producers would count as complete after a restart."""
    log = filled(log_fixture)
    log.truncate_to(BATCHES - 100)
    log.roll()
    assert log_fixture.names(".snapshot") == []
    log.append_as_follower(idempotent(7, producer_id=500, base_offset=log.log_end_offset))
    await catch_up(log)
    assert known(log.producers) == await as_reopened(log_fixture, log)


async def test_another_truncation_restarts_the_rebuild(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    log.truncate_to(BATCHES - 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(catch_up, log)
        nursery.start_soon(catch_up, log)
        await trio.lowlevel.checkpoint()
        log.truncate_to(BATCHES - 200)
    assert log.rebuild is None and known(log.producers) == await as_reopened(log_fixture, log)


async def test_starting_at_another_offset_ends_the_rebuild(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    log.truncate_to(BATCHES - 100)
    log.truncate_fully_and_start_at(5 * BATCHES)
    await catch_up(log)
    assert known(log.producers) == [] and log.producers.map_end_offset == 5 * BATCHES


async def test_a_leader_knows_every_producer_before_it_appends(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    log.truncate_to(BATCHES - 100)
    repeated = log.append_as_leader(idempotent((BATCHES - 101) // 100, producer_id=(BATCHES - 101) % 100), 0)
    assert repeated.duplicate and repeated.base_offset == BATCHES - 101


async def test_retention_and_compaction_wait_for_the_rebuild(log_fixture: LogFixture) -> None:
    log = filled(log_fixture, segment_bytes=20_000)
    old = list(log.segments[:1])
    log.snapshots.remove_above(-1)
    log.truncate_to(BATCHES - 5)
    assert log.rebuild is not None
    log.update_config(LogConfig(retention_ms=1))
    log_fixture.clock.ms += 10_000
    assert log.delete_old_segments() == 0
    assert not log.replace_segments(old, old[0])
    await catch_up(log)
    assert log.delete_old_segments() > 0


async def test_closing_the_log_finishes_the_rebuild(log_fixture: LogFixture) -> None:
    log = filled(log_fixture)
    log.truncate_to(BATCHES - 100)
    before = await as_reopened(log_fixture, log)
    await log.close()
    assert known(log.producers) == before
    again = await log_fixture.reopen(clean=True)
    assert known(again.producers) == before


def refuse_after(monkeypatch: pytest.MonkeyPatch, batches: int, number: int) -> Callable[[], None]:
    """From one batch on, refuse the producers' batches with an errno. Return a function that ends the refusals."""
    really, is_over = producer_rebuild.replay_producers, False

    def refused(*given: Any) -> Iterator[ColdError | None]:
        for at, found in enumerate(really(*given)):
            if at == batches and not is_over:
                raise OSError(number, "refused")
            yield found

    def end() -> None:
        nonlocal is_over
        is_over = True

    monkeypatch.setattr(producer_rebuild, "replay_producers", refused)
    return end


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM], ids=lambda number: errno.errorcode[number]
)
@pytest.mark.parametrize("batches", [0, 1, STEPS_AT_ONCE, 2 * STEPS_AT_ONCE + 7])
async def test_a_temporary_error_neither_breaks_the_log_nor_loses_producers(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch, batches: int, number: int
) -> None:
    log = filled(log_fixture)
    end = refuse_after(monkeypatch, batches, number)
    asked: list[PartitionLog] = []
    log.on_producers_behind = asked.append
    assert log.truncate_to(BATCHES - 100) and asked == [log]
    sequence, producer_id = (BATCHES - 101) // 100, (BATCHES - 101) % 100
    for _ in range(2):
        with pytest.raises(KafkaError) as refused:
            await catch_up(log)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError):
            log.append_as_leader(idempotent(sequence, producer_id=producer_id), 0)
        with pytest.raises(KafkaError):
            await log.close()
        assert log.rebuild is not None and not log.is_broken
    log.append_as_follower(idempotent(7, producer_id=500, base_offset=log.log_end_offset))
    end()
    await catch_up(log)
    assert known(log.producers) == await as_reopened(log_fixture, log)
    assert log.append_as_leader(idempotent(sequence, producer_id=producer_id), 0).duplicate


@pytest.mark.parametrize("batches", [1, 2 * STEPS_AT_ONCE])
async def test_any_other_error_breaks_the_log(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    log = filled(log_fixture)
    end = refuse_after(monkeypatch, batches, errno.EIO)
    with contextlib.suppress(KafkaError):
        log.truncate_to(BATCHES - 100)
        await catch_up(log)
    end()
    assert log.is_broken
    for refused in (lambda: catch_up(log), log.close):
        with pytest.raises(KafkaError):
            await refused()
    with pytest.raises(KafkaError):
        log.append_as_leader(idempotent(0, producer_id=500), 0)


async def test_the_log_manager_continues_the_rebuild_once_there_are_descriptors(
    log_fixture: LogFixture, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Each retry comes after a longer pause."""
    background = Background(log_fixture.clock)
    manager = await log_fixture.started(background=background)
    log = manager.create(PARTITION, TOPIC_ID, 7)
    for number in range(BATCHES):
        log.append_as_leader(idempotent(number), 0)
    end = refuse_after(monkeypatch, 300, errno.EMFILE)
    log.truncate_to(BATCHES - 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.run)
        for _ in range(10):
            await trio.sleep(1)  # virtual time: the pause
            log_fixture.clock.seconds += 1
        (failure,) = background.failing()
        assert log.rebuild is not None and 3 <= failure.times <= 5
        end()
        for _ in range(10):
            await trio.sleep(1)  # virtual time: the pause
            log_fixture.clock.seconds += 1
        nursery.cancel_scope.cancel()
    assert log.rebuild is None and log.producers.map_end_offset == log.log_end_offset
    assert not background.failing()
