"""Losers and gainers are compared with the real moves of keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.ordered_resize.layout import Layout, moves


@given(st.integers(1, 5), st.integers(0, 30), st.integers(0, 30))
def test_keys_move_from_losers_to_their_gainers_and_nowhere_else(initial: int, grown: int, target: int) -> None:
    before, after = Layout(initial + grown, 0, initial), Layout(initial + target, 1, initial)
    moved: dict[int, set[int]] = {}
    for key_hash in range(initial * 64):  # a multiple of every modulus up to 64 times the initial count
        source, target_partition = before.owner(key_hash), after.owner(key_hash)
        if source != target_partition:
            moved.setdefault(target_partition, set()).add(source)
    found = moves(initial, before.undeleted_partition_count, after.undeleted_partition_count)
    assert {gainer: set(losers) for gainer, losers in found.losers_of.items()} == moved
    assert not found.losers & found.losers_of.keys()
