"""What a controller counts. Only the one in office has something to tell; the gauges of the others are zero."""

from __future__ import annotations

from anabranch.runtime.metrics import Counter, Metrics


class ControllerMetrics(Metrics):
    """One controller's numbers."""

    def __init__(self) -> None:
        self.resize_steps = Counter(
            "anabranch_resize_steps",
            "Steps of splits and merges that were written, and the ends of them (KIP-253)",
            "topic",
            "step",
        )
        self.retention_warnings = Counter(
            "anabranch_retention_warnings",
            "Partitions of which retention was about to remove what a group had not read and others wait for",
            "topic",
            "group",
        )
        self.given_up_steps = Counter(
            "anabranch_given_up_steps",
            "Steps of the controller that ZooKeeper did not take, by the error: see its log",
            "error",
        )
        super().__init__(self.resize_steps, self.retention_warnings, self.given_up_steps)
