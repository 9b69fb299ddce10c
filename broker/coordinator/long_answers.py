"""Answers that take long to make: the first piece is made at once, and the other pieces in a task, in turn.

``steps`` yields where other tasks may run, and returns the answer. If a step fails, the answer is that of ``failed``:
nobody waits for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from anabranch.broker.deferred import Deferred
from anabranch.runtime.background import Background
from anabranch.runtime.signal import Signal
from anabranch.runtime.turns import pause

T = TypeVar("T")


class _Job(NamedTuple):
    name: str
    steps: Generator[None, None, Any]
    answer: Deferred[Any]
    failed: Callable[[], Any]


class LongAnswers:
    """One task runs ``run``. Without it, only answers of one piece are made."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._waiting: deque[_Job] = deque()
        self._is_wanted = Signal()

    def make(self, name: str, steps: Generator[None, None, T], answer: Deferred[T], failed: Callable[[], T]) -> None:
        """Fill ``answer``, now or later. It is not made any more once nobody waits for it. Reports name failures."""
        job = _Job(name, steps, answer, failed)
        if not self._step(job):
            answer.on_abandoned = partial(self._drop, job)
            self._waiting.append(job)
            self._is_wanted.set()

    async def run(self) -> None:
        """Make the answers that wait, until cancelled."""
        while True:
            while self._waiting:
                await pause()
                if self._waiting:
                    job = self._waiting.popleft()
                    if not self._step(job):
                        self._waiting.append(job)
            await self._is_wanted.wait()

    def finish(self) -> None:
        """Make the answers that wait without pauses: the broker shuts down."""
        while self._waiting:
            job = self._waiting.popleft()
            while not self._step(job):
                pass

    def _drop(self, job: _Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)

    def _step(self, job: _Job) -> bool:
        """Make the next piece; returns whether it was the last one."""
        try:
            next(job.steps)
        except StopIteration as stop:
            job.answer.fill(stop.value)
            return True
        except Exception as error:
            job.answer.fill(job.failed())
            self._background.failed_once("long-answers", job.name, error)
            return True
        return False
