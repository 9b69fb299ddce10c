"""Gives memory that was freed back to the operating system.

The C library keeps freed memory between blocks that are in use. After one large request a process would keep hundreds
of megabytes for good. ``malloc_trim`` of glibc returns every whole free page. It runs in a thread, without Python's
lock. But an allocation of more than 512 bytes waits for it, so the event loop may be held as long. It takes 30 ms of
CPU for 350 MB between blocks of 16 KiB and more, and 75 ms for 400 MB of blocks of a kilobyte. A broker that gets 200
frames of 1 MiB at once frees 60 MB between two looks, which takes 7 ms. ``REST_TIMES`` makes longer ones rare.
Elsewhere nothing is done.

Blocks of 1 MiB and more that are mapped one by one (``M_MMAP_THRESHOLD``) would go back without it. But then each such
block costs 0.25 ms more for each MiB, also in the fetches of followers.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import trio

from anabranch.runtime.garbage_collection import resident_bytes

LOOK_S = 2.0
GROWTH_BYTES = 24 << 20
"""Freed memory is returned when the process is larger by this than after the last time."""
LONGEST_PAUSE = 32
"""In looks. Pauses grow while the memory that was returned is needed again."""
LONG_S = 0.05
REST_TIMES = 1000
"""After a return of more than ``LONG_S`` of CPU, none follows for so many times its duration."""


class FreedMemory:
    """Decides at each look whether to return freed memory. ``resident``: the process's size, None if it is unknown.

    What is in use at a return may be freed later, and then the process does not grow. So memory is returned again after
    1, 2, 4, 8 looks and so on, while the process is larger than after another return by ``GROWTH_BYTES``.
    """

    def __init__(self, resident: Callable[[], int | None]) -> None:
        self._resident = resident
        self._least_bytes = self._last_bytes = resident() or 0
        self._pause = self._next_pause = 0
        self._looks = self._again_at = 0
        """Looks since the last return after growth."""
        self._rest_looks = 0

    def look(self) -> bool:
        """Look once. If freed memory has to be returned, call ``returned`` afterwards."""
        resident = self._resident()
        if resident is None:
            return False
        self._looks += 1
        if self._rest_looks > 0:
            self._rest_looks -= 1
            return False
        if resident >= self._last_bytes + GROWTH_BYTES:
            if self._looks <= self._pause:
                return False
            self._pause, self._next_pause = self._next_pause, min(max(1, 2 * self._next_pause), LONGEST_PAUSE)
            self._looks, self._again_at = 0, 1
        else:
            if self._looks > self._pause:
                self._pause = self._next_pause = 0
            if resident < self._least_bytes + GROWTH_BYTES or self._looks < self._again_at:
                return False
            self._again_at = 2 * self._looks
        return True

    def returned(self, seconds: float) -> None:
        """Memory was returned, which took so much CPU time."""
        self._last_bytes = self._resident() or self._last_bytes
        self._least_bytes = min(self._least_bytes, self._last_bytes)
        self._rest_looks = int(seconds * REST_TIMES / LOOK_S) if seconds > LONG_S else 0


async def return_freed_memory() -> None:
    """Look until cancelled."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return

    def timed() -> float:
        begin = time.thread_time()  # not the time that other processes take
        trim(0)
        return time.thread_time() - begin

    memory = FreedMemory(resident_bytes)
    while True:
        await trio.sleep(LOOK_S)
        if memory.look():
            memory.returned(await trio.to_thread.run_sync(timed))
