"""Ctrl-C and SIGTERM for commands that have something to finish."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

TOGETHER_S = 0.5
"""Signals so close to the first are the same: ``timeout`` sends one to the process and one to its group."""


class Interrupts:
    """``async with``: the first SIGINT or SIGTERM calls back; a later one ends the process as it does by default."""

    def __init__(self) -> None:
        self.status = 0
        """The exit status that the signal asks for: 130 or 143; 0 while none came."""
        self._callback: Callable[[], object] = lambda: None
        self._tasks: TaskGroup

    def on_first(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the signal comes, or at once if it came."""
        self._callback = callback
        if self.status:
            callback()

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        await self._tasks.start(self._wait)
        return self

    async def _wait(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            first_at = 0.0
            async for number in signals:
                if not self.status:
                    self.status, first_at = 128 + number, anyio.current_time()
                    self._callback()
                elif anyio.current_time() - first_at > TOGETHER_S:
                    break
        os.kill(os.getpid(), number)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
