"""How far a leader answers consumers that do not keep the order of keys themselves."""

from __future__ import annotations

import math
from typing import Final, NamedTuple


class StockCap(NamedTuple):
    """The highest leader epoch of which such consumers are given batches.

    ``while_fresh`` counts until ``fresh_until`` (monotonic seconds): a group that the answers behind it do not name may
    begin to read after that. Then ``at_least`` counts, which no group can take back.
    """

    while_fresh: int
    fresh_until: float
    at_least: int

    def at(self, now: float) -> int:
        return self.while_fresh if now < self.fresh_until else self.at_least


NOTHING: Final = StockCap(-1, -math.inf, -1)
"""Of a leader that does not know yet what its partition waits for."""
