"""The cap up to which a leader serves stock consumers: consumers that do not keep the order of keys themselves."""

from __future__ import annotations

import math
from typing import Final, NamedTuple


class StockCap(NamedTuple):
    """The highest leader epoch whose batches stock consumers get.

    ``while_fresh`` counts until ``fresh_until`` (monotonic seconds). After that, a group that is not in the answers
    behind ``while_fresh`` may begin to read. Then ``at_least`` counts, which holds for every group.
    """

    while_fresh: int
    fresh_until: float
    at_least: int

    def at(self, now: float) -> int:
        return self.while_fresh if now < self.fresh_until else self.at_least


NOTHING: Final = StockCap(-1, -math.inf, -1)
"""The cap of a leader that has no facts yet."""
