"""Cutting long CPU work into slices, so that it never holds the event loop for long."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar, cast

import trio

from runtime.env import Clock

T = TypeVar("T")

SLICE_S = 0.002
MAX_STEPS = 256
"""Also pause after this many steps: under a simulated clock no time passes while code runs."""


class TimeSlice:
    """Tells when the present slice of work is used up. One per piece of long work.

    ``if work.due(): await work.pause()`` between steps that each take well below 2 ms.
    """

    __slots__ = ("_clock", "_started", "_steps")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._steps = 0

    def due(self) -> bool:
        """Count a step; whether the slice is over."""
        self._steps += 1
        return self._steps >= MAX_STEPS or self._clock.monotonic() - self._started >= SLICE_S

    async def pause(self) -> None:
        """Let other tasks run, then begin a new slice."""
        await trio.lowlevel.checkpoint()
        self._started = self._clock.monotonic()
        self._steps = 0


async def in_slices(steps: Generator[None, None, T], work: TimeSlice) -> T:
    """What ``steps`` returns, which yields between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return cast(T, stop.value)
        if work.due():
            await work.pause()


def at_once(steps: Generator[None, None, T]) -> T:
    """The same without a pause, for what is small."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return cast(T, stop.value)
