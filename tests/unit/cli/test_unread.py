"""A lag counts readable records; records that expired unread and partitions without a commit stand beside it."""

from __future__ import annotations

import json

import pytest

from anabranch import TopicPartition
from anabranch.view.unread import NOT_KNOWN, Unread, total_lag, unread
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_admin import FakeAdmin


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


def test_groups_describe_shows_expired_records_and_partitions_without_a_commit(run: Run) -> None:
    ends = {0: (100, 100), 1: (0, 500), 2: (0, 0)}
    admin = FakeAdmin(groups={"g": {0: 7}}, ends=ends)
    _, out, _ = run(admin, "groups", "describe", "g")
    lines = [line.split() for line in out.splitlines()[2:]]
    assert lines[0] == ["partition", "committed", "end", "lag", "expired", "unread", "behind", "member"]
    assert lines[1][:5] == ["0", "7", "100", "0", "93"] and lines[2][:5] == ["1", "-", "500", "-", "-"]
    assert lines[3][:5] == ["total", "-", "-", "0", "93"]
    assert "1 partition of its topics has no commit. It holds 500 records. The lag does not count them" in out
    rows = json.loads(run(admin, "groups", "describe", "g", "--json")[1])[0]["partitions"]
    assert [(row["partition"], row["lag"], row["lag_seconds"], row["expired"], row["uncommitted"]) for row in rows] == [
        (0, 0, 0.0, 93, None),
        (1, None, None, None, 500),
    ]
