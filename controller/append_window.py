"""Computes the bytes recently appended to a topic from the counters of its brokers. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from anabranch.ordered_resize.autoscale import Measured

STEPS = 64
"""Number of steps of a window. At most two samples are kept for each step."""


class _Sample(NamedTuple):
    at: float
    total: int


class AppendWindow:
    """The measurement of one topic, in the controller's monotonic seconds.

    A controller that takes office has no samples.
    """

    def __init__(self, now: float) -> None:
        self.is_on = False
        """``autoscale.enable`` of the topic."""
        self.asked_at = now
        """The time of the last request for the measurement."""
        self.is_current = False
        """Whether every broker has answered the last request for its counter."""
        self.refusal = ""
        """The reason why the last resize was refused; empty if it was not refused."""
        self._layout_version = -1
        self._unchanged_since = now
        self._asked_at = -math.inf
        self._window_s = math.inf
        self._counters: dict[int, int] = {}
        self._reported_at: dict[int, float] = {}
        self._total = 0
        self._samples: deque[_Sample] = deque()

    def begin_round(self, layout_version: int | None, brokers: Collection[int], window_s: float, now: float) -> bool:
        """Begin a round. Returns whether ``brokers`` are to be asked again.

        The brokers are asked again once all have answered; then ``is_current`` is true. They are also asked again if a
        broker has not answered for the whole window. In that case the measurement starts again from nothing. The
        measurement also starts again if ``layout_version`` has changed, or is None because a resize is in progress.
        """
        self._window_s = window_s
        if layout_version != self._layout_version or layout_version is None:
            self._unchanged_since = now
            self._forget()
        self._layout_version = -1 if layout_version is None else layout_version
        self.is_current = all(self._reported_at.get(broker, -math.inf) >= self._asked_at for broker in brokers)
        if not self.is_current and now - self._asked_at < window_s:
            return False
        if not self.is_current:
            self._forget()
        self._asked_at = now
        return True

    def report(self, broker: int, counter: int, now: float) -> None:
        """Store the bytes that a broker has appended as a leader since the broker's start.

        If ``counter`` is lower than the broker's previous counter, the broker restarted and counted from 0.
        """
        if now - self._reported_at.get(broker, now) > self._window_s:
            self._forget()  # the difference covers more time than the window
        known = self._counters.get(broker)
        if known is not None:
            self._total += counter - known if counter >= known else counter
        self._counters[broker], self._reported_at[broker] = counter, now
        samples = self._samples
        if len(samples) > 1 and now - samples[-2].at < self._window_s / STEPS:
            samples.pop()
        samples.append(_Sample(now, self._total))
        while len(samples) > 2 and samples[1].at <= now - self._window_s:
            samples.popleft()

    def measured(self, now: float) -> Measured:
        unchanged_ms = int((now - self._unchanged_since) * 1000)
        if not self._samples:
            return Measured(0, 0, unchanged_ms)
        first, last = self._samples[0], self._samples[-1]
        return Measured(last.total - first.total, int((last.at - first.at) * 1000), unchanged_ms)

    def _forget(self) -> None:
        self._counters.clear()
        self._samples.clear()
