"""Each seed has a topic that grows and shrinks all the time, under load and faults: every key keeps its order.

At the end of a run, every acknowledged record must be delivered, the last resize complete, and the marked partitions
removed. ``make sim SEEDS=n FIRST=s`` runs any number of seeds.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.coordinator import leadership
from anabranch.broker.coordinator.durable import DurableState
from tests.history.events import EXPIRED, Assigned, Fault, Polled, StoredBatch
from tests.sim.members import GROUP
from tests.sim.random_run import Plan, Run, run_plan
from tests.sim.test_cluster import FIRST_SEED, keeps_its_promises

SEEDS = int(os.environ.get("ANABRANCH_SIM_SEEDS", "16"))


LOOKED_AT_AGAIN = 10
"""The runs of seeds below this number are kept, because other tests use them too."""


def run_of(plan: Plan) -> Run:
    """The run of a plan. It is kept if several tests use it."""
    return _kept_run(plan) if plan.seed < LOOKED_AT_AGAIN else run_plan(plan)


@functools.cache
def _kept_run(plan: Plan) -> Run:
    return run_plan(plan)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_a_topic_that_is_resized_keeps_its_promises(seed: int, tmp_path: Path) -> None:
    keeps_its_promises(Plan.resizing(seed), tmp_path, run_of)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(1, SEEDS // 4)))
def test_a_topic_that_is_resized_while_its_records_expire_keeps_its_promises(seed: int, tmp_path: Path) -> None:
    keeps_its_promises(Plan.expiring(seed), tmp_path, run_of)


def test_retention_removes_records_that_were_read_and_records_that_were_not() -> None:
    events = run_of(Plan.expiring(1)).events
    read = {event.value for event in events if isinstance(event, Polled)}
    gone = {
        value
        for event in events
        if isinstance(event, StoredBatch) and event.broker == EXPIRED
        for value in event.values
        if value is not None
    }
    assert gone & read
    assert gone - read


def test_ten_runs_include_every_kind_of_event_of_a_resize() -> None:
    """The events are flushes, loads, reported positions, removals, resizes, rebalances and crashes of members."""
    missing = {"KeysFlushed", "KeysLoaded", "PositionReported", "Removed", "resize", "rebalance", "crash"}
    for seed in range(LOOKED_AT_AGAIN):
        run = run_of(Plan.resizing(seed))
        missing -= {type(event).__name__ for event in run.events}
        if run.resizes:
            missing.discard("resize")
        if any(isinstance(event, Assigned) and event.generation > 1 for event in run.events):
            missing.discard("rebalance")
        if any(isinstance(event, Fault) and event.kind == "member crash" for event in run.events):
            missing.discard("crash")
        if not missing:
            return
    pytest.fail(f"no run has {sorted(missing)}")


def test_ten_runs_include_a_take_over_by_another_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    read_state = leadership.read_state
    taken_over: list[str] = []

    async def read(*of: Any) -> DurableState:
        state = await read_state(*of)
        if GROUP in state.generations:
            taken_over.append(GROUP)
        return state

    monkeypatch.setattr(leadership, "read_state", read)
    first = 3  # had one when the test was written
    assert any(run_plan(Plan.resizing(seed)) and taken_over for seed in range(first, first + 10))


def test_a_seed_run_twice_gives_the_same_trace() -> None:
    plan = Plan.resizing(FIRST_SEED)
    plan = replace(plan, load=replace(plan.load, records=50))
    assert run_plan(plan).trace == run_plan(plan).trace
