"""Gives memory that was freed back to the operating system.

The C library keeps freed memory between blocks that are in use. After one large request a process would keep hundreds
of megabytes for good. ``malloc_trim`` of glibc returns every whole free page; it takes some 25 ms for 300 MB. Elsewhere
nothing is done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import trio

from anabranch.runtime.garbage_collection import resident_bytes

LOOK_S = 2.0
GROWTH_BYTES = 24 << 20
"""Freed memory is returned when the process is larger by this than after the last time."""
LONGEST_PAUSE = 32
"""In looks. Pauses grow while the memory that was returned is needed again."""


class FreedMemory:
    """Decides at each look whether to return freed memory. ``resident``: the process's size, None if it is unknown.

    What is in use at a return may be freed later, and then the process does not grow. So memory is returned again after
    1, 2, 4, 8 looks and so on, while the process is larger than after another return by ``GROWTH_BYTES``.
    """

    def __init__(self, resident: Callable[[], int | None], give_back: Callable[[], object]) -> None:
        self._resident = resident
        self._give_back = give_back
        self._least_bytes = self._last_bytes = resident() or 0
        self._pause = self._next_pause = 0
        self._looks = self._again_at = 0
        """Looks since the last return after growth."""

    def look(self) -> None:
        resident = self._resident()
        if resident is None:
            return
        self._looks += 1
        if resident >= self._last_bytes + GROWTH_BYTES:
            if self._looks <= self._pause:
                return
            self._pause, self._next_pause = self._next_pause, min(max(1, 2 * self._next_pause), LONGEST_PAUSE)
            self._looks, self._again_at = 0, 1
        else:
            if self._looks > self._pause:
                self._pause = self._next_pause = 0
            if resident < self._least_bytes + GROWTH_BYTES or self._looks < self._again_at:
                return
            self._again_at = 2 * self._looks
        self._give_back()
        self._last_bytes = self._resident() or resident
        self._least_bytes = min(self._least_bytes, self._last_bytes)


async def return_freed_memory() -> None:
    """Look until cancelled."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return
    memory = FreedMemory(resident_bytes, lambda: trim(0))
    while True:
        await trio.sleep(LOOK_S)
        memory.look()
