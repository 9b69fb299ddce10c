"""Measures the work between two yields to the event loop, in steps and not in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class LoopProbe(trio.abc.Instrument):
    """Counts the steps within one round of the event loop. The watched work calls ``step``."""

    def __init__(self) -> None:
        self.steps = 0
        """The number of steps in all."""
        self.most_steps = 0
        """The largest number of steps in one round."""
        self._round = 0

    def step(self, count: int = 1) -> None:
        """Count steps in the present round."""
        self.steps += count
        self._round += count
        self.most_steps = max(self.most_steps, self._round)

    def before_io_wait(self, timeout: float) -> None:
        self._round = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the loop during the block."""
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)
