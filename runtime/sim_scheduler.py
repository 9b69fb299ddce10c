"""One seed, one history: trio with virtual time and a scheduler whose order depends on the seed alone.

trio shuffles the tasks that are ready at once, on purpose. It has a switch for property tests that sorts them first and
a generator that shuffles; both are private, and so is the queue of tasks that are ready, which ``SimTasks`` holds
tasks back from. They are touched here only, and a canary test tells when they move.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import trio
import trio._core._run as trio_run
from trio.testing import MockClock

T = TypeVar("T")


class SchedulerChangedError(RuntimeError):
    """This trio has not the switches the simulation needs."""


class SimTasks:
    """The tasks of one simulated process, which can be stopped and continued as by SIGSTOP and SIGCONT.

    Time goes on for a stopped process, and what is sent to it arrives; but none of its tasks runs.
    """

    def __init__(self) -> None:
        self._held: list[trio.lowlevel.Task] | None = None

    @property
    def stopped(self) -> bool:
        return self._held is not None

    async def run(self, async_fn: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run ``async_fn`` in the current task, as the process: what it starts belongs to it too."""
        token = _process.set(self)
        try:
            return await async_fn(*arguments)
        finally:
            _process.reset(token)

    def stop(self) -> None:
        """Tasks that are ready in this very moment still make one step."""
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """All that became ready meanwhile, deadlines included, is ready now."""
        held, self._held = self._held or [], None
        for task in held:
            trio_run.GLOBAL_RUN_CONTEXT.runner.runq.append(task)

    def holds(self, task: trio.lowlevel.Task) -> bool:
        """Take a task that is ready, if the process is stopped."""
        if self._held is None:
            return False
        self._held.append(task)
        return True


_process: ContextVar[SimTasks | None] = ContextVar("simulated process", default=None)


class _RunQueue(deque[trio.lowlevel.Task]):
    """The tasks that are ready, without those of stopped processes."""

    def append(self, task: trio.lowlevel.Task) -> None:
        process = task.context.get(_process)
        if process is None or not process.holds(task):
            super().append(task)


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
        return trio.run(_run, async_fn, arguments, clock=MockClock(autojump_threshold=0))
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = switch  # type: ignore[misc]
        trio_run._r.setstate(state)


async def _run(async_fn: Callable[..., Awaitable[T]], arguments: tuple[Any, ...]) -> T:
    runner = trio_run.GLOBAL_RUN_CONTEXT.runner
    if not isinstance(getattr(runner, "runq", None), deque):
        raise SchedulerChangedError(f"trio {trio.__version__} hides its queue of tasks")
    runner.runq = _RunQueue(runner.runq)
    return await async_fn(*arguments)
