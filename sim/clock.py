"""Simulated time: the event loop's time, which a ``trio.testing.MockClock`` moves."""

from __future__ import annotations

import trio

EPOCH_MS = 1_700_000_000_000


class SimClock:
    """A machine's clocks. ``skew_ms`` shifts its wall clock against the other machines', and may change at any time."""

    def __init__(self, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + round(trio.current_time() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return trio.current_time()
