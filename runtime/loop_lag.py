"""Measures how long the event loop was busy between two polls of its sockets."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import trio

from anabranch.runtime.metric_table import PROCESS_METRICS
from anabranch.runtime.metrics import Histogram

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
WINDOW_S = 60.0
"""The time over which the longest round and the share of idle time are computed."""
_SLICES = 6
_SHORT_S = BOUNDS_S[0]


class _Slice(NamedTuple):
    """A part of the window: its start, the busy seconds before it, and its longest round (0 until the part is over)."""

    began: float
    busy_before_s: float
    longest_s: float


class LoopLag(trio.abc.Instrument):
    """Measures every round of the loop while ``run`` runs. Bytes that arrive at a socket wait for the round's end."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.rounds = Histogram(PROCESS_METRICS["anabranch_loop_lag_seconds"], BOUNDS_S)
        self._now = now
        self._began: float | None = None
        self._slice_ends = 0.0
        self._longest = 0.0
        """The longest round of the present slice."""
        self._slices: deque[_Slice] = deque(maxlen=_SLICES)
        """The parts of the window, the oldest first."""

    def after_io_wait(self, timeout: float) -> None:
        self._began = self._now()

    def before_io_wait(self, timeout: float) -> None:
        """Measure the round that ends. This method runs in every round of a busy loop, so it must be cheap."""
        if self._began is None:
            return
        now = self._now()
        took = now - self._began
        rounds = self.rounds
        if now >= self._slice_ends:
            self._next_slice(self._began, now)
        if took > self._longest:
            self._longest = took
        rounds.total += took
        rounds.counts[0 if took <= _SHORT_S else bisect_left(BOUNDS_S, took)] += 1

    def _next_slice(self, began: float, now: float) -> None:
        if self._slices:
            self._slices[-1] = self._slices[-1]._replace(longest_s=self._longest)
        self._slices.append(_Slice(began, self.rounds.total, 0.0))
        self._longest, self._slice_ends = 0.0, now + WINDOW_S / _SLICES

    def longest_s(self) -> float:
        """The longest round of about the last minute; 0 when nothing was measured in it."""
        oldest = self._now() - WINDOW_S - WINDOW_S / _SLICES
        if not self._slices or self._slices[-1].began < oldest:
            return 0.0
        return max(self._longest, *(part.longest_s for part in self._slices if part.began >= oldest))

    def idle_share(self) -> float:
        """The share of about the last minute in which the loop was idle; 1 before the first measurement."""
        if not self._slices:
            return 1.0
        began, busy_before, _ = self._slices[0]
        passed = self._now() - began
        return max(0.0, 1.0 - (self.rounds.total - busy_before) / passed) if passed > 0 else 1.0

    async def run(self) -> None:
        """Measure until cancelled."""
        trio.lowlevel.add_instrument(self)
        try:
            await trio.sleep_forever()
        finally:
            trio.lowlevel.remove_instrument(self)
