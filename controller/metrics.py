"""The metrics of a controller. The gauges of a controller that is not in office are zero."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.controller.metric_table import CONTROLLER_METRICS
from anabranch.protocol.sentinels import NO_LEADER
from anabranch.runtime.metrics import Counter, Histogram, Metrics
from anabranch.zk_schemas.partition_state import PartitionState

_BOUNDS_MS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0)
_RESIZE_BOUNDS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
_LAST_STEP = "finished"
_MOST_RESIZES = 10_000


class EventTimes(NamedTuple):
    """How long events waited, and how long their handling took."""

    queue_ms: Histogram
    processing_ms: Histogram


class ControllerMetrics(Metrics):
    """The metrics of one controller."""

    def __init__(self) -> None:
        self.resize_steps = Counter(CONTROLLER_METRICS["anabranch_resize_steps"])
        self.retention_warnings = Counter(CONTROLLER_METRICS["anabranch_retention_warnings"])
        self.given_up_steps = Counter(CONTROLLER_METRICS["anabranch_given_up_steps"])
        self.elections = Counter(CONTROLLER_METRICS["anabranch_elections"])
        self.unclean_elections = Counter(CONTROLLER_METRICS["kafka_controller_controllerstats_uncleanleaderelections"])
        self.unclean_elections.add(by=0)
        super().__init__(
            self.resize_steps,
            self.retention_warnings,
            self.given_up_steps,
            self.elections,
            self.unclean_elections,
        )
        self.election_ms = Histogram(
            CONTROLLER_METRICS["kafka_controller_controllerstats_leaderelectionrateandtimems"], _BOUNDS_MS
        )
        self.event_times = EventTimes(
            Histogram(CONTROLLER_METRICS["kafka_controller_controllereventmanager_eventqueuetimems"], _BOUNDS_MS),
            Histogram(
                CONTROLLER_METRICS["kafka_controller_controllereventmanager_eventqueueprocessingtimems"], _BOUNDS_MS
            ),
        )
        self.resize_s = Histogram(CONTROLLER_METRICS["anabranch_resize_seconds"], _RESIZE_BOUNDS_S)
        self.histograms += [self.election_ms, *self.event_times, self.resize_s]
        self.resizes: dict[str, float] = {}
        """By topic, the time when the resize in progress began, or when this controller first saw it."""

    def note_leader(self, before: PartitionState | None, now: PartitionState) -> None:
        """Count an election, if the written state ``now`` has a new leader."""
        if now.leader == NO_LEADER or (before is not None and before.leader == now.leader):
            return
        if before is None or before.never_led:
            self.elections.add("first")
        elif before.isr and now.leader not in before.isr:
            self.elections.add("unclean")
            self.unclean_elections.add()
        else:
            self.elections.add("other")

    def note_resize(self, topic: str, step: str, now: float) -> None:
        """Record a resize step that was written."""
        begun_at = self.resizes.get(topic)
        if step == _LAST_STEP:
            self.resizes.pop(topic, None)
            if begun_at is not None:  # None: the resize began under another controller
                self.resize_s.observe(now - begun_at)
        elif begun_at is None and len(self.resizes) < _MOST_RESIZES:
            self.resizes[topic] = now
