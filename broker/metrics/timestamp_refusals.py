"""Logs batches that are refused for their timestamps, without flooding the log: a clock or a unit of time is wrong."""

from __future__ import annotations

import structlog

from anabranch.protocol.errors import KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock

logger = structlog.get_logger(__name__)

LOG_EVERY_S = 60.0
"""One refusal is logged in this time; the event counts those before it."""


class TimestampRefusals:
    """The refusals of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_line_at = clock.monotonic()
        self._count = 0

    def note(self, key: TopicPartition, error: KafkaError, client_id: str | None) -> None:
        """Count a refusal, and log it if none was logged for a while."""
        self._count += 1
        now = self._clock.monotonic()
        if now < self._next_line_at:
            return
        logger.warning(
            "produce.timestamps_refused", partition=str(key), client=client_id, count=self._count, reason=error.message
        )
        self._next_line_at, self._count = now + LOG_EVERY_S, 0
