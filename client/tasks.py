"""The background tasks of a client. An error that ends one of them does not cancel the user's ``async with`` block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVarTuple

from anabranch.runtime.detached import DetachedGroup

Ts = TypeVarTuple("Ts")


class Tasks(Protocol):
    """Starts background tasks, as a task group does."""

    def start_soon(self, func: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: object = None) -> object: ...


class GuardedTasks:
    """Starts tasks in a task group. The error that ends a task is given to ``on_failure`` instead of the group."""

    def __init__(self, group: DetachedGroup, on_failure: Callable[[Exception], None]) -> None:
        self._group = group
        self._on_failure = on_failure

    def start_soon(self, func: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: object = None) -> None:
        """Start a task; ``name`` is for debuggers."""
        self._group.start_soon(self._guard, lambda: func(*args), name=func if name is None else name)

    async def _guard(self, run: Callable[[], Awaitable[object]]) -> None:
        try:
            await run()
        except Exception as error:
            while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            self._on_failure(error)
