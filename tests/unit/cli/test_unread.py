"""A lag counts readable records; records that expired unread and partitions without a commit stand beside it."""

from __future__ import annotations

import pytest

from anabranch import TopicPartition
from anabranch.view.unread import NOT_KNOWN, Unread, total_lag, unread


@pytest.mark.parametrize(
    ("committed", "start", "end", "found"),
    [
        (60, 10, 100, Unread(40, 0, None)),
        (7, 100, 100, Unread(0, 93, None)),
        (7, 40, 100, Unread(60, 33, None)),
        (120, 10, 100, Unread(0, 0, None)),
        (None, 10, 100, Unread(None, None, 90)),
        (5, None, 100, NOT_KNOWN),
        (5, 0, None, NOT_KNOWN),
    ],
    ids=["behind", "all expired", "some expired", "ahead", "no commit", "no start", "no end"],
)
def test_records_are_readable_expired_or_without_a_commit(
    committed: int | None, start: int | None, end: int | None, found: Unread
) -> None:
    assert unread(committed, start, end) == found


def test_a_total_counts_readable_records_of_partitions_that_answer() -> None:
    a, b, c = (TopicPartition("t", p) for p in range(3))
    assert total_lag({a: 7, b: 60, c: 0}, {a: 100}, {a: 100, b: 100}) == 40
