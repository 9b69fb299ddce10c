"""One seed, one history: trio with virtual time and a scheduler whose order depends on the seed alone.

trio shuffles the tasks that are ready at once, on purpose. It has a switch for property tests that sorts them first and
a generator that shuffles; both are private, so they are touched here only, and a canary test tells when they move.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
import trio._core._run as trio_run
from trio.testing import MockClock

T = TypeVar("T")


class SchedulerChangedError(RuntimeError):
    """This trio has not the switches the simulation needs."""


def run_deterministic(seed: int, async_fn: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """``trio.run`` in virtual time that jumps whenever nothing is left to do; the schedule follows from ``seed``.

    Threads and real sockets have no place in it. Raises ``SchedulerChangedError``.
    """
    if not hasattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING") or not isinstance(
        getattr(trio_run, "_r", None), random.Random
    ):
        raise SchedulerChangedError(f"trio {trio.__version__} hides its scheduler's switches")
    switch = trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    state = trio_run._r.getstate()
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)
    try:
        return trio.run(async_fn, *arguments, clock=MockClock(autojump_threshold=0))
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = switch  # type: ignore[misc]
        trio_run._r.setstate(state)
