"""When a side is warm: two rounds in a row agree. Pure.

A JVM compiles what runs often, and every side fills caches: rates of the first rounds measure that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

AGREEMENT = 0.10
"""Two rates agree when they differ by at most this part of the higher one."""
MAX_ROUNDS = 10
MAX_S = 180.0
"""Of one workload on one side; both bound what a side that never settles costs."""


@dataclass(slots=True)
class WarmUp:
    """The rounds of one workload on one side that do not count."""

    rates: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, rate: float, seconds: float) -> None:
        """One round: records/s, and how long it took with all around it."""
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
        """Whether the rounds that count may begin: the side is warm, or has had its chance."""
        return self.is_settled or len(self.rates) >= MAX_ROUNDS or self.seconds >= MAX_S

    def __str__(self) -> str:
        said = f"{len(self.rates)} rounds, {self.seconds:,.0f} s"
        return said if self.is_settled else f"{said}, NOT settled: the last were {self._last()} records/s"

    def _last(self) -> str:
        return " and ".join(f"{rate:,.0f}" for rate in self.rates[-2:])
