"""Cuts long CPU work into slices, so that the work never blocks the event loop for long."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar, cast

import trio

from anabranch.runtime.env import Clock
from anabranch.runtime.turns import pause

T = TypeVar("T")

SLICE_S = 0.002
MAX_STEPS = 256
"""A slice ends after this many steps as well, because under a simulated clock no time passes while code runs."""


class TimeSlice:
    """Measures whether the present slice of work is used up. Each piece of long work has its own ``TimeSlice``.

    Call ``if work.due(): await work.pause()`` between steps; each step should take well below 2 ms.
    """

    __slots__ = ("_clock", "_started", "_steps")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._steps = 0

    def due(self) -> bool:
        """Count a step; returns whether the slice is over."""
        self._steps += 1
        return self._steps >= MAX_STEPS or self._clock.monotonic() - self._started >= SLICE_S

    async def pause(self) -> None:
        """Let other tasks run, then begin a new slice."""
        await pause()
        self._started = self._clock.monotonic()
        self._steps = 0


_THREADS = trio.CapacityLimiter(2)
"""Only a few threads: each may hold a batch of 128 MiB, and all share one core with the event loop."""
Steps: TypeAlias = Generator[Callable[[], None] | None, None, T]
"""Yields None between steps, or a long call that a thread may make. If no thread makes it, the next step does."""


async def in_slices(steps: Steps[T], work: TimeSlice) -> T:
    """Run ``steps`` in slices, and return their result."""
    while True:
        try:
            for_thread = next(steps)
        except StopIteration as stop:
            return cast(T, stop.value)
        if for_thread is not None:
            await trio.to_thread.run_sync(for_thread, limiter=_THREADS)
        if for_thread is not None or work.due():
            await work.pause()


def at_once(steps: Generator[Any, None, T]) -> T:
    """Run ``steps`` without a pause, and return their result; for small work."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return cast(T, stop.value)
