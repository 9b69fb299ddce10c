"""The metrics of a controller. The gauges of a controller that is not in office are zero."""

from __future__ import annotations

from typing import NamedTuple

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
        self.resize_steps = Counter(
            "anabranch_resize_steps",
            "Steps of splits and merges that were written, and their ends (KIP-253)",
            "topic",
            "step",
        )
        self.retention_warnings = Counter(
            "anabranch_retention_warnings",
            "Partitions where retention was about to remove unread records that another partition waits for",
            "topic",
            "group",
        )
        self.given_up_steps = Counter(
            "anabranch_given_up_steps",
            "Steps of the controller that could not be written to ZooKeeper, by the error: see its log",
            "error",
        )
        self.elections = Counter(
            "anabranch_elections",
            "Partitions that got a leader: their first, another one, or one that was not in sync (unclean)",
            "kind",
        )
        self.unclean_elections = Counter(
            "kafka_controller_controllerstats_uncleanleaderelections",
            "Partitions that got a leader that was not in sync: records may be lost",
        )
        self.unclean_elections.add(by=0)
        super().__init__(
            self.resize_steps,
            self.retention_warnings,
            self.given_up_steps,
            self.elections,
            self.unclean_elections,
        )
        self.election_ms = Histogram(
            "kafka_controller_controllerstats_leaderelectionrateandtimems",
            "Milliseconds to elect the leaders of all partitions concerned after brokers came or went",
            _BOUNDS_MS,
        )
        self.event_times = EventTimes(
            Histogram(
                "kafka_controller_controllereventmanager_eventqueuetimems",
                "Milliseconds that events waited for the controller",
                _BOUNDS_MS,
            ),
            Histogram(
                "kafka_controller_controllereventmanager_eventqueueprocessingtimems",
                "Milliseconds that the controller took for an event",
                _BOUNDS_MS,
            ),
        )
        self.resize_s = Histogram(
            "anabranch_resize_seconds",
            "Seconds from a resize's first step until every leader had acknowledged it; draining may follow",
            _RESIZE_BOUNDS_S,
        )
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
