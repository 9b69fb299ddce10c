"""A garbage collection visits few objects, however many there are. Every cycle is collected at last (ADR 34)."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.runtime import garbage_collection
from anabranch.runtime.garbage_collection import GROWTH, GROWTH_BYTES, OLDEST, ShortCollections

AT_START = 100 << 20
LIMIT = int(GROWTH * AT_START) + GROWTH_BYTES


class Process:
    """The interpreter's collections, as in a process with ``resident`` bytes."""

    def __init__(self) -> None:
        self.resident: int | None = AT_START
        self.collections = ShortCollections(lambda: self.resident)
        self.looked_at: list[int] = []
        """The number of objects at each automatic collection of the oldest generation."""

    def note(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == OLDEST:
            self.looked_at.append(len(gc.get_objects()))

    def grow(self, objects: int) -> list[list[object]]:
        """Create that many objects that stay."""
        return [[None] for _ in range(objects)]

    def grow_until_everything_is_looked_at(self, kept: list[list[object]]) -> None:
        """Grow until one collection finds the process large and the next one visits all objects."""
        for _ in range(20):
            if max(self.looked_at) >= len(kept):
                return
            kept += self.grow(100_000)
        raise AssertionError("no collection visited all objects")


@pytest.fixture
def process() -> Iterator[Process]:
    """Restore the test process's own collections afterwards."""
    callbacks, thresholds = list(gc.callbacks), gc.get_threshold()
    found = Process()
    gc.collect()
    gc.callbacks.append(found.note)
    try:
        yield found
    finally:
        gc.callbacks[:] = callbacks
        gc.set_threshold(*thresholds)
        gc.freeze()


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.self = self


def test_a_collection_visits_only_recent_objects(process: Process) -> None:
    process.collections.begin()
    kept = process.grow(400_000)
    assert len(process.looked_at) >= 4, "cycles among new objects are found"
    # The count includes the objects of the callback and of the test runner.
    assert max(process.looked_at) < 65_000
    assert len(kept) == 400_000 < gc.get_freeze_count()
    assert sum(process.collections.pauses.counts) > len(process.looked_at), "younger collections are measured, too"


def test_cycles_of_frozen_objects_are_freed_after_the_process_has_grown(process: Process) -> None:
    process.collections.begin()
    knots = [Knot() for _ in range(3)]
    gone = [weakref.ref(knot) for knot in knots]
    kept = process.grow(100_000)
    knots.clear()
    process.resident = LIMIT
    kept += process.grow(100_000)
    assert [knot() is None for knot in gone] == [False] * 3, (
        "the knots are frozen, and the process has not grown enough"
    )
    process.resident = LIMIT + 1
    process.grow_until_everything_is_looked_at(kept)
    assert [knot() is None for knot in gone] == [True] * 3


def test_a_process_that_stays_large_visits_all_objects_once(process: Process) -> None:
    process.collections.begin()
    kept = process.grow(100_000)
    process.resident = LIMIT + 1
    process.grow_until_everything_is_looked_at(kept)
    everything = max(process.looked_at)
    process.looked_at.clear()
    kept += process.grow(everything)
    assert 0 < max(process.looked_at) < everything / 3, (
        "a collection visits only new objects: CPython waits until they are a quarter of all objects"
    )


def test_nothing_is_frozen_where_the_size_of_the_process_is_not_known(process: Process) -> None:
    process.resident = None
    before = gc.get_freeze_count()
    process.collections.begin()
    kept = process.grow(200_000)
    assert gc.get_freeze_count() == before and len(kept) == 200_000


def test_the_size_of_this_process_is_known_on_linux() -> None:
    found = garbage_collection.resident_bytes()
    assert (found is not None and found > 1 << 20) is os.path.exists("/proc/self/statm")
