"""Background work of a process: failures of its tasks and items are counted, reported, and retried after a pause.

A task works on many items: logs, directories, groups, peers. A failing item must not stop the other items or the
process, and is retried only after a pause. ``guard`` wraps the work on one item, ``keep`` and ``every`` wrap a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog
import trio

from anabranch.protocol.errors import KafkaError
from anabranch.protocol.plurals import counted
from anabranch.runtime.env import ZkError
from anabranch.runtime.metric_table import PROCESS_METRICS
from anabranch.runtime.metrics import Counter, Gauge, Metrics

logger = structlog.get_logger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
LONGEST_RESTART_S = 30.0
LONGEST_INTERVAL_S = 86_400.0 * 365
FORGOTTEN_AFTER_S = 3600.0
"""A failing item that was not tried again within this time is no longer shown: no task works on it any more."""
MAX_FAILING = 1000
"""The largest number of failing items that are named; all are counted."""
_EXPECTED = (OSError, KafkaError, ZkError, ValueError)


class Monotonic(Protocol):
    """The part of a clock that failures need."""

    def monotonic(self) -> float: ...


class LoopTime:
    """The event loop's clock."""

    def monotonic(self) -> float:
        return trio.current_time()


@dataclass(slots=True)
class ItemFailure:
    """A failing item. ``times`` counts failures in a row; ``retry_at``, ``failed_at`` are of ``clock.monotonic()``."""

    task: str
    item: str
    error: str
    times: int
    failed_at: float
    retry_at: float

    def describe(self, now: float) -> str:
        """One line for an operator."""
        what = f"{self.task} {self.item}".rstrip()
        pause_s = max(0.0, self.retry_at - now)
        return f"{what}: failed {counted(self.times, 'time')}, next try in {pause_s:.0f} s: {self.error}"


class Background:
    """The failures of one process. With ``propagate_bugs``, an error whose type is not in ``_EXPECTED`` is raised."""

    def __init__(self, clock: Monotonic | None = None, *, propagate_bugs: bool = False) -> None:
        self._clock: Monotonic = clock or LoopTime()
        self._propagate_bugs = propagate_bugs
        self._failing: dict[tuple[str, str], ItemFailure] = {}
        self.sources: list[Callable[[], list[str]]] = []
        """Functions that return further faults, one line each. These faults are not retried."""
        self.failures = Counter(PROCESS_METRICS["anabranch_background_failures"])

    def show_in(self, metrics: Metrics) -> None:
        """Have ``metrics`` count and show the failures."""
        metrics.counters = (*metrics.counters, self.failures)
        metrics.gauges.append(Gauge(PROCESS_METRICS["anabranch_background_failing"], lambda: len(self.describe())))

    def due(self, task: str, item: object = "") -> bool:
        """Whether an item may be tried: the item did not fail, or its pause is over."""
        failure = self._failing.get((task, str(item))) if self._failing else None
        return failure is None or self._clock.monotonic() >= failure.retry_at

    @contextmanager
    def guard(self, task: str, item: object = "", *, passes: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """Catch and count errors of the block, which works on one item. ``due`` is then False for a while.

        An error of the type ``passes`` is not a failure of the item, and is raised.
        """
        try:
            yield
        except passes:
            raise
        except Exception as error:
            self.failed(task, item, error)
        else:
            self.succeeded(task, item)

    def failed(self, task: str, item: object, error: Exception, longest_s: float = LONGEST_PAUSE_S) -> float:
        """Count a failure, and return the seconds until the item may be tried again."""
        now = self._clock.monotonic()
        key = task, str(item)
        known = self._failing.pop(key, None)
        times = known.times + 1 if known is not None else 1
        pause_s = min(longest_s, FIRST_PAUSE_S * float(2 ** min(times - 1, 20)))
        if len(self._failing) >= MAX_FAILING:
            del self._failing[next(iter(self._failing))]
        self._failing[key] = ItemFailure(*key, _text(error), times, now, now + pause_s)
        self._count(task, key[1], error, times=times, retry_s=pause_s)
        return pause_s

    def failed_once(self, task: str, item: object, error: Exception) -> None:
        """Count a failure that ends its item, such as a connection."""
        self._count(task, str(item), error)

    def _count(self, task: str, item: str, error: Exception, **more: float) -> None:
        if self._propagate_bugs and _is_bug(error):
            raise error
        self.failures.add(task)
        logger.error("background.failed", task=task, item=item, error=_text(error), **more, exc_info=_is_bug(error))

    def succeeded(self, task: str, item: object = "") -> None:
        """The item works; if it was failing, it has recovered."""
        if self._failing and (known := self._failing.pop((task, str(item)), None)) is not None:
            logger.info("background.recovered", task=task, item=known.item, times=known.times)

    def forget(self, item: object) -> None:
        """The item no longer exists: drop its failures."""
        for key in [key for key in self._failing if key[1] == str(item)]:
            del self._failing[key]

    def failing(self) -> list[ItemFailure]:
        """The items that fail now, in the order of their last tries."""
        oldest = self._clock.monotonic() - FORGOTTEN_AFTER_S
        self._failing = {key: known for key, known in self._failing.items() if known.failed_at >= oldest}
        return list(self._failing.values())

    def faults(self) -> list[str]:
        """The faults that are not retried, one line each."""
        return [line for source in self.sources for line in source()]

    def line(self, failure: ItemFailure) -> str:
        """The failure as a line for an operator."""
        return failure.describe(self._clock.monotonic())

    def describe(self) -> list[str]:
        """All faults and failing items, one line each."""
        return self.faults() + [self.line(failure) for failure in self.failing()]

    async def every(self, task: str, interval_s: float, work: Callable[[], Awaitable[None] | None]) -> None:
        """Do the work of a task each time ``interval_s`` is over, until cancelled. A failure ends only one turn."""
        while True:
            await trio.sleep(min(interval_s, LONGEST_INTERVAL_S))
            with self.guard(task):
                pending = work()
                if pending is not None:
                    await pending

    async def keep(self, task: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task that should not end by itself, and restart it after each failure, until cancelled.

        The task counts as recovered when it has run for as long as the pause before its restart.
        """
        pause_s = 0.0
        while True:
            try:
                if pause_s == 0.0:
                    await run()
                else:
                    await self._run_again(task, run, pause_s)
                return
            except Exception as error:
                pause_s = self.failed(task, "", error, LONGEST_RESTART_S)
            await trio.sleep(pause_s)

    async def _run_again(self, task: str, run: Callable[[], Awaitable[None]], proof_s: float) -> None:
        async def note_recovery() -> None:
            await trio.sleep(proof_s)
            self.succeeded(task)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_recovery)
            await run()
            nursery.cancel_scope.cancel()


def _text(error: Exception) -> str:
    """The error; of a group, the errors in it."""
    if isinstance(error, ExceptionGroup):
        return "; ".join(map(_text, error.exceptions))
    return str(error) or type(error).__name__


def _is_bug(error: BaseException) -> bool:
    if isinstance(error, ExceptionGroup):
        return any(_is_bug(each) for each in error.exceptions)
    return not isinstance(error, _EXPECTED)
