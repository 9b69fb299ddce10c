"""Runs counterexamples of ``docs/model/HandOver.tla`` on the real code: without its rule, each fails a check.

``late`` is not a check of the history. It means that an expected record was not delivered in time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from anabranch.broker.coordinator import offsets, position_poll, rebalance
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.broker.coordinator.position_owners import answer_if_news
from anabranch.client.errors import KafkaError
from anabranch.client.group.commits import MemberCommits
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.group.listener import PartitionKeyListener
from anabranch.client.ordered_delivery.reports import Reports
from anabranch.ordered_resize.facts import Facts
from anabranch.protocol.errors import ErrorCode
from sim.scheduler import run_deterministic
from tests.history.checks import check_history
from tests.sim import group_scenarios as scenarios
from tests.sim.group_scenarios import GroupScene
from tests.sim.sim_cluster import SimCluster
from tests.support.resize import lineage_mutations as rules

Patch = pytest.MonkeyPatch
Scenario = Callable[[GroupScene], Awaitable[None]]
SwitchOff = Callable[[Patch], None]
TRIES = 5
"""Schedules to run for a scenario without its rule: a coordinator's death fails a check in every second schedule."""


def deliveries_do_not_wait_for_a_load(patch: Patch) -> None:
    assigned = PartitionKeyListener.assigned

    async def begun(self: Any, partitions: Any) -> None:
        trio.lowlevel.spawn_system_task(assigned, self, partitions)

    patch.setattr(PartitionKeyListener, "assigned", begun)


def a_rebalance_ends_no_parked_poll(patch: Patch) -> None:
    patch.setattr(rebalance, "end_generation", lambda _turn, group, _error: group.positions.clear())


def commits_of_any_generation_are_taken(patch: Patch) -> None:
    def committing_group(turn: Any, request: Any) -> tuple[Group, ErrorCode]:
        return turn.shard.groups.get(request.group_id) or Group(request.group_id), ErrorCode.NONE

    patch.setattr(offsets, "committing_group", committing_group)


def positions_of_evicted_members_are_accepted(patch: Patch) -> None:
    poll = position_poll.poll_positions

    def take(turn: Any, token: Any, request: Any, incarnation_of: Any) -> None:
        group = turn.shard.groups.get(request.group_id)
        if group is not None and request.member_id and request.member_id not in group.members:
            for one in position_poll.partitions_of(request, incarnation_of):
                if one.position >= 0 and group.positions.report(one.tp, one.incarnation, one.position):
                    answer_if_news(turn, group, list(group.positions.pollers))
        poll(turn, token, request, incarnation_of)

    patch.setattr(position_poll, "poll_positions", take)


def fetched_offsets_count_as_committed(patch: Patch) -> None:
    fetch, commit_news = CoordinatorLink.fetch_offsets, MemberCommits.commit_news
    fetched: dict[tuple[int, Any], int] = {}

    async def fetch_offsets(self: Any, partitions: Any, *rest: Any, **options: Any) -> Any:
        found = await fetch(self, partitions, *rest, **options)
        fetched.update({(id(self), tp): offset.offset for tp, offset in found.items()})
        return found

    async def commit(self: Any, partitions: Any) -> Any:
        consumed = self.consumed()
        news = [tp for tp in partitions if tp in consumed and fetched.get((id(self.link), tp)) != consumed[tp].offset]
        return await commit_news(self, news) if news else set()

    patch.setattr(CoordinatorLink, "fetch_offsets", fetch_offsets)
    patch.setattr(MemberCommits, "commit_news", commit)


def rewinds_are_not_counted(patch: Patch) -> None:
    patch.setattr(Facts, "on_rewinds", lambda *_: None)


def a_refused_commit_counts(patch: Patch) -> None:
    commit_news = MemberCommits.commit_news

    async def commit(self: Any, partitions: Any) -> Any:
        self.standing.note_error = lambda *_: None
        try:
            return await commit_news(self, partitions)
        except KafkaError:
            return set()
        finally:
            del self.standing.note_error

    patch.setattr(MemberCommits, "commit_news", commit)


def positions_are_not_reported_again(patch: Patch) -> None:
    original = Reports.on_asked
    patch.setattr(Reports, "on_asked", lambda self, known, _number: original(self, known, -1))


def a_commit_is_answered_before_it_is_replicated(patch: Patch) -> None:
    append = LoadedPartition.append_entry

    def answered(self: Any, entry: Any) -> None:
        append(self, entry)
        entry.error = entry.error or ErrorCode.NONE

    patch.setattr(LoadedPartition, "append_entry", answered)


RULES: tuple[tuple[Scenario, SwitchOff, str], ...] = (
    (scenarios.load_for_long, deliveries_do_not_wait_for_a_load, "promise"),
    (scenarios.leave_while_another_waits, a_rebalance_ends_no_parked_poll, "late"),
    (scenarios.commit_after_an_eviction, commits_of_any_generation_are_taken, "commits"),
    (scenarios.report_after_an_eviction, positions_of_evicted_members_are_accepted, "promise"),
    (scenarios.deliver_behind_a_member_that_goes_back, rules.passed_epochs_are_never_lowered, "promise"),
    (scenarios.deliver_behind_a_member_that_went_back_unseen, rewinds_are_not_counted, "promise"),
    (scenarios.deliver_behind_an_unflushed_commit, fetched_offsets_count_as_committed, "promise"),
    (scenarios.deliver_behind_a_refused_commit, a_refused_commit_counts, "promise"),
    (scenarios.wait_while_the_coordinator_dies, positions_are_not_reported_again, "late"),
    (scenarios.die_before_a_commit_is_replicated, a_commit_is_answered_before_it_is_replicated, "promise"),
)


def staged(scenario: Scenario, seed: int = 0) -> list[str]:
    """The failed checks, and ``late`` if an expected record was not delivered in time."""
    return run_deterministic(seed, partial(_stage, scenario, seed))


async def _stage(scenario: Scenario, seed: int) -> list[str]:
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, seed)
        scene = GroupScene(cluster, nursery)
        try:
            await scene.start(1)
            try:
                await scenario(scene)
            except scenarios.LateError:
                scene.is_late = True
            if not scene.is_late:
                await scene.finish()
        finally:
            with trio.CancelScope(shield=True):
                await cluster.end()
            nursery.cancel_scope.cancel()
    if scene.is_late:
        return ["late"]
    assert not scene.is_unfinished()
    return list(dict.fromkeys(violation.check for violation in check_history(scene.recorder.events)))


@pytest.mark.parametrize("scenario", [scenario for scenario, _, _ in RULES])
def test_a_scenario_passes_with_every_rule_on(scenario: Scenario) -> None:
    assert staged(scenario) == []


@pytest.mark.parametrize(("scenario", "switch_off", "found_by"), RULES)
@pytest.mark.mutation
def test_a_scenario_fails_its_check_with_its_rule_switched_off(
    scenario: Scenario, switch_off: SwitchOff, found_by: str, monkeypatch: Patch
) -> None:
    switch_off(monkeypatch)
    assert any(found_by in staged(scenario, seed) for seed in range(TRIES))
