"""A task group in a task of its own, which any task of the event loop may open and close, in any order.

A task group that a task enters must be left by the same task, before the groups that it entered earlier. The group here
belongs to no task of its user: under asyncio it runs in a task of the loop, under trio in a system task.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

Ts = TypeVarTuple("Ts")


class DetachedGroup:
    """A task group. Only ``close`` and the end of the event loop cancel its tasks, no scope of its user does.

    No error may leave its tasks: there is no task to raise it in.
    """

    def __init__(self) -> None:
        self._group: TaskGroup | None = None
        self._opened = anyio.Event()
        self._ended = anyio.Event()
        self._task: object = None

    async def open(self) -> None:
        """Start the task that runs the group."""
        with anyio.CancelScope(shield=True):  # a cancellation half-way would leave a group that nobody closes
            self._task = _start_task(self._run)
            await self._opened.wait()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._group is not None and self._group.cancel_scope.cancel_called

    def start_soon(self, func: Callable[[*Ts], Coroutine[Any, Any, object]], *args: *Ts, name: object = None) -> None:
        """Start a task in the open group. Once the group is closed, no task starts."""
        assert self._group is not None
        if not self.closed:
            self._group.start_soon(func, *args, name=name)

    async def close(self) -> None:
        """Cancel the group's tasks, and return when all have ended. May be called by several tasks, and repeatedly."""
        if self._group is not None:
            self._group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._ended.wait()

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as self._group:
                self._opened.set()
                await anyio.sleep_forever()
        finally:
            self._ended.set()


def _start_task(run: Callable[[], Coroutine[Any, Any, None]]) -> object:
    """Start a task that no scope or task group of the caller contains. Keep the result: asyncio keeps none."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return trio.lowlevel.spawn_system_task(run, context=copy_context())
    return asyncio.get_running_loop().create_task(run())
