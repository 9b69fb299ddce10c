"""Resizes during faults of networks, disks and ZooKeeper pass the history checks. Each scenario needs a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anabranch.broker.log.log_manager import LogManager
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch
from tests.sim import fault_scenarios as scenarios
from tests.sim.mutations import watermark_is_the_leaders_own_end
from tests.sim.resize_mutations import gainers_do_not_wait_for_losers
from tests.sim.scenes import Scenario, stage

Patch = pytest.MonkeyPatch
TRIES = 20
ONE_REPLICA = {scenarios.lose_the_only_replica_of_a_loser}


def a_missing_log_is_not_created_again(patch: Patch) -> None:
    create = LogManager.create

    def only_new(self: Any, key: Any, *rest: Any, is_new: bool = False, **named: Any) -> Any:
        if not is_new:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key}: the log is missing")
        return create(self, key, *rest, is_new=is_new, **named)

    patch.setattr(LogManager, "create", only_new)


def a_batch_is_loaded_without_a_check_of_its_crc(patch: Patch) -> None:
    patch.setattr(RecordBatch, "ensure_valid", lambda _self: None)


RULES: tuple[tuple[Scenario, Callable[[Patch], None], str], ...] = (
    (scenarios.split_while_a_leader_is_cut_from_the_controllers, gainers_do_not_wait_for_losers, "promise"),
    (scenarios.split_while_a_leader_is_cut_from_zookeeper, watermark_is_the_leaders_own_end, "lost_acknowledged"),
    (scenarios.split_while_a_leader_is_isolated, watermark_is_the_leaders_own_end, "lost_acknowledged"),
    (scenarios.lose_the_only_replica_of_a_loser, a_missing_log_is_not_created_again, "unfinished"),
    (scenarios.tear_the_last_batches, a_batch_is_loaded_without_a_check_of_its_crc, "inconsistent_offsets"),
)


def staged(scenario: Scenario, seed: int = 0) -> list[str]:
    return stage(scenario, 1, seed, replication_factor=1 if scenario in ONE_REPLICA else 3)


@pytest.mark.parametrize("scenario", [scenario for scenario, _, _ in RULES])
def test_a_resize_during_the_fault_passes_every_check(scenario: Scenario) -> None:
    assert staged(scenario) == []


@pytest.mark.parametrize(("scenario", "switch_off", "found_by"), RULES)
@pytest.mark.mutation
def test_the_scenario_fails_its_check_with_its_rule_switched_off(
    scenario: Scenario, switch_off: Callable[[Patch], None], found_by: str, monkeypatch: Patch
) -> None:
    switch_off(monkeypatch)
    assert any(found_by in staged(scenario, seed) for seed in range(TRIES))
