"""The rule for a warm side: two rounds in a row agree. Pure.

A JVM compiles frequent code, and every side fills its caches. So the first rounds are slower than the later ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

AGREEMENT = 0.10
"""Two rates agree when they differ by at most this share of the higher one."""
MAX_ROUNDS = 10
MAX_S = 180.0
"""The time limit for one workload on one side. With ``MAX_ROUNDS`` it limits a side whose rates never agree."""


@dataclass(slots=True)
class WarmUp:
    """The uncounted rounds of one workload on one side."""

    rates: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, rate: float, seconds: float) -> None:
        """Add a round: records/s, and its duration with all preparations."""
        self.rates.append(rate)
        self.seconds += seconds

    @property
    def is_settled(self) -> bool:
        """Whether the last two rounds agree."""
        if len(self.rates) < 2:
            return False
        earlier, later = self.rates[-2:]
        return abs(later - earlier) <= AGREEMENT * max(earlier, later)

    @property
    def is_over(self) -> bool:
        """Whether the counted rounds may begin: the side is warm, or a limit is reached."""
        return self.is_settled or len(self.rates) >= MAX_ROUNDS or self.seconds >= MAX_S

    def __str__(self) -> str:
        summary = f"{len(self.rates)} rounds, {self.seconds:,.0f} s"
        return summary if self.is_settled else f"{summary}, NOT settled: the last were {self._last()} records/s"

    def _last(self) -> str:
        return " and ".join(f"{rate:,.0f}" for rate in self.rates[-2:])
