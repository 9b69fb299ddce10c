"""How long the event loop was busy between two moments at which it looked for what had arrived."""

from __future__ import annotations

from collections import deque

import trio

from anabranch.runtime.metrics import Histogram

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
WINDOW_S = 60.0
"""How far back the longest round, and the share of idle time, are looked for."""
_SLICES = 6


class LoopLag(trio.abc.Instrument):
    """Measures every round of the loop while ``run`` runs: as long waits what arrives at a socket."""

    def __init__(self) -> None:
        self.rounds = Histogram(
            "anabranch_loop_lag_seconds",
            "Rounds of the event loop by how long each kept the loop from looking at its sockets",
            BOUNDS_S,
        )
        self._began: float | None = None
        self._slice_ends = 0.0
        self._slices: deque[tuple[float, float, float]] = deque(maxlen=_SLICES)
        """(when it began, busy seconds before it, longest round in it) of each part of the window, the oldest first."""

    def after_io_wait(self, timeout: float) -> None:
        self._began = trio.current_time()

    def before_io_wait(self, timeout: float) -> None:
        if self._began is None:
            return
        now = trio.current_time()
        took = now - self._began
        if now >= self._slice_ends:
            self._slices.append((self._began, self.rounds.total, took))
            self._slice_ends = now + WINDOW_S / _SLICES
        elif took > self._slices[-1][2]:
            self._slices[-1] = (*self._slices[-1][:2], took)
        self.rounds.observe(took)

    def longest_s(self) -> float:
        """The longest round of the last minute, more or less; 0 when nothing was measured in it."""
        oldest = trio.current_time() - WINDOW_S - WINDOW_S / _SLICES
        return max((longest for began, _, longest in self._slices if began >= oldest), default=0.0)

    def idle_share(self) -> float:
        """The part of the last minute, more or less, in which the loop waited for something to do; 1 before that."""
        if not self._slices:
            return 1.0
        began, busy_before, _ = self._slices[0]
        passed = trio.current_time() - began
        return max(0.0, 1.0 - (self.rounds.total - busy_before) / passed) if passed > 0 else 1.0

    async def run(self) -> None:
        """Measure until cancelled."""
        trio.lowlevel.add_instrument(self)
        try:
            await trio.sleep_forever()
        finally:
            trio.lowlevel.remove_instrument(self)
