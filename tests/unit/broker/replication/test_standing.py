"""A log is newer than a znode if its incarnation, its leader epoch or its layout version is later."""

from __future__ import annotations

import pytest

from anabranch.broker.replication.standing import Standing, ahead

LOG = Standing(incarnation=90, leader_epoch=5, layout_version=2)


@pytest.mark.parametrize(
    ("other", "how"),
    [
        (Standing(90, 5, 2), ""),
        (Standing(90, 6, 2), ""),
        (Standing(90, 5, 3), ""),
        (Standing(90, 4, 2), "leader epoch 5, and ZooKeeper has 4"),
        (Standing(90, 9, 1), "layout version 2, and ZooKeeper has 1"),
        (Standing(90, 9, 0), "layout version 2, and ZooKeeper has 0"),
        (Standing(90, 9, -1), ""),
        (Standing(89, 9, 9), "incarnation 90, and ZooKeeper has 89"),
        (Standing(91, 6, 0), ""),
        (Standing(91, 5, 9), "leader epoch 5 of an earlier incarnation, and ZooKeeper has 5"),
        (Standing(-1, 5, 2), ""),
        (Standing(-1, 4, 2), "leader epoch 5, and ZooKeeper has 4"),
    ],
)
def test_a_log_is_newer_by_any_of_its_numbers(other: Standing, how: str) -> None:
    assert ahead(LOG, other) == how


def test_a_log_that_knows_nothing_is_never_newer() -> None:
    assert ahead(Standing(-1, -1, -1), Standing(-1, -1, -1)) == ""
    assert ahead(Standing(90, -1, -1), Standing(90, 0, 0)) == ""
    assert ahead(Standing(90, -1, -1), Standing(91, 0, 0)) == ""
