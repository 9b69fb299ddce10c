"""Micro-batches over random histories of resizes read keys in order. With any rule switched off, a history fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.ordered_resize import earlier_records
from anabranch.ordered_resize.facts import Facts
from anabranch.protocol.transitions import IllegalTransitionError
from anabranch.spark import plan
from tests.support.audit.stream_model import StreamModel

Mutation: TypeAlias = Callable[[pytest.MonkeyPatch], None]
SEEDS = int(os.environ.get("ANABRANCH_LINEAGE_SEEDS", "40"))
LIMIT = 600


def broken(first: int, count: int) -> list[str]:
    for seed in range(first, first + count):
        try:
            StreamModel(seed).run()
        except (AssertionError, LookupError, IllegalTransitionError, RecursionError) as error:
            return [f"history {seed}: {type(error).__name__}: {error}"]
    return []


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_a_key_is_read_in_order_and_nothing_hangs(first: int) -> None:
    assert not broken(first, min(10, SEEDS - first))


def positions_at_the_end_of_the_micro_batch_count(patch: pytest.MonkeyPatch) -> None:
    once = plan.reach
    patch.setattr("tests.support.audit.stream_model.reach", lambda view, start: once(view, once(view, start)))


def nothing_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan.earlier_records, "cap", lambda facts, p: facts.lineages[p].as_of)


def a_micro_batch_reads_behind_the_barrier(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "tests.support.audit.stream_model.reach",
        lambda view, start: {
            p: view.latest[p].offset if p in view.latest and end > start[p] else end
            for p, end in plan.reach(view, start).items()
        },
    )


def an_old_lineage_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "is_fresh", lambda known, epoch: True)
    patch.setattr(earlier_records, "is_fresh", lambda known, epoch: True)


def requirements_of_a_loser_do_not_count(patch: pytest.MonkeyPatch) -> None:
    def required(facts: Facts, losers: Mapping[int, int], *, passed_too: bool = False) -> dict[int, int]:
        return {q: f for q, f in losers.items() if facts.over.get(q, -1) < f}

    patch.setattr(earlier_records, "required", required)


@pytest.mark.parametrize(
    "rule",
    [
        positions_at_the_end_of_the_micro_batch_count,
        nothing_waits,
        a_micro_batch_reads_behind_the_barrier,
        an_old_lineage_counts,
        requirements_of_a_loser_do_not_count,
    ],
)
@pytest.mark.mutation
def test_a_rule_switched_off_is_noticed(rule: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    rule(monkeypatch)
    assert broken(0, LIMIT)


@given(st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 99), st.integers(0, 1000))), st.integers(1, 3000))
def test_a_limit_is_shared_and_starves_no_partition(found: dict[int, tuple[int, int]], limit: int) -> None:
    start = {p: at for p, (at, _) in found.items()}
    reached = {p: at + count for p, (at, count) in found.items()}
    end = plan.limited(start, reached, limit)
    taken = {p: end[p] - start[p] for p in start}
    assert all(start[p] <= end[p] <= reached[p] for p in start)
    assert all(taken[p] > 0 for p in start if reached[p] > start[p])
    there = sum(count for _, count in found.values())
    assert sum(taken.values()) <= max(limit, 0) + len(start)
    if there <= limit:
        assert end == reached
