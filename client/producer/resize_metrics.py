"""A producer's metrics of resizes. No IO."""

from __future__ import annotations

from anabranch.client.client_metrics import PRODUCER_GROUP, Durations, Metrics
from anabranch.client.producer.unwritten_records_placed_again import Replaced


class ProducerMetrics:
    """Measures what resizes cost one producer. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.layout_refusals = 0
        self.unknown_outcomes = 0
        self._layout_changes = 0
        self._batches_taken_apart = 0
        self._records_moved = 0
        self._records_failed = 0
        self._paused_since: dict[str, float] = {}
        self._pauses = Durations()

    @property
    def any_paused(self) -> bool:
        """Whether a topic was paused at the last check."""
        return bool(self._paused_since)

    def pausing(self, topic: str, now: float) -> None:
        """Note that a topic is paused, because a newer layout is known or the layout in force was refused."""
        self._paused_since.setdefault(topic, now)

    def let_go(self, topic: str) -> None:
        """If the topic was paused, note that it continues with its old layout."""
        self._paused_since.pop(topic, None)

    def replaced(self, topic: str, replaced: Replaced, now: float) -> None:
        """Note that the topic continues with a newer layout."""
        self._layout_changes += 1
        self._batches_taken_apart += len(replaced.sources)
        self._records_moved += replaced.moved
        self._records_failed += replaced.failed
        self._pauses.add(now - self._paused_since.pop(topic, now))

    def values(self) -> Metrics:
        """All metrics."""
        return {
            PRODUCER_GROUP: {
                "layout-refusals-total": self.layout_refusals,
                "layout-changes-total": self._layout_changes,
                "batches-taken-apart-total": self._batches_taken_apart,
                "records-moved-total": self._records_moved,
                "records-failed-total": self._records_failed,
                "records-of-unknown-outcome-total": self.unknown_outcomes,
                "paused-topics": len(self._paused_since),
                **self._pauses.named("pause"),
            }
        }
