"""Deterministic simulation: trio with virtual time, and a scheduler whose order follows from the seed alone.

trio shuffles the tasks that are ready at the same time. This module uses five private parts of trio: a switch to sort
tasks before the shuffle, the shuffle's random generator, the queue of ready tasks, the list of deadlines, and the jump
of ``MockClock``. ``SimTasks`` holds tasks of the queue back. The clock jumps to the next deadline. No other module uses
private parts of trio, and a canary test fails when the parts change.
"""

from __future__ import annotations

import math
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
    """The installed trio lacks the internals that the simulation needs."""


class SimTasks:
    """The tasks of one simulated process, which can be stopped and continued as by SIGSTOP and SIGCONT.

    While a process is stopped, time passes and bytes arrive, but its tasks do not run.
    """

    def __init__(self) -> None:
        self._held: list[trio.lowlevel.Task] | None = None

    @property
    def stopped(self) -> bool:
        return self._held is not None

    async def run(self, async_fn: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run ``async_fn`` in the current task, as the process; the tasks that it starts belong to the process too."""
        token = _process.set(self)
        try:
            return await async_fn(*arguments)
        finally:
            _process.reset(token)

    def stop(self) -> None:
        """Stop the process. Tasks that are ready now still make one step."""
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """Continue the process. Tasks that became ready meanwhile, also by a deadline, run now."""
        held, self._held = self._held or [], None
        for task in held:
            trio_run.GLOBAL_RUN_CONTEXT.runner.runq.append(task)

    def holds(self, task: trio.lowlevel.Task) -> bool:
        """Hold back a ready task of a stopped process; False for other tasks."""
        if self._held is None:
            return False
        self._held.append(task)
        return True


_process: ContextVar[SimTasks | None] = ContextVar("simulated process", default=None)


class _RunQueue(deque[trio.lowlevel.Task]):
    """The tasks that are ready, except the tasks of stopped processes."""

    def append(self, task: trio.lowlevel.Task) -> None:
        process = task.context.get(_process)
        if process is None or not process.holds(task):
            super().append(task)


def _jumping_clock() -> MockClock:
    """A clock whose virtual time only jumps, like a ``MockClock`` without a rate.

    ``MockClock`` reads the real clock each time it is read, and counts all tasks for each jump. A simulated cluster
    reads the time some million times.
    """
    if not hasattr(MockClock, "_autojump"):
        raise SchedulerChangedError(f"trio {trio.__version__}: trio.testing.MockClock has no _autojump")
    clock = MockClock(autojump_threshold=0)
    now = 0.0

    def jump_to_next_deadline() -> None:
        nonlocal now
        jump = trio_run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline() - now
        if 0 < jump < math.inf:
            now += jump  # the same addition as in MockClock, so that traces stay the same

    # trio jumps the time only of a MockClock, and MockClock cannot be subclassed.
    clock.current_time = lambda: now  # type: ignore[method-assign]
    clock._autojump = jump_to_next_deadline  # type: ignore[method-assign]
    return clock


def run_deterministic(seed: int, async_fn: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """``trio.run`` in virtual time, with a schedule that follows from ``seed``. Time jumps when all tasks wait.

    Threads and real sockets must not be used. Raises ``SchedulerChangedError``.
    """
    if not hasattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING") or not isinstance(
        getattr(trio_run, "_r", None), random.Random
    ):
        raise SchedulerChangedError(
            f"trio {trio.__version__} lacks _ALLOW_DETERMINISTIC_SCHEDULING or the random generator _r"
        )
    switch = trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    state = trio_run._r.getstate()
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)
    try:
        return trio.run(_run, async_fn, arguments, clock=_jumping_clock())
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = switch  # type: ignore[misc]
        trio_run._r.setstate(state)


async def _run(async_fn: Callable[..., Awaitable[T]], arguments: tuple[Any, ...]) -> T:
    runner = trio_run.GLOBAL_RUN_CONTEXT.runner
    if not isinstance(getattr(runner, "runq", None), deque):
        raise SchedulerChangedError(f"trio {trio.__version__}: the runner has no deque of tasks runq")
    if not hasattr(getattr(runner, "deadlines", None), "next_deadline"):
        raise SchedulerChangedError(f"trio {trio.__version__}: the runner has no list of deadlines")
    runner.runq = _RunQueue(runner.runq)
    return await async_fn(*arguments)
