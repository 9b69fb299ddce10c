"""Keeps operations that wait for a partition to change or for their deadline: one list of changes, one timer heap.

A waiting request is an object here and not a task, because a task takes ten times the resources. Changes are collected
and delivered once per turn of the event loop, so a burst of appends wakes a waiting fetch once. Operations that gain
nothing from that are checked at the end of the ``with`` block in which they change. Other tasks run after every
``ITEMS_AT_ONCE`` items of operations.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import chain, count

import trio

from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock
from anabranch.runtime.turns import pause

_COMPACT_ABOVE = 1024
ITEMS_AT_ONCE = 64
"""An item takes up to 0.1 ms: a read of a partition, or a response that is sent."""


class DelayedOperation:
    """A request that waits. ``deadline`` is a time of ``env.clock.monotonic()``."""

    __slots__ = ("completed", "deadline")

    is_checked_at_once = False
    """Whether a change in a ``with`` block of the purgatory is delivered at the end of the block."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.completed = False

    @property
    def items(self) -> int:
        """The number of partitions that a check or the response takes time for, at least 1."""
        return 1

    def try_complete(self) -> None:
        """Check the operation after a change that it watches: if it is ready, answer and set ``completed``."""
        raise NotImplementedError

    def expire(self) -> None:
        """Answer at the deadline with the present result, and set ``completed``."""
        raise NotImplementedError

    def drop(self) -> None:
        """Free what the operation keeps, because it failed and is never answered."""


class Purgatory:
    """Where delayed operations wait. The code that makes a change never completes them: only ``run``, or a ``with``
    block around a request does, at its end. A block does not suspend.
    """

    def __init__(self, clock: Clock, background: Background | None = None) -> None:
        self._clock = clock
        self._background = background or Background()
        self._heap: list[tuple[float, int, DelayedOperation]] = []
        self._order = count()
        self._changed: dict[DelayedOperation, None] = {}
        self._ended: dict[DelayedOperation, None] = {}
        self._in_block = False
        self._sleeping_until = math.inf
        self._wake = trio.Event()
        self._sooner = trio.Event()
        """Set when an operation has a deadline before ``_sleeping_until``."""
        self._left = ITEMS_AT_ONCE
        """The items that may still be handled before other tasks run."""

    @property
    def size(self) -> int:
        """The number of operations, including completed operations whose deadline is not reached."""
        return len(self._heap)

    def waiting(self) -> Iterator[DelayedOperation]:
        """The operations that are not completed."""
        return (operation for _, _, operation in self._heap if not operation.completed)

    def park(self, operation: DelayedOperation) -> None:
        """Keep an operation until it completes or its deadline is reached."""
        if len(self._heap) > _COMPACT_ABOVE and sum(not entry[2].completed for entry in self._heap[:64]) < 16:
            self._heap = [entry for entry in self._heap if not entry[2].completed]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (operation.deadline, next(self._order), operation))
        if operation.deadline < self._sleeping_until:
            self._sooner.set()

    def changed(self, operation: DelayedOperation) -> None:
        """Check ``operation`` in the next turn of the loop, or at the end of the block: its condition may hold now."""
        if not self._changed and not self._in_block:
            self._wake.set()
        self._changed[operation] = None

    def __enter__(self) -> None:
        self._in_block = True

    def __exit__(self, *_error: object) -> None:
        self._in_block = False
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        is_over = False
        for operation in changed:
            if is_over or not operation.is_checked_at_once:
                self.changed(operation)
            elif not operation.completed:
                is_over = self._complete(operation, operation.try_complete)

    def end(self, operation: DelayedOperation) -> None:
        """Answer ``operation`` in the next turn of the loop with its present result, as at its deadline."""
        self._wake.set()
        self._ended[operation] = None

    async def run(self) -> None:
        """Deliver changes and deadlines until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver_deadlines)
            while True:
                for _ in chain(self._deliver(), self._end()):
                    await pause()
                heap = self._heap
                while heap and heap[0][2].completed:
                    heapq.heappop(heap)
                await self._wake.wait()
                self._wake = trio.Event()

    async def _deliver_deadlines(self) -> None:
        """In a task of its own: a change sets no timer. Most operations complete long before their deadlines."""
        while True:
            for _ in self._expire():
                await pause()
            self._sooner = trio.Event()
            self._sleeping_until = self._heap[0][0] if self._heap else math.inf
            with trio.move_on_at(self._sleeping_until):
                await self._sooner.wait()

    def _deliver(self) -> Iterator[None]:
        """Yields where other tasks have to run."""
        changed, self._changed = self._changed, {}
        for operation in changed:
            if not operation.completed and self._complete(operation, operation.try_complete):
                yield

    def _end(self) -> Iterator[None]:
        """Yields where other tasks have to run."""
        ended, self._ended = self._ended, {}
        for operation in ended:
            if not operation.completed and self._complete(operation, operation.expire):
                yield

    def _complete(self, operation: DelayedOperation, step: Callable[[], None]) -> bool:
        """Do a step of one operation. If it fails, the operation is over: its client gets no answer and asks again.

        Returns whether it is time for a pause.
        """
        self._left -= operation.items
        try:
            step()
        except Exception as error:
            operation.completed = True
            operation.drop()
            self._background.failed_once("delayed-requests", type(operation).__name__, error)
        if self._left > 0:
            return False
        self._left = ITEMS_AT_ONCE
        return True

    def _expire(self) -> Iterator[None]:
        """Yields where other tasks have to run."""
        now = self._clock.monotonic()
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].completed):
            operation = heapq.heappop(self._heap)[2]
            if not operation.completed and self._complete(operation, operation.expire):
                yield

    async def close(self) -> None:
        """Answer all waiting operations with their present results, with pauses."""
        waiting, self._heap = self._heap, []
        for _, _, operation in waiting:
            if not operation.completed and self._complete(operation, operation.expire):
                await pause()
