"""One timer for all groups: a heap of deadlines and one task that sleeps until the earliest."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable

import trio

_SLACK = 64


class DeadlineTimer:
    """Calls ``on_due(key, deadline_ms)`` at each key's deadline; a key has one deadline, monotonic milliseconds.

    ``set`` only moves a deadline earlier. A callback that is called too early finds nothing due and sets the next
    deadline. So the common case, a heartbeat that moves a session's end later, needs no work here.
    """

    __slots__ = ("_changed", "_clock_ms", "_deadlines", "_heap", "_on_due", "_order")

    def __init__(self, clock_ms: Callable[[], int], on_due: Callable[[Hashable, int], None]) -> None:
        self._clock_ms = clock_ms
        self._on_due = on_due
        self._deadlines: dict[Hashable, int] = {}
        self._heap: list[tuple[int, int, Hashable]] = []
        self._order = itertools.count()
        self._changed = trio.Event()

    def set(self, key: Hashable, deadline_ms: int) -> None:
        """Fire at ``deadline_ms``, unless the key has an earlier deadline already."""
        known = self._deadlines.get(key)
        if known is not None and known <= deadline_ms:
            return
        self._deadlines[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, next(self._order), key))
        if self._heap[0][2] == key:
            self._changed.set()
        if len(self._heap) > 2 * len(self._deadlines) + _SLACK:
            self._heap = [(at, next(self._order), k) for k, at in self._deadlines.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: Hashable) -> None:
        """Remove the key's deadline."""
        self._deadlines.pop(key, None)

    def __len__(self) -> int:
        return len(self._deadlines)

    async def run(self) -> None:
        """Fire until cancelled."""
        while True:
            self._changed = trio.Event()
            earliest_ms = self._earliest_ms()
            if earliest_ms is None:
                await self._changed.wait()
                continue
            wait_ms = earliest_ms - self._clock_ms()
            if wait_ms > 0:
                with trio.move_on_after(wait_ms / 1000) as until:
                    await self._changed.wait()
                if not until.cancelled_caught:
                    continue
            else:
                await trio.lowlevel.checkpoint()
            # After the sleep the deadline counts as reached: the sleep's clock and ours may round differently.
            self._fire(max(self._clock_ms(), earliest_ms))

    def _earliest_ms(self) -> int | None:
        while self._heap:
            at_ms, _, key = self._heap[0]
            if self._deadlines.get(key) == at_ms:
                return at_ms
            heapq.heappop(self._heap)
        return None

    def _fire(self, now_ms: int) -> None:
        due: list[tuple[Hashable, int]] = []
        while (at_ms := self._earliest_ms()) is not None and at_ms <= now_ms:
            key = heapq.heappop(self._heap)[2]
            del self._deadlines[key]
            due.append((key, at_ms))
        # The callbacks run after the search: a key that a callback sets again waits for the next round in any case.
        for key, at_ms in due:
            self._on_due(key, at_ms)
