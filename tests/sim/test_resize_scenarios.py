"""Each rule of ordered resize has a scenario that needs it: without the rule, a check of the history fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim import resize_mutations as off
from tests.sim import resize_scenarios as scenarios
from tests.sim.scenes import Scenario, stage
from tests.support.resize import lineage_mutations as rules

Patch = pytest.MonkeyPatch
SwitchOff = Callable[[Patch], None]

RULES: tuple[tuple[Scenario, SwitchOff, str], ...] = (
    (scenarios.split_with_much_to_read, off.no_record_waits_for_a_loser, "promise"),
    (scenarios.split_with_much_to_read, rules.no_lineage, "promise"),
    (scenarios.split_with_much_to_read, off.positions_without_a_flush, "promise"),
    (scenarios.split_with_much_to_read, off.keys_are_not_loaded, "promise"),
    (scenarios.split_with_much_to_read, off.an_unknown_position_counts_as_the_end, "promise"),
    (scenarios.split_with_much_to_read, off.positions_before_the_commit, "positions"),
    (scenarios.merge_with_much_to_read, off.no_record_waits_for_a_loser, "promise"),
    (scenarios.write_by_the_previous_layout, off.layouts_are_not_compared, "routing"),
    (scenarios.write_to_a_marked_partition, off.closed_partitions_take_records, "closed"),
    (
        scenarios.write_late_by_an_earlier_layout_of_the_same_count,
        rules.a_batch_of_another_layout_version_is_accepted,
        "key_order",
    ),
    (
        scenarios.write_late_by_an_earlier_layout_of_the_same_count,
        rules.a_batch_of_another_layout_version_is_accepted,
        "layouts",
    ),
    (scenarios.merge_two_while_one_gets_no_requests, off.one_layout_for_a_topic_on_a_broker, "promise"),
    (scenarios.grow_by_several_at_once, off.the_losers_are_those_of_the_new_count, "unseen"),
    (scenarios.grow_while_controller_and_leader_die, rules.a_losers_epoch_is_recorded_with_the_goal, "promise"),
    (scenarios.grow_while_only_an_election_gets_through, rules.a_losers_epoch_is_recorded_with_the_goal, "promise"),
    (
        scenarios.grow_again_while_a_grow_is_unfinished,
        rules.the_next_resize_begins_at_any_time,
        "unfinished",
    ),
    (scenarios.cancel_a_grow_after_a_partition_has_gained, rules.a_resize_is_cancelled_at_any_time, "promise"),
    (scenarios.grow_while_a_merged_partition_is_unread, rules.a_revived_partition_gets_no_entry, "promise"),
    (scenarios.merge_a_revived_partition, off.no_record_waits_for_a_loser, "promise"),
    (
        scenarios.elect_a_survivor_while_a_marked_partition_gets_no_requests,
        off.send_leaders_the_topics_layout,
        "promise",
    ),
    (scenarios.merge_twice_into_one, off.only_the_newest_entry_counts, "promise"),
    (scenarios.grow_while_a_loser_is_given_up, off.a_loser_without_a_leader_counts_as_acknowledged, "promise"),
    (scenarios.merge_while_a_fetch_is_parked, rules.batches_newer_than_the_known_lineage_are_delivered, "promise"),
    (scenarios.split_before_all_have_followed, off.answer_an_epochs_end_before_all_have_followed, "promise"),
    (scenarios.die_while_a_partition_is_removed, off.a_removal_is_two_writes, "unfinished"),
    (
        scenarios.remove_a_partition_with_a_batch_unresolved,
        off.a_batch_of_a_removed_partition_is_placed_again,
        "duplicates",
    ),
    (
        scenarios.split_a_partition_with_a_batch_unresolved,
        off.records_do_not_wait_for_unacknowledged_ones,
        "key_order",
    ),
    (scenarios.split_a_partition_with_a_batch_unresolved, off.a_retry_names_the_newest_layout, "routing"),
    (scenarios.refuse_before_all_have_followed, off.refuse_before_all_have_followed, "duplicates"),
    (scenarios.create_a_partition_again, off.a_partition_created_again_begins_at_0, "unseen"),
)

WITHOUT_A_RULE: tuple[Scenario, ...] = (
    scenarios.cancel_a_grow,
    scenarios.queue_a_resize,
    scenarios.lose_records_of_a_closed_partition,
    scenarios.merge_before_all_have_followed,
)
"""Scenarios that show the behaviour of a resize, without a rule of their own."""

TRIES = 100
"""The most schedules to run. Without its rule, a scenario usually fails in the first. One scenario fails in 1 of 20."""


REPLICATION_FACTORS = {
    scenarios.grow_while_a_loser_is_given_up: 1,
    scenarios.cancel_a_grow_after_a_partition_has_gained: 1,
    scenarios.split_before_all_have_followed: 2,
}
"""With one replica no other broker can lead a partition. With two replicas one broker has no replica."""


def staged(scenario: Scenario, seed: int = 0) -> list[str]:
    return stage(scenario, 1, seed, replication_factor=REPLICATION_FACTORS.get(scenario, 3))


@pytest.mark.parametrize("scenario", dict.fromkeys([*(scenario for scenario, _, _ in RULES), *WITHOUT_A_RULE]))
def test_a_scenario_passes_with_every_rule_on(scenario: Scenario) -> None:
    assert staged(scenario) == []


@pytest.mark.parametrize(("scenario", "switch_off", "found_by"), RULES)
@pytest.mark.mutation
def test_a_scenario_fails_its_check_with_its_rule_switched_off(
    scenario: Scenario, switch_off: SwitchOff, found_by: str, monkeypatch: Patch
) -> None:
    switch_off(monkeypatch)
    assert any(found_by in staged(scenario, seed) for seed in range(TRIES))


def test_the_leader_epochs_of_batches_alone_keep_the_order_of_a_parked_fetch(monkeypatch: Patch) -> None:
    off.a_parked_fetch_keeps_its_leader_epoch(monkeypatch)
    assert [staged(scenarios.merge_while_a_fetch_is_parked, seed) for seed in range(5)] == [[]] * 5
