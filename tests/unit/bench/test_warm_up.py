"""Warm-up rounds run before the counted rounds, until two in a row agree or a limit is reached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import bench.rounds
from bench.rounds import warm_up
from bench.warm_up import MAX_ROUNDS, MAX_S, WarmUp
from bench.workloads import FAIL_OVER, Workload, in_parts


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
def test_a_warm_up_ends_when_two_rounds_in_a_row_differ_by_at_most_a_tenth(rates: list[float], settled: bool) -> None:
    assert after(*rates).is_settled == after(*rates).is_over == settled


def test_a_side_that_never_settles_is_given_up_and_shown_as_not_settled() -> None:
    rates = [100.0 * 2 ** (number % 2) for number in range(MAX_ROUNDS)]
    assert not after(*rates[:-1]).is_over
    never = after(*rates)
    assert never.is_over and not never.is_settled
    assert str(never) == f"{MAX_ROUNDS} rounds, {MAX_ROUNDS} s, NOT settled: the last were 100 and 200 records/s"


def test_the_warm_up_ends_after_a_limited_time() -> None:
    assert not after(100, 200, seconds=MAX_S / 3).is_over
    assert after(100, 200, seconds=MAX_S / 2).is_over


def test_the_rounds_and_seconds_of_the_warm_up_are_shown() -> None:
    assert str(after(100, 150, 149, seconds=2.0)) == "3 rounds, 6 s"


class Sides:
    """Two clusters with scripted rates; ``log`` lists the runs in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rates: dict[str, list[float]]) -> None:
        self.rates = {name: iter(given) for name, given in rates.items()}
        self.log: list[str] = []
        self.deleted: list[str] = []
        self.targets: list[Any] = [SimpleNamespace(name=name, warm_ups={}, samples={}) for name in rates]
        monkeypatch.setattr(bench.rounds, "run_load", self.run)
        monkeypatch.setattr(bench.rounds, "create_topic", lambda target, topic, workload: None)
        monkeypatch.setattr(bench.rounds, "delete_topics", lambda target, topics: self.deleted.extend(topics))

    def run(self, target: Any, workload: Workload, topic: str, scale: float, site: object) -> dict[str, float]:
        self.log.append(f"{target.name} {workload.name} {topic}")
        return {"records_per_s": next(self.rates[target.name])}


def test_sides_take_turns_until_each_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, {"A": [100, 100, 70, 70], "B": [10, 50, 90, 91, 60, 60]})
    produce, fetch = Workload("produce", "produce", 1, 1), Workload("fetch", "fetch", 1, 1, fetch_of="produce")
    killed, resize = Workload("killed", FAIL_OVER, 0, 0), Workload("resize", "resize-hand-over", 1, 1, ours={})
    warm_up(sides.targets, [produce, fetch, killed, resize], 1.0, None)
    assert [line.split()[:2] for line in sides.log] == [
        *[["A", "produce"], ["B", "produce"], ["A", "produce"], ["B", "produce"]],
        *[["B", "produce"], ["B", "produce"]],
        *[["A", "fetch"], ["B", "fetch"], ["A", "fetch"], ["B", "fetch"]],
    ]
    read = {line.split()[0]: line.split()[2] for line in sides.log if " fetch " in line}
    assert read == {"A": "warm-up-0-2", "B": "warm-up-0-4"}, "a fetch reads the latest records"
    written = [line.split()[2] for line in sides.log if " produce " in line]
    assert sorted(sides.deleted) == sorted(written), "the topics of each side are deleted"
    assert [target.samples for target in sides.targets] == [{}, {}]
    assert {name: len(found.rates) for name, found in sides.targets[1].warm_ups.items()} == {"produce": 4, "fetch": 2}


def test_workloads_that_kill_leaders_come_last() -> None:
    produce, killed, memory = (Workload(kind, kind, 1, 1) for kind in ("produce", FAIL_OVER, "memory"))
    assert in_parts([produce, killed, memory]) == [[produce, memory], [killed]]
    assert in_parts([produce]) == [[produce]]
    assert in_parts([killed]) == [[killed]]
