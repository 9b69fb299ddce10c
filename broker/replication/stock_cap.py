"""The limit up to which a leader serves stock consumers, which do not keep the order of keys themselves."""

from __future__ import annotations

import math
from typing import Final, NamedTuple


class StockCap(NamedTuple):
    """The highest leader epoch whose batches stock consumers get.

    Until ``fresh_until`` (monotonic seconds) the cap is ``while_fresh``, which was computed from answers about the
    groups. After ``fresh_until`` another group may begin to read, so the cap is ``at_least``, which is right for every
    group.
    """

    while_fresh: int
    fresh_until: float
    at_least: int

    def at(self, now: float) -> int:
        return self.while_fresh if now < self.fresh_until else self.at_least


NOTHING: Final = StockCap(-1, -math.inf, -1)
"""The cap of a leader that has no facts yet."""
