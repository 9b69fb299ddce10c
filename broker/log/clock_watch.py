"""Notices that the system's clock was set: retention by time and the bounds of timestamps depend on it. Pure."""

from __future__ import annotations

LEAST_STEP_MS = 60_000
"""A smaller change is no reason for a warning."""
FAR_AHEAD_MS = 3_600_000
"""A record that is this much ahead of the broker's clock has another unit, or was written under another clock."""


class ClockWatch:
    """Compares the system's clock with the monotonic clock, which nobody sets."""

    __slots__ = ("_difference_ms",)

    def __init__(self, now_ms: int, monotonic_s: float) -> None:
        self._difference_ms = now_ms - monotonic_s * 1000

    def step_ms(self, now_ms: int, monotonic_s: float) -> int:
        """By how much the clock was set forward since the last step; 0 for less than ``LEAST_STEP_MS``."""
        difference_ms = now_ms - monotonic_s * 1000
        step = round(difference_ms - self._difference_ms)
        if abs(step) < LEAST_STEP_MS:
            return 0
        self._difference_ms = difference_ms
        return step
