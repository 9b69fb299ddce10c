"""Ctrl-C and SIGTERM for programs that must finish their work before they end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

TOGETHER_S = 0.5
"""Signals within this time count as one signal: ``timeout`` signals the process and also the process group."""
REMIND_S = 2.0
"""A command that still runs this long after the first signal prints the reason for its wait."""


class Interrupts:
    """``async with``: after one SIGINT or SIGTERM the command finishes its work, after a second one it stops waiting.

    A third signal ends the process. When the command cannot stop waiting, the second signal ends the process.
    """

    def __init__(self) -> None:
        self.status = 0
        """The exit status after the signal: 130 or 143; 0 before a signal."""
        self.gave_up = False
        """Whether ``give_up`` was called."""
        self._on_first: Callable[[], object] = lambda: None
        self._give_up: Callable[[], object] | None = None
        self._waits_for: Callable[[], str] = lambda: ""
        self._limit_s = float("inf")
        self._tasks: TaskGroup

    def on_first(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` at the first signal, or at once if a signal was received already."""
        self._on_first = callback
        if self.status:
            callback()

    def on_second(
        self, give_up: Callable[[], object], waits_for: Callable[[], str], *, limit_s: float = float("inf")
    ) -> None:
        """Call ``give_up`` at the second signal, or ``limit_s`` after the first.

        ``waits_for`` is the reason for the wait. The reason is printed if the command has not ended after ``REMIND_S``.
        """
        self._give_up, self._waits_for, self._limit_s = give_up, waits_for, limit_s

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        await self._tasks.start(self._wait)
        return self

    async def _wait(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            last_at = float("-inf")
            async for number in signals:
                together = anyio.current_time() - last_at <= TOGETHER_S
                if not self.status:
                    self.status = 128 + number
                    self._on_first()
                    self._tasks.start_soon(self._remind)
                elif not together and not self._try_to_give_up():
                    break
                last_at = anyio.current_time()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    async def _remind(self) -> None:
        await anyio.sleep(REMIND_S)
        if self._give_up is None:
            return
        until = f" at most {self._limit_s:.0f} s" if self._limit_s < float("inf") else ""
        text = f"anabranch: waiting{until} for {self._waits_for()}; press Ctrl-C again to stop waiting"
        print(text, file=sys.stderr)  # noqa: T201
        await anyio.sleep(self._limit_s - REMIND_S)
        self._try_to_give_up()

    def _try_to_give_up(self) -> bool:
        """Call ``give_up``. Returns False if no ``give_up`` is set, or if it was called already."""
        if self._give_up is None or self.gave_up:
            return False
        self.gave_up = True
        self._give_up()
        return True

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
