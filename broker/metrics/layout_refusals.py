"""Counts batches that are refused because of a partition layout, by topic, and logs them without flooding the log."""

from __future__ import annotations

import structlog

from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock

logger = structlog.get_logger(__name__)

LOG_EVERY_S = 10.0
"""A topic's refusals of one kind are logged at most once in this time."""
_TOPICS_KEPT = 1024


class LayoutRefusals:
    """Counts and logs the batches that this broker refuses for their layout."""

    def __init__(self, clock: Clock, metrics: BrokerMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._next_line_at: dict[tuple[str, ErrorCode], float] = {}

    def note(self, key: TopicPartition, error: KafkaError, client_id: str | None = None) -> None:
        """Count a refusal. The error is 25310, or 44 for a producer that names no layout."""
        if error.code is ErrorCode.INVALID_PARTITION_METADATA:
            self._metrics.layout_refusals.add(key.topic)
        else:
            self._metrics.stock_refusals.add(key.topic)
        kind = (key.topic, error.code)
        now = self._clock.monotonic()
        if now < self._next_line_at.get(kind, now):
            return
        if len(self._next_line_at) >= _TOPICS_KEPT:
            self._next_line_at.clear()
        self._next_line_at[kind] = now + LOG_EVERY_S
        # A stock producer cannot react to the refusal: the producer's owner has to act.
        if error.code is ErrorCode.INVALID_PARTITION_METADATA:
            logger.info("layout.refused", partition=str(key), client=client_id, reason=error.message)
        else:
            logger.warning("layout.refused", partition=str(key), client=client_id, reason=error.message)
