"""Mutations: rules of ``ordered_resize`` switched off, one at a time, which the simulation must notice."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from anabranch.ordered_resize import earlier_records, facts, gate, lineage, next_step, removal, state_loads
from anabranch.ordered_resize.layout import Layout
from anabranch.ordered_resize.next_step import Step
from anabranch.ordered_resize.snapshot import Phase, Snapshot
from anabranch.zk_schemas.partition_state import LineageEntry, PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.resize import lineage_model

Patch = pytest.MonkeyPatch


def no_lineage(patch: Patch) -> None:
    patch.setattr(next_step, "entries_of", lambda *_: ())


def a_revived_partition_gets_no_entry(patch: Patch) -> None:
    original = next_step.entries_of

    def entries(snapshot: Snapshot, partition: int, epoch: int) -> tuple[LineageEntry, ...]:
        counted = snapshot.topic.previous_undeleted_partition_count or 0
        revived = partition in snapshot.states and partition >= counted
        return () if revived else original(snapshot, partition, epoch)

    patch.setattr(next_step, "entries_of", entries)


def an_entry_is_written_after_the_bump(patch: Patch) -> None:
    entries, steps = next_step.entries_of, next_step.next_steps
    patch.setattr(next_step, "entries_of", lambda *_: ())

    def with_entries(snapshot: Snapshot) -> list[Step]:
        found = steps(snapshot)
        for p in snapshot.moves.losers_of:
            state = snapshot.states.get(p)
            are_there = state is not None and all(q in snapshot.states for q in snapshot.moves.losers_of[p])
            if state is None or not are_there or not snapshot.has_goal(p):
                continue
            if all(e.epoch < state.leader_epoch for e in state.lineage):
                entry = entries(snapshot, p, state.leader_epoch)
                found.append(Step("entry", {p: state.replace(lineage=(*state.lineage, *entry))}))
        return found

    patch.setattr(next_step, "next_steps", with_entries)


def a_losers_epoch_is_recorded_with_the_goal(patch: Patch) -> None:
    """The loser's last epoch is recorded too early: an election before the bump raises the epoch."""
    noted: dict[int, int] = {}
    begun = next_step.begun

    def noting(snapshot: Snapshot, *args: Any) -> TopicZnode:
        noted.update({p: state.leader_epoch for p, state in snapshot.states.items()})
        return begun(snapshot, *args)

    patch.setattr(next_step, "begun", noting)
    patch.setattr(next_step, "last_epoch", lambda _, loser: noted[loser])


def a_losers_epoch_is_read_when_its_gainer_is_bumped(patch: Patch) -> None:
    patch.setattr(next_step, "last_epoch", lambda snapshot, loser: snapshot.states[loser].leader_epoch)


def losers_need_not_answer_and_producers_go_back(patch: Patch) -> None:
    """Two rules are switched off at once, because each rule alone is enough (``docs/model``)."""
    patch.setattr(next_step, "losers_are_done", lambda snapshot, losers: all(map(snapshot.has_goal, losers)))
    patch.setattr(lineage_model, "NEVER_BACK", False)


def the_next_resize_begins_at_any_time(patch: Patch) -> None:
    patch.setattr(next_step, "is_settled", lambda _: True)


def the_next_resize_begins_when_all_is_stored(patch: Patch) -> None:
    patch.setattr(next_step, "is_settled", lambda snapshot: snapshot.is_stored)


def a_resize_is_cancelled_at_any_time(patch: Patch) -> None:
    patch.setattr(next_step, "may_cancel", lambda snapshot: bool(snapshot.moves.losers_of))


def a_removal_does_not_wait_for_gainers(patch: Patch) -> None:
    patch.setattr(removal, "may_begin", lambda _: True)


def a_recreated_log_begins_at_offset_0(patch: Patch) -> None:
    patch.setattr(TopicZnode, "base_offset", lambda *_: 0)


def a_recreated_partition_begins_at_epoch_0(patch: Patch) -> None:
    create = next_step.STEPS[Phase.CREATE]

    def again(snapshot: Snapshot, partition: int) -> Step:
        state = create(snapshot, partition).states[partition]
        lineage = tuple(LineageEntry(0, entry.losers) for entry in state.lineage)
        return Step("create", {partition: state.replace(leader_epoch=0, lineage=lineage)})

    patch.setattr(next_step, "STEPS", MappingProxyType({**next_step.STEPS, Phase.CREATE: again}))


def a_batch_of_another_layout_version_is_accepted(patch: Patch) -> None:
    patch.setattr(Layout, "takes", lambda self, p, named: self.undeleted_partition_count == named[0] and self.counts(p))


def no_recursion(patch: Patch) -> None:
    patch.setattr(earlier_records, "behind", lambda *_: [])


def batches_newer_than_the_known_lineage_are_delivered(patch: Patch) -> None:
    original = earlier_records.cap

    def cap(facts: Any, partition: int) -> int:
        found, known = original(facts, partition), facts.lineages.get(partition)
        return 2**31 if known is not None and found == known.as_of else found

    patch.setattr(earlier_records, "cap", cap)
    patch.setattr(gate, "knows_batch", lambda *_: True)


def lineages_of_any_age_are_used(patch: Patch) -> None:
    patch.setattr(earlier_records, "is_fresh", lambda *_: True)
    patch.setattr(gate, "is_fresh", lambda *_: True)


def a_partition_unknown_to_a_broker_is_over(patch: Patch) -> None:
    original = earlier_records.is_over
    patch.setattr(earlier_records, "is_over", lambda facts, q, f: q in facts.missing or original(facts, q, f))


def pruned_entries_leave_no_floor(patch: Patch) -> None:
    patch.setattr(lineage, "raised_floor", lambda floor, _: floor)


def entries_of_a_later_incarnation_are_pruned(patch: Patch) -> None:
    """An entry is pruned although only an earlier incarnation of the entry's loser was removed."""

    def pruned(entries: Any, floor: int, over: Mapping[int, int]) -> Any:
        left = [LineageEntry(e, {q: f for q, f in d.items() if q not in over}) for e, d in entries]
        kept = tuple(entry for entry in left if entry.losers)
        dropped = [e.epoch for e in entries if e not in kept]
        return kept, max([floor, *dropped])

    patch.setattr(next_step, "pruned", pruned)


def a_bump_never_replaces_before(patch: Patch) -> None:
    """``before`` is written once and never replaced."""
    bump = next_step.STEPS[Phase.BUMP]

    def keep(snapshot: Snapshot, partition: int) -> Step:
        known = snapshot.states[partition].before
        state: PartitionState = bump(snapshot, partition).states[partition]
        return Step("bump", {partition: state.replace(before=known or state.before)})

    patch.setattr(next_step, "STEPS", MappingProxyType({**next_step.STEPS, Phase.BUMP: keep}))


def no_load_is_due(patch: Patch) -> None:
    patch.setattr(state_loads, "loaded_up_to", lambda *_: lineage.EVERY_EPOCH)


def a_load_covers_entries_satisfied_when_it_returns(patch: Patch) -> None:
    original = gate.Gate.load_returned

    def load_returned(self: gate.Gate, partition: int, called: Any) -> None:
        original(self, partition, self.load_called(partition))

    patch.setattr(gate.Gate, "load_returned", load_returned)


def pruned_entries_need_no_load(patch: Patch) -> None:
    original = state_loads.loaded_up_to
    patch.setattr(state_loads, "loaded_up_to", lambda known, loaded: original(known._replace(floor=-1), loaded))


def a_load_below_the_floor_is_due_for_ever(patch: Patch) -> None:
    """The floor of the last load is ignored. An entry that waits below the floor keeps the cap low: loads stay due."""
    original = state_loads.loaded_up_to
    patch.setattr(state_loads, "loaded_up_to", lambda known, loaded: original(known, loaded._replace(floor=-1)))


def an_expired_log_start_counts_for_every_partition(patch: Patch) -> None:
    """The log start counts even if a live owner of the partition has delivered records and not flushed them."""
    patch.setattr(facts, "log_start_counts", lambda *_: True)
    patch.setattr(gate, "log_start_counts", lambda *_: True)


def passed_epochs_are_never_lowered(patch: Patch) -> None:
    patch.setattr(facts, "take_back", lambda *_: None)
