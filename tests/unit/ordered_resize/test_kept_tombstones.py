"""Which tombstones stay; tests/property/ordered_resize/test_kept_tombstones.py explains why."""

from __future__ import annotations

import pytest

from anabranch.ordered_resize.kept_tombstones import first_kept_epoch
from anabranch.zk_schemas.partition_state import LineageEntry

GROWN, MERGED = LineageEntry(1, {0: 4}), LineageEntry(3, {5: 2, 7: 2})


@pytest.mark.parametrize(
    ("entries", "over", "kept_from"),
    [
        ((), {}, 10),  # no other partition had these keys; epochs after ``as_of`` may have entries
        ((GROWN, MERGED), {}, 1),
        ((GROWN, MERGED), {0: 3}, 1),  # an earlier incarnation of partition 0 is over
        ((GROWN, MERGED), {0: 4}, 3),
        ((GROWN, MERGED), {0: 4, 5: 2}, 3),  # partition 7 exists
        ((GROWN, MERGED), {0: 4, 5: 2, 7: 3}, 10),
        ((GROWN, MERGED), {5: 2, 7: 2}, 1),
    ],
)
def test_tombstones_stay_from_the_first_entry_with_a_loser_that_is_not_over(
    entries: tuple[LineageEntry, ...], over: dict[int, int], kept_from: int
) -> None:
    assert first_kept_epoch(entries, 9, over) == kept_from
