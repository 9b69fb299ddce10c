"""Compares the key moves that a dry run shows with the partitions of many keys under both layouts."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.protocol.key_placement import place
from anabranch.view.moves import KeyMove, key_share, moves, percent, split_tree, unordered_share


def test_four_to_six_partitions_and_back_move_a_quarter_of_the_keys() -> None:
    assert moves(4, 4, 6) == [KeyMove(0, 4, Fraction(1, 8)), KeyMove(1, 5, Fraction(1, 8))]
    assert moves(4, 6, 4) == [KeyMove(4, 0, Fraction(1, 8)), KeyMove(5, 1, Fraction(1, 8))]
    assert percent(sum((move.share for move in moves(4, 4, 6)), Fraction(0))) == "25.0 %"


@given(initial=st.integers(1, 5), grown=st.integers(0, 30), others=st.integers(0, 30))
def test_planned_moves_are_those_of_placing_every_hash(initial: int, grown: int, others: int) -> None:
    before, after = initial + grown, initial + others
    top = initial
    while top < max(before, after):
        top *= 2
    hashes = range(top)  # one whole period of both layouts
    changes = Counter(
        (source, target)
        for h in hashes
        if (source := place(h, initial, before)) != (target := place(h, initial, after))
    )
    planned = moves(initial, before, after)
    assert {(move.source, move.target): move.share for move in planned} == {
        pair: Fraction(n, top) for pair, n in changes.items()
    }
    assert sum(key_share(p, initial, before) for p in range(before)) == 1


@pytest.mark.parametrize(("before", "after"), [(4, 6), (6, 9), (9, 6), (4, 8), (3, 7)])
def test_the_share_of_moved_keys_without_order_is_that_of_plain_modulo(before: int, after: int) -> None:
    period = before * after
    moved = sum(h % before != h % after for h in range(period))
    assert unordered_share(before, after) == Fraction(moved, period)


def test_the_tree_shows_each_partition_below_its_parent() -> None:
    assert split_tree(2, range(9), str) == [
        "0",
        "├── 2",
        "│   └── 6",
        "├── 4",
        "└── 8",
        "1",
        "├── 3",
        "│   └── 7",
        "└── 5",
    ]


def test_the_tree_of_a_topic_never_resized_is_its_partitions() -> None:
    assert split_tree(3, range(3), lambda p: f"{p} leader 1") == ["0 leader 1", "1 leader 1", "2 leader 1"]
