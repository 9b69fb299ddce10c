"""Rule 12 by brute force: a lineage that names a removed partition also names that partition's requirements.

The search covers all histories of up to ``PARTITIONS`` partitions and ``RESIZES`` resizes. After each resize it removes
any number of the partitions that may be removed. The design cites the result for 8 partitions and 5 resizes, which
``ANABRANCH_LINEAGE_FULL=1`` runs in ten seconds or more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tests.support.resize.resize_histories import History

FULL = os.environ.get("ANABRANCH_LINEAGE_FULL") == "1"
PARTITIONS, RESIZES = (8, 5) if FULL else (7, 4)


def required_by_others(history: History, q: int) -> list[str]:
    """The requirements of ``q``, before its removal, that other lineages lack although they name ``q``."""
    lacking = []
    for p, part in history.parts.items():
        for e, losers in part.entries:
            if q not in losers or history.over.get(q, -1) >= losers[q]:
                continue
            for r, g in requirements(history, q, losers[q]):
                by_itself = any(e2 <= e and named.get(r, -1) >= g for e2, named in part.entries)
                is_own_past = r == p and g < e
                if not by_itself and not is_own_past:
                    lacking.append(f"{p} from {e} names {q}: {losers[q]}, which requires {r}: {g}")
    return lacking


def requirements(history: History, q: int, f: int) -> Iterator[tuple[int, int]]:
    for e, losers in history.parts[q].entries:
        if e <= f:
            yield from ((r, g) for r, g in losers.items() if history.over.get(r, -1) < g)


def explore(history: History, resizes: int) -> int:
    """Explore every continuation, and return the number of histories."""
    if resizes == 0:
        return 1
    total = 0
    for count in range(history.initial, PARTITIONS + 1):
        if count == history.count:
            continue
        grown = history.copy()
        grown.resize(count)
        total += explore(grown, resizes - 1)
        while grown.removable():
            lacking = required_by_others(grown, max(grown.parts))
            assert not lacking, lacking
            grown.remove_highest()
            total += explore(grown.copy(), resizes - 1)
    return total


def test_a_lineage_that_names_a_removed_partition_also_names_its_requirements() -> None:
    histories = sum(explore(History.new(initial), RESIZES) for initial in range(1, PARTITIONS + 1))
    print(f"{histories} histories of up to {PARTITIONS} partitions and {RESIZES} resizes")
    assert histories > (100_000 if FULL else 5_000)
