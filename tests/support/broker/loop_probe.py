"""How much work is done between two moments at which the event loop looks after other tasks: in steps, not in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class LoopProbe(trio.abc.Instrument):
    """Steps that are made within one round of the event loop. The work to be watched calls ``step``."""

    def __init__(self) -> None:
        self.steps = 0
        """In all."""
        self.most_steps = 0
        """In one round."""
        self._round = 0

    def step(self, count: int = 1) -> None:
        """Count work that is done now."""
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
