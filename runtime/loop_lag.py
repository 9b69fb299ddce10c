"""How long the event loop was busy between two moments at which it looked for what had arrived."""

from __future__ import annotations

import trio

from anabranch.runtime.metrics import Histogram

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class LoopLag(trio.abc.Instrument):
    """Measures every round of the loop while ``run`` runs: as long waits what arrives at a socket."""

    def __init__(self) -> None:
        self.rounds = Histogram(
            "anabranch_loop_lag_seconds",
            "Rounds of the event loop by how long each kept the loop from looking at its sockets",
            BOUNDS_S,
        )
        self._began: float | None = None

    def after_io_wait(self, timeout: float) -> None:
        self._began = trio.current_time()

    def before_io_wait(self, timeout: float) -> None:
        if self._began is not None:
            self.rounds.observe(trio.current_time() - self._began)

    async def run(self) -> None:
        """Measure until cancelled."""
        trio.lowlevel.add_instrument(self)
        try:
            await trio.sleep_forever()
        finally:
            trio.lowlevel.remove_instrument(self)
