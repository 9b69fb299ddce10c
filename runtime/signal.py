"""A wake-up that is kept until a ``wait`` returns: any task may ``set`` the signal, and one loop waits for it."""

from __future__ import annotations

import anyio
import anyio.lowlevel


class Signal:
    """Many ``set`` calls wake the next ``wait`` once. Unlike an event, a signal needs no clearing between waits."""

    __slots__ = ("_event", "_pending")

    def __init__(self) -> None:
        self._pending = False
        self._event: anyio.Event | None = None

    def set(self) -> None:
        """Wake the waiter, now or at its next ``wait``."""
        self._pending = True
        if self._event is not None:
            self._event.set()

    def clear(self) -> None:
        """Drop a ``set`` that no ``wait`` has seen."""
        self._pending = False

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until ``set`` was called since the last wait returned; False when ``timeout_s`` passed first.

        Several tasks may wait at once. One ``set`` wakes all of them, but returns True only to the first.
        """
        if not self._pending:
            if timeout_s is not None and timeout_s <= 0:
                await anyio.lowlevel.checkpoint()
            else:
                event = self._event
                if event is None:
                    event = self._event = anyio.Event()
                with anyio.move_on_after(timeout_s):
                    await event.wait()
                if self._event is event and event.is_set():  # a new event may have waiters already
                    self._event = None
        seen = self._pending
        self._pending = False
        return seen
