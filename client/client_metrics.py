"""What a client counts and ``metrics()`` tells: numbers by group and name, as kafka-python's clients give them. No IO.

Counting happens for each request, and where something out of the ordinary happens (a resize, a refusal, a callback),
never per record.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.client.replacement import Replaced

Metrics = dict[str, dict[str, float]]
"""Value by group and name. Totals count from the client's start; a time without any sample is NaN, as in Kafka."""

CONSUMER_GROUP = "consumer-ordered-delivery-metrics"
PRODUCER_GROUP = "producer-ordered-delivery-metrics"
PRODUCER_TRAFFIC = "producer-metrics"
CONSUMER_TRAFFIC = "consumer-fetch-manager-metrics"
"""Kafka's names for these two groups, and for what is in them that Kafka has too."""

_RECENT = 1024


class Durations:
    """Times of one kind: how many there were, the longest, and percentiles of the latest 1,024."""

    __slots__ = ("_recent_ms", "count", "max_ms")

    def __init__(self) -> None:
        self.count = 0
        self.max_ms = float("nan")
        self._recent_ms: deque[float] = deque(maxlen=_RECENT)

    def add(self, took_s: float) -> None:
        """One more, in seconds."""
        took_ms = took_s * 1000
        self.max_ms = took_ms if self.count == 0 else max(self.max_ms, took_ms)
        self.count += 1
        self._recent_ms.append(took_ms)

    def percentile_ms(self, share: float) -> float:
        """The smallest of the latest that at least ``share`` of them do not exceed; NaN without any."""
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
    """What one producer sends."""

    def __init__(self) -> None:
        self.records = 0
        """That were acknowledged."""
        self.bytes = 0
        """Of their batches, as they were sent."""
        self.errors = 0
        """Records that failed for good."""
        self.retries = 0
        """Records that were sent again."""
        self.requests = Durations()

    def values(self, in_flight: int, available_bytes: int) -> dict[str, float]:
        """All of them; ``in_flight``: requests without an answer; ``available_bytes``: room in the buffer."""
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
    """What one consumer was given."""

    def __init__(self) -> None:
        self.records = 0

    def values(self, lags: list[int], assigned: int) -> dict[str, float]:
        """All of them; ``lags``: records up to the high watermark, of each partition of which it is known."""
        return {
            "records-consumed-total": self.records,
            "records-lag": sum(lags),
            "records-lag-max": max(lags, default=0),
            "assigned-partitions": assigned,
        }


class ProducerMetrics:
    """What resizes cost one producer. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.layout_refusals = 0
        self.unknown_outcomes = 0
        self._layout_changes = 0
        self._batches_taken_apart = 0
        self._records_moved = 0
        self._records_failed = 0
        self._held_since: dict[str, float] = {}
        self._holds = Durations()

    @property
    def any_held(self) -> bool:
        """Whether a topic was held when last looked at."""
        return bool(self._held_since)

    def holding(self, topic: str, now: float) -> None:
        """Nothing new of the topic is sent: a newer layout is known, or the one in force was refused."""
        self._held_since.setdefault(topic, now)

    def let_go(self, topic: str) -> None:
        """The topic goes on by the layout it had, if it was held."""
        self._held_since.pop(topic, None)

    def replaced(self, topic: str, replaced: Replaced, now: float) -> None:
        """The topic goes on by a newer layout."""
        self._layout_changes += 1
        self._batches_taken_apart += len(replaced.sources)
        self._records_moved += replaced.moved
        self._records_failed += replaced.failed
        self._holds.add(now - self._held_since.pop(topic, now))

    def values(self) -> Metrics:
        """All of them."""
        return {
            PRODUCER_GROUP: {
                "layout-refusals-total": self.layout_refusals,
                "layout-changes-total": self._layout_changes,
                "batches-taken-apart-total": self._batches_taken_apart,
                "records-moved-total": self._records_moved,
                "records-failed-total": self._records_failed,
                "records-of-unknown-outcome-total": self.unknown_outcomes,
                "held-topics": len(self._held_since),
                **self._holds.named("hold"),
            }
        }
