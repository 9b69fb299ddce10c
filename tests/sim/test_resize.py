"""Topics that grow and shrink all the time, under load and faults, a seed each: every key keeps its order.

What a run has to end with: every record that was acknowledged is delivered, the last resize is carried out, and the
partitions that were marked are gone. ``make sim SEEDS=n FIRST=s`` runs as many as one likes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.history.events import KeysFlushed, KeysLoaded, PositionReported, Removed
from tests.sim.test_cluster import FIRST_SEED, keeps_its_promises
from tests.sim.world import Plan, live

SEEDS = int(os.environ.get("ANABRANCH_SIM_SEEDS", "24"))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_a_topic_that_is_resized_keeps_its_promises(seed: int, tmp_path: Path) -> None:
    keeps_its_promises(Plan.resizing(seed), tmp_path)


def test_a_run_has_what_it_is_about() -> None:
    """Keys that are flushed and loaded, positions that are told, partitions that come and go."""
    lives = [live(Plan.resizing(seed)) for seed in range(2)]
    kinds = {type(event) for life in lives for event in life.events}
    assert kinds >= {KeysFlushed, KeysLoaded, PositionReported, Removed}
    assert all(life.resizes for life in lives)


def test_a_seed_run_twice_gives_the_same_trace() -> None:
    assert live(Plan.resizing(FIRST_SEED)).trace == live(Plan.resizing(FIRST_SEED)).trace
