"""Keeps each garbage collection of a process short, however many objects the process has.

CPython traverses all objects at once, for 100 ms or more in a broker with 4,000 partitions. Here the objects that
survive a collection of the oldest generation move to the permanent generation (``gc.freeze``), which no collection
traverses. Reference counts still free these objects, except in reference cycles. When a process has grown, one
collection traverses all objects, so such cycles take a bounded share of its memory (ADR 34).
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

from anabranch.runtime.metric_table import PROCESS_METRICS
from anabranch.runtime.metrics import Histogram

THRESHOLDS = (2_500, 4, 2)
"""The oldest generation is collected, and then frozen, after at most 60,000 new objects."""
OLDEST = 2
GROWTH = 1.5
GROWTH_BYTES = 256 << 20
"""All objects are traversed when the size exceeds ``GROWTH`` times the size at the last traversal, plus these bytes."""
BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class ShortCollections:
    """Freezes the survivors of each collection. ``resident_bytes`` is the process's size, None where it is unknown."""

    def __init__(self, resident_bytes: Callable[[], int | None]) -> None:
        self.pauses = Histogram(PROCESS_METRICS["anabranch_garbage_collection_seconds"], BOUNDS_S)
        self._resident_bytes = resident_bytes
        self._began = 0.0
        self._limit_bytes = 0
        self._looks_at_everything = True
        """Whether nothing is frozen, so that the next collection of the oldest generation traverses all objects."""

    def begin(self) -> None:
        """Start, for the rest of the process. The objects that exist now, the loaded modules, are frozen."""
        self._after_oldest()
        gc.collect()  # else CPython delays the next full collection until there are a quarter more objects
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self.on_collection)

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """The interpreter calls this, in any thread, before and after each collection. No lock is taken."""
        if phase == "start":
            self._began = time.perf_counter()
            return
        self.pauses.observe(time.perf_counter() - self._began)
        if info["generation"] == OLDEST:
            self._after_oldest()

    def _after_oldest(self) -> None:
        resident = self._resident_bytes()
        if resident is None:
            return  # without a size, nothing would bound the cycles that stay
        if self._looks_at_everything:
            self._limit_bytes = int(GROWTH * resident) + GROWTH_BYTES
        self._looks_at_everything = resident > self._limit_bytes
        if self._looks_at_everything:
            gc.unfreeze()
        else:
            gc.freeze()


def resident_bytes() -> int | None:
    """The resident size of this process on Linux; None elsewhere."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


OF_THIS_PROCESS = ShortCollections(resident_bytes)
"""The only instance: the interpreter has one garbage collector for the process. ``server_program`` begins it."""
