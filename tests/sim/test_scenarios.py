"""Runs the model's counterexamples on the real code: without its rule, each fails a check of the history.

The mutations of the group members' gate are in ``test_resize_mutations.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.zk_schemas.partition_state import PartitionLayout
from tests.sim.resize_mutations import (
    gainers_do_not_wait_for_losers,
    layout_before_duplicates,
    losers_need_not_answer,
    no_record_waits_for_a_loser,
)
from tests.sim.scenes import Scene, stage
from tests.support.resize.lineage_mutations import no_recursion

Patch = pytest.MonkeyPatch
LITTLE_S = 3.0
LONG = 60
TRIES = 5
"""The number of schedules for a scenario without its rule. In one or two of eight schedules no check fails."""


async def grow_while_a_loser_gets_no_requests(scene: Scene) -> None:
    """A producer writes to the child, then, with older metadata, to the parent, whose leader is cut off."""
    key, old, new = scene.key(1, 2), PartitionLayout(1, 0), PartitionLayout(2, 1)
    await scene.produce(key, old)
    scene.cut_from_controllers(scene.leader(0))
    await scene.ask_for(2)
    await scene.until(lambda: scene.has_layout(1), LITTLE_S)
    await scene.produce(key, new, limit_s=LITTLE_S)
    await scene.produce(key, old, limit_s=LITTLE_S)


async def shrink_while_a_loser_gets_no_requests(scene: Scene) -> None:
    await scene.resize(2)
    key, old, new = scene.key(1, 2), PartitionLayout(2, 1), PartitionLayout(1, 2)
    await scene.produce(key, old)
    scene.cut_from_controllers(scene.leader(1))
    await scene.ask_for(1)
    await scene.until(lambda: scene.has_layout(0), LITTLE_S)
    await scene.produce(key, new, limit_s=LITTLE_S)
    await scene.produce(key, old, limit_s=LITTLE_S)


async def retry_a_batch_written_before_the_resize(scene: Scene) -> None:
    """A response was lost. The producer retries with its old layout. After a refusal it sends by the new layout."""
    key, old = scene.key(1, 2), PartitionLayout(1, 0)
    await scene.produce(key, old)
    await scene.resize(2)
    value, parent, child = "scenario:1", scene.watch.tps()[0], scene.watch.tps()[1]
    error, _ = await scene.ask(parent, old, key, value, 0)
    if error:
        await scene.ask(child, scene.layout, key, value, 0)


async def split_a_partition_that_is_still_empty(scene: Scene) -> None:
    """Partitions 0 -> 1 -> 3: the parent of 3 is empty, and itself waits for partition 0, which has many records."""
    key, other = scene.key(3, 4, of=1, before=2), scene.key(0, 4)
    for _ in range(LONG):
        await scene.produce(other, PartitionLayout(1, 0))
    await scene.produce(key, PartitionLayout(1, 0))
    await scene.resize(2)
    await scene.resize(4)
    await scene.produce(key, scene.layout)


async def merge_twice(scene: Scene) -> None:
    """Partitions 3 -> 1 -> 0: 3 has many records, 1 has none. Partition 0 must wait for 3, although 1 is read."""
    await scene.resize(4)
    key = scene.key(3, 4)
    for _ in range(LONG):
        await scene.produce(key, scene.layout)
    await scene.resize(2)
    await scene.resize(1)
    await scene.produce(key, scene.layout)


async def merge_twice_with_records_between(scene: Scene) -> None:
    """Partitions 3 -> 1 -> 0: partition 1 is first a survivor and then marked, and still waits for partition 3."""
    await scene.resize(4)
    key = scene.key(3, 4)
    for _ in range(LONG):
        await scene.produce(key, scene.layout)
    await scene.resize(2)
    await scene.produce(key, scene.layout)
    await scene.resize(1)


SCENARIOS = [
    (grow_while_a_loser_gets_no_requests, 1, losers_need_not_answer, "promise"),
    (grow_while_a_loser_gets_no_requests, 1, gainers_do_not_wait_for_losers, "promise"),
    (shrink_while_a_loser_gets_no_requests, 1, losers_need_not_answer, "promise"),
    (retry_a_batch_written_before_the_resize, 1, layout_before_duplicates, "duplicates"),
    (merge_twice, 1, no_recursion, "promise"),
    (merge_twice_with_records_between, 1, no_record_waits_for_a_loser, "promise"),
    (split_a_partition_that_is_still_empty, 1, no_recursion, "promise"),
]


@pytest.mark.parametrize(
    ("scenario", "partitions"), list(dict.fromkeys((scenario, count) for scenario, count, _, _ in SCENARIOS))
)
def test_a_scenario_passes_with_every_rule_on(scenario: Any, partitions: int) -> None:
    assert stage(scenario, partitions) == []


@pytest.mark.parametrize(("scenario", "partitions", "switch_off", "found_by"), SCENARIOS)
@pytest.mark.mutation
def test_a_scenario_fails_its_check_with_its_rule_switched_off(
    scenario: Any, partitions: int, switch_off: Any, found_by: str, monkeypatch: Patch
) -> None:
    switch_off(monkeypatch)
    assert any(found_by in stage(scenario, partitions, seed) for seed in range(TRIES))
