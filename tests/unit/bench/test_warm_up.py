"""The rounds before those that count: until two in a row agree, and not for ever."""

from __future__ import annotations

import pytest

from bench.warm_up import MAX_ROUNDS, MAX_S, WarmUp


def after(*rates: float, seconds: float = 1.0) -> WarmUp:
    found = WarmUp()
    for rate in rates:
        found.add(rate, seconds)
    return found


@pytest.mark.parametrize(
    ("rates", "settled"),
    [
        ([], False),
        ([100], False),
        ([100, 90], True),
        ([90, 100], True),
        ([100, 89], False),
        ([50, 80, 100], False),
        ([50, 80, 100, 105], True),
        ([100, 100, 50], False),
        ([0, 0], True),
    ],
)
def test_two_rounds_in_a_row_agree_within_a_tenth_of_the_higher(rates: list[float], settled: bool) -> None:
    assert after(*rates).is_settled == after(*rates).is_over == settled


def test_a_side_that_never_settles_is_let_go_and_the_table_shows_it() -> None:
    rates = [100.0 * 2 ** (number % 2) for number in range(MAX_ROUNDS)]
    assert not after(*rates[:-1]).is_over
    warm_up = after(*rates)
    assert warm_up.is_over and not warm_up.is_settled
    assert str(warm_up) == f"{MAX_ROUNDS} rounds, {MAX_ROUNDS} s, NOT settled: the last were 100 and 200 records/s"


def test_long_rounds_are_bounded_by_time() -> None:
    assert not after(100, 200, seconds=MAX_S / 3).is_over
    assert after(100, 200, seconds=MAX_S / 2).is_over


def test_how_long_it_took_is_shown() -> None:
    assert str(after(100, 150, 149, seconds=2.0)) == "3 rounds, 6 s"
