"""Replicas move while StopReplica and LeaderAndIsr are repeated, late and in any order (KIP-570).

A late StopReplica never deletes a newer replica. A late LeaderAndIsr never revives a deleted replica. A replica whose
StopReplica was lost is stopped later. Each rule for this is switched off in turn.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from anabranch.broker.handlers import leader_and_isr, stop_replica, update_metadata
from anabranch.broker.replication import replica_manager
from anabranch.broker.replication.replica_manager import Ended, ReplicaManager
from anabranch.broker.request.context import RequestContext
from anabranch.protocol.errors import ErrorCode
from tests.sim.moving import Moved, move_around

SEEDS = int(os.environ.get("ANABRANCH_SIM_SEEDS", "8"))
FIRST_SEED = int(os.environ.get("ANABRANCH_SIM_FIRST", "0"))
TRIES = 200
Patch = pytest.MonkeyPatch


def moved(seed: int) -> Moved:
    print(f"seed {seed}; again: make sim SEEDS=1 FIRST={seed}")
    return move_around(seed)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_late_requests_neither_delete_a_newer_replica_nor_revive_a_stray(seed: int) -> None:
    """KIP-570: the promise holds for any order in which StopReplica and LeaderAndIsr arrive."""
    found = moved(seed)
    assert found.violations == [], "\n".join(found.details)
    assert found.acknowledged and found.moves
    assert found.arrived.keys() == {"LeaderAndIsrRequest", "StopReplicaRequest"}


def test_a_seed_run_twice_gives_the_same_result() -> None:
    assert moved(FIRST_SEED) == moved(FIRST_SEED)


# ---------------------------------------------------------------- rules, switched off


def older_epochs_are_not_fenced(patch: Patch) -> None:
    patch.setattr(replica_manager, "is_fenced", lambda leader_epoch, partition: False)


def deletions_are_forgotten(patch: Patch) -> None:
    patch.setattr(ReplicaManager, "remember_end", lambda *_: Ended())


def an_older_deletion_counts_as_the_last(patch: Patch) -> None:
    original = ReplicaManager.remember_end

    def remember(self: ReplicaManager, *arguments: Any) -> Any:
        self.ended.pop(arguments[0], None)
        return original(self, *arguments)

    patch.setattr(ReplicaManager, "remember_end", remember)


def a_deletion_names_no_incarnation(patch: Patch) -> None:
    original = ReplicaManager.stop

    def stop(self: ReplicaManager, topic: str, state: Any) -> Any:
        nameless = copy.copy(state)
        nameless.incarnation = -1
        return original(self, topic, nameless)

    patch.setattr(ReplicaManager, "stop", stop)


def strays_are_not_retired(patch: Patch) -> None:
    patch.setattr(ReplicaManager, "retire_strays", lambda *_: None)


def earlier_controllers_and_registrations_are_obeyed(patch: Patch) -> None:
    def obey(ctx: RequestContext, _order: Any, work: Callable[[], Awaitable[Any]], refused: Callable[..., Any]) -> Any:
        async def when_registered() -> Any:
            await ctx.node.link.registered.wait()
            return await work()

        return ctx.node.later(when_registered, lambda error: refused(error.code))

    for module in (leader_and_isr, stop_replica, update_metadata):
        patch.setattr(module, "obey", obey)
        patch.setattr(module, "refusal_of", lambda *_: ErrorCode.NONE)
    patch.setattr(ReplicaManager, "check_term", lambda *_: True)
    patch.setattr(replica_manager, "is_behind", lambda *_: False)  # the log's own epochs refuse late requests too


def nothing_is_stopped(patch: Patch) -> None:
    answer = replica_manager.Stopped(ErrorCode.NONE)
    patch.setattr(ReplicaManager, "stop", lambda *_: answer)


@dataclass(frozen=True)
class Rule:
    switch_off: Callable[[Patch], None]
    found_by: set[str]
    first_seed: int = 0
    """A seed that found the violation when the rule was written."""


RULES = (
    Rule(older_epochs_are_not_fenced, {"lost_acknowledged"}),
    Rule(deletions_are_forgotten, {"stray"}),
    Rule(an_older_deletion_counts_as_the_last, {"stray"}, first_seed=28),
    Rule(a_deletion_names_no_incarnation, {"successor lost"}),
    Rule(strays_are_not_retired, {"stray"}, first_seed=10),
    Rule(
        earlier_controllers_and_registrations_are_obeyed, {"lost_acknowledged", "inconsistent_offsets"}, first_seed=21
    ),
    Rule(nothing_is_stopped, {"stray"}),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.switch_off.__name__)
@pytest.mark.mutation
def test_a_late_request_does_harm_with_its_rule_switched_off(rule: Rule, monkeypatch: Patch) -> None:
    """KIP-570: the simulation finds a broken rule of StopReplica."""
    rule.switch_off(monkeypatch)
    seen = []
    for seed in range(rule.first_seed, rule.first_seed + TRIES):
        found = moved(seed)
        seen.append(found.violations)
        if rule.found_by & set(found.violations):
            return
    pytest.fail(f"{sorted(rule.found_by)} reported nothing: {seen}")
