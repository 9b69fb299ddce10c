"""Counts the numbers that ``metrics()`` returns, by group and name as in kafka-python's clients. No IO.

A client counts once per request, and for rare events such as a resize, a refusal or a callback. It never counts per
record.
"""

from __future__ import annotations

import math
from collections import deque

Metrics = dict[str, dict[str, float]]
"""Value by group and name. Totals count from the client's start; a time without any sample is NaN, as in Kafka."""

CONSUMER_GROUP = "consumer-ordered-delivery-metrics"
PRODUCER_GROUP = "producer-ordered-delivery-metrics"
PRODUCER_TRAFFIC = "producer-metrics"
CONSUMER_TRAFFIC = "consumer-fetch-manager-metrics"
"""Kafka's names for these two groups. Metrics that also exist in Kafka have Kafka's names."""

_RECENT = 1024


class Durations:
    """Times of one kind: their number, the longest, and percentiles of the latest 1,024."""

    __slots__ = ("_recent_ms", "count", "max_ms")

    def __init__(self) -> None:
        self.count = 0
        self.max_ms = float("nan")
        self._recent_ms: deque[float] = deque(maxlen=_RECENT)

    def add(self, took_s: float) -> None:
        """Add one time, in seconds."""
        took_ms = took_s * 1000
        self.max_ms = took_ms if self.count == 0 else max(self.max_ms, took_ms)
        self.count += 1
        self._recent_ms.append(took_ms)

    def percentile_ms(self, share: float) -> float:
        """The smallest recent time t so that ``share`` of the recent times are at most t. NaN without recent times."""
        ascending = sorted(self._recent_ms)
        if not ascending:
            return float("nan")
        return ascending[max(0, math.ceil(share * len(ascending)) - 1)]

    def named(self, name: str) -> dict[str, float]:
        """``name-total`` and ``name-time-p50-ms``, ``-p99-ms`` and ``-max-ms``."""
        return {
            f"{name}-total": self.count,
            f"{name}-time-p50-ms": self.percentile_ms(0.50),
            f"{name}-time-p99-ms": self.percentile_ms(0.99),
            f"{name}-time-max-ms": self.max_ms,
        }


class ProducerTraffic:
    """Counts the records and requests of one producer."""

    def __init__(self) -> None:
        self.records = 0
        """Records that were acknowledged."""
        self.bytes = 0
        """Bytes of their batches, as they were sent."""
        self.errors = 0
        """Records that failed for good."""
        self.retries = 0
        """Records that were sent again."""
        self.requests = Durations()

    def values(self, in_flight: int, available_bytes: int) -> dict[str, float]:
        """All metrics. ``in_flight``: requests without a response; ``available_bytes``: room in the buffer."""
        return {
            "record-send-total": self.records,
            "outgoing-byte-total": self.bytes,
            "record-error-total": self.errors,
            "record-retry-total": self.retries,
            "requests-in-flight": in_flight,
            "buffer-available-bytes": available_bytes,
            **self.requests.named("request"),
        }


class ConsumerTraffic:
    """Counts the records that one consumer delivered."""

    def __init__(self) -> None:
        self.records = 0

    def values(self, lags: list[int], assigned: int) -> dict[str, float]:
        """All metrics. ``lags``: records up to the high watermark, for each partition where it is known."""
        return {
            "records-consumed-total": self.records,
            "records-lag": sum(lags),
            "records-lag-max": max(lags, default=0),
            "assigned-partitions": assigned,
        }
