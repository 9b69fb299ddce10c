"""Refusals for timestamps are logged once a minute, with their number."""

from __future__ import annotations

from structlog.testing import capture_logs

from anabranch.broker.metrics.timestamp_refusals import LOG_EVERY_S, TimestampRefusals
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from tests.support.log.log_fixture import ManualClock


def test_refusals_do_not_flood_the_log() -> None:
    clock = ManualClock()
    refusals = TimestampRefusals(clock)
    with capture_logs() as events:
        for second in (0, 1, LOG_EVERY_S - 1, LOG_EVERY_S):
            clock.seconds = second
            refusals.note(TopicPartition("t", 0), KafkaError(ErrorCode.INVALID_TIMESTAMP, "too far ahead"), "c")
    assert [(event["partition"], event["count"]) for event in events] == [("t-0", 1), ("t-0", 3)]
    assert "too far ahead" in events[0]["reason"]
