"""Looks up a record by its time, in steps."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from anabranch.broker.log.cold_reads import ColdError
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.slices import TimeSlice
from anabranch.runtime.env import Clock

Found: TypeAlias = tuple[int, int, int]
"""(timestamp, offset, leader epoch) of a record."""
STEPS_AT_ONCE = 1000
"""The largest number of batch headers that a look-up by time reads before other tasks run."""
_STEPS_PER_CHECK = 20


class TimeSearch:
    """A look-up by time, in steps. If a segment's timestamps are not sorted, it may have to be read to its end.

    If ``timestamp`` is None, the search is for the first record with the largest timestamp (KIP-734). If the log is
    truncated or loses segments between two steps, the search starts again.
    """

    __slots__ = ("_cold", "_layout", "_log", "_steps", "_timestamp", "found", "is_done")

    def __init__(self, log: PartitionLog, timestamp: int | None) -> None:
        self._log = log
        self._timestamp = timestamp
        self._cold: ColdError | None = None
        """The read that the next step would wait for."""
        self.found: Found | None = None
        self.is_done = False
        self._start()

    def _start(self) -> None:
        self._layout = self._current_layout()
        self._steps = _first_at_or_after(self._log, self._timestamp)

    def _current_layout(self) -> tuple[object, ...]:
        return (self._log.truncations, *self._log.segments)

    def advance(self, steps: int | None = None) -> bool:
        """Do up to ``steps`` steps (None: all), or fewer if one would wait for the disk; returns whether all are done.

        Raises ``OSError``, CORRUPT_MESSAGE 2.
        """
        if self._layout != self._current_layout():
            self._start()
        taken = 0
        while not self.is_done and (steps is None or taken < steps):
            taken += 1
            try:
                self._cold = next(self._steps)
            except StopIteration as end:
                self.found = end.value
                self.is_done = True
            else:
                if self._cold is not None and steps is not None:
                    break
        return self.is_done

    async def finish(self, clock: Clock) -> None:
        """Do all steps, in slices. Raises like ``advance``."""
        work = TimeSlice(clock)
        steps = 0
        while self._cold is not None or not self.advance(_STEPS_PER_CHECK):
            if self._cold is not None:
                cold, self._cold = self._cold, None
                await cold.warm()
                steps = 0
                continue
            steps += _STEPS_PER_CHECK
            if work.due() or steps >= STEPS_AT_ONCE - _STEPS_PER_CHECK:
                await work.pause()
                steps = 0


def _first_at_or_after(log: PartitionLog, timestamp: int | None) -> Generator[ColdError | None, None, Found | None]:
    segments = list(log.segments)
    if timestamp is None:
        filled = [segment for segment in segments if segment.size_bytes]
        if not filled:
            return None
        segments = [max(filled, key=lambda segment: segment.largest_timestamp())]
        timestamp = segments[0].largest_timestamp()
    for segment in segments:
        yield None
        if segment.largest_timestamp() >= timestamp:
            found = yield from segment.find_by_timestamp(timestamp, log.log_start_offset)
            if segment is not log.segments[-1]:
                segment.release()
            if found is not None:
                return found
    return None
