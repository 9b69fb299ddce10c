"""Waiting for a condition that other tasks make true, by any number of tasks."""

from __future__ import annotations

import trio


class WakeUps:
    """Wakes waiting tasks, each of which checks its own condition: ``while not condition: await wait()``.

    Every ``wake`` wakes all waiting tasks: there is one event at a time, and only ``wake`` replaces it.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = trio.Event()

    def wake(self) -> None:
        """Wake all waiting tasks, because the condition of one of them may be true now."""
        if self._next.statistics().tasks_waiting:
            woken, self._next = self._next, trio.Event()
            woken.set()

    async def wait(self) -> None:
        """Return after the next ``wake``."""
        await self._next.wait()
