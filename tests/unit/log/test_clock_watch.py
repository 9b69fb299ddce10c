"""Warnings about clocks: the system's clock was set, or records are far ahead of it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from anabranch.broker.log.clock_watch import FAR_AHEAD_MS, LEAST_STEP_MS, ClockWatch
from anabranch.broker.log.log_config import MAX_LONG, LogConfig
from anabranch.protocol.types import TopicPartition
from tests.support.log.log_fixture import START_MS, TOPIC_ID, LogFixture, batch


def test_a_clock_that_only_runs_is_not_set() -> None:
    watch = ClockWatch(START_MS, 7.0)
    assert [watch.step_ms(START_MS + seconds * 1000, 7.0 + seconds) for seconds in (10, 20, 10**6)] == [0, 0, 0]


@pytest.mark.parametrize("by_ms", [LEAST_STEP_MS, -LEAST_STEP_MS, 86_400_000])
def test_a_step_is_noticed_once(by_ms: int) -> None:
    watch = ClockWatch(START_MS, 0.0)
    assert watch.step_ms(START_MS + 10_000 + by_ms, 10.0) == by_ms
    assert watch.step_ms(START_MS + 20_000 + by_ms, 20.0) == 0


def test_small_steps_add_up() -> None:
    watch, half = ClockWatch(START_MS, 0.0), LEAST_STEP_MS // 2
    assert [watch.step_ms(START_MS + half, 0.0), watch.step_ms(START_MS + 2 * half, 0.0)] == [0, 2 * half]


@pytest.mark.trio
async def test_a_broker_warns_when_its_clock_was_set(log_fixture: LogFixture) -> None:
    manager = await log_fixture.started()
    log_fixture.clock.ms += 86_400_000
    with capture_logs() as events:
        await manager.maintenance.watch_clock()
        await manager.maintenance.watch_clock()
    assert [(event["event"], event["forward_ms"]) for event in events] == [("clock.set", 86_400_000)]


@pytest.mark.trio
async def test_a_log_with_a_record_from_the_future_is_named_once_and_counted(log_fixture: LogFixture) -> None:
    """The record is in microseconds: retention keeps it and all later segments for fifty thousand years."""
    manager = await log_fixture.started()
    config = LogConfig(message_timestamp_after_max_ms=MAX_LONG)
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, 5, config)
    log.append_as_leader(batch(b"v", timestamp=START_MS + FAR_AHEAD_MS), 0)
    await manager.maintenance.apply_retention()
    assert manager.maintenance.logs_ahead == 0
    log.append_as_leader(batch(b"v", timestamp=START_MS * 1000), 0)
    with capture_logs() as events:
        await manager.maintenance.apply_retention()
        await manager.maintenance.apply_retention()
    assert [(event["event"], event["partition"], event["ahead_ms"]) for event in events] == [
        ("log.timestamps_ahead", "t-0", START_MS * 999)
    ]
    assert manager.maintenance.logs_ahead == 1
    manager.delete(TopicPartition("t", 0))
    assert manager.maintenance.logs_ahead == 0
