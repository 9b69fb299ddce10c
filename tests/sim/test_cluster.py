"""Whole clusters under load and faults, one per seed, pass all history checks and heal.

``make sim SEEDS=n FIRST=s`` runs any number of seeds; the default is short enough for every test run.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.history.events import write_history
from tests.sim.random_run import Plan, Run, run_plan

SEEDS = int(os.environ.get("ANABRANCH_SIM_SEEDS", "8"))
FIRST_SEED = int(os.environ.get("ANABRANCH_SIM_FIRST", "0"))
SEEDS_RUN_TWICE = 2


@functools.cache
def first_run(seed: int) -> Run:
    """The first run of a seed. The run is kept, because other tests compare a second run with it."""
    return run_plan(Plan.of(seed))


def keeps_its_promises(plan: Plan, directory: Path, run_plan: Callable[[Plan], Run] = run_plan) -> None:
    """Run the plan by ``run_plan``, and check its history. If a check fails, write the history to ``directory``."""
    print(f"seed {plan.seed}, commit {commit()}; again: make sim SEEDS=1 FIRST={plan.seed}; {plan}")
    run = run_plan(plan)
    violations = run.violations()
    if violations:
        write_history(directory / "history.jsonl", run.events)
        print(f"the history: {directory / 'history.jsonl'}")
    assert not violations, "\n".join(str(violation) for violation in violations)
    assert run.acknowledged, "a run in which nothing is acknowledged proves nothing"


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_a_cluster_under_faults_keeps_its_promises_and_heals(seed: int, tmp_path: Path) -> None:
    keeps_its_promises(Plan.of(seed), tmp_path, lambda _: first_run(seed))


def test_a_member_that_starts_with_old_metadata_continues_at_the_groups_position() -> None:
    """The member's request went to a leader of an earlier epoch, which had been cut off and had a shorter log.

    The member must not read from the start for that reason.
    """
    assert not run_plan(dataclasses.replace(Plan.of(0), flush="ack", churn=False)).violations()


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + min(SEEDS, SEEDS_RUN_TWICE)))
def test_a_seed_run_twice_gives_the_same_trace(seed: int) -> None:
    assert run_plan(Plan.of(seed)).trace == first_run(seed).trace


def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    """Hashes of strings differ between processes, so no decision may depend on the order of a set."""
    ask = f"""
from tests.sim.random_run import Plan, run_plan
print("hash", hash("text"))
print("trace", run_plan(Plan.of({FIRST_SEED})).trace)"""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    output = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    found = dict(line.split(" ", 1) for line in output.splitlines() if line.startswith(("hash ", "trace ")))
    assert found["hash"] != str(hash("text"))
    assert found["trace"] == first_run(FIRST_SEED).trace


def commit() -> str:
    """The checked out commit, if git is available."""
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
