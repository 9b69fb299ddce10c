"""Shares each pass of an event loop between the tasks that have long work; under trio and asyncio alike.

Each task does a bounded piece of work, then lets other tasks run. Many tasks could do a piece each in one pass of the
loop, and hold the loop for as long as all these pieces take. So a pass has a limit for all tasks together: beyond it
they wait in a queue, and each later pass serves the next of them. Short work is not counted.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import anyio
import anyio.lowlevel

PASS_BYTES: Final = 4 * 1024 * 1024
"""The work of one pass, in bytes that are received and moved: a few milliseconds, also in memory that is not mapped."""
PIECE: Final = PASS_BYTES // 4
"""The cost of a piece of other work, which takes a few milliseconds at most."""
TRANSFER: Final = 64 * 1024
"""The cost of a receive or a send whose number of bytes is not known yet."""


class Turns:
    """The turns of one event loop."""

    __slots__ = ("_most", "_waiting", "left")

    def __init__(self, most: int = PASS_BYTES) -> None:
        self._most = most
        self._waiting: deque[tuple[anyio.Event, int]] = deque()
        self.left = most
        """What may still be done in this pass. If it is 0 or less, the next task that takes a turn ends the pass.

        A task whose work turns out to be larger than its turn subtracts the rest.
        """

    async def take(self, cost: int) -> None:
        """Take a turn for short work of ``cost``; other tasks run first only if this pass has done enough."""
        if self.left <= 0:
            await self.pause(cost)
        else:
            self.left -= cost

    async def pause(self, cost: int = PIECE) -> None:
        """Let other tasks run; return when it is this task's turn to do work of ``cost``."""
        mine = anyio.Event(), cost
        self._waiting.append(mine)
        try:
            if self._waiting[0] is mine:
                await anyio.lowlevel.checkpoint()
            else:
                await mine[0].wait()
        except BaseException:
            self._leave(mine)
            raise
        if self._waiting and self._waiting[0] is mine:
            self._begin_pass()

    def _begin_pass(self) -> None:
        """Give turns to as many waiting tasks as fit. The first one that does not fit begins the pass after it."""
        self.left = self._most
        while self._waiting and self.left > 0:
            turn, cost = self._waiting.popleft()
            self.left -= cost
            turn.set()
        self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0][0].set()

    def _leave(self, mine: tuple[anyio.Event, int]) -> None:
        if mine in self._waiting:
            was_first = self._waiting[0] is mine
            self._waiting.remove(mine)
            if was_first:
                self._wake_first()


_OF_LOOP: Final = anyio.lowlevel.RunVar[Turns]("turns")


def turns() -> Turns:
    """The turns of the running event loop."""
    try:
        return _OF_LOOP.get()
    except LookupError:
        found = Turns()
        _OF_LOOP.set(found)
        return found


async def pause(cost: int = PIECE) -> None:
    """Let other tasks run, and return at this task's turn for the next piece of long work."""
    await turns().pause(cost)
