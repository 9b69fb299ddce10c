"""Keys keep their order over random histories of resizes, and a history fails for each rule that is switched off.

``ANABRANCH_LINEAGE_SEEDS`` is the number of histories; 1,000 take half a minute.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Container
from typing import TypeAlias

import pytest

from anabranch.ordered_resize import next_step
from anabranch.ordered_resize.judgement import VerdictKind
from anabranch.protocol.transitions import IllegalTransitionError
from anabranch.zk_schemas.partition_state import PartitionState
from tests.support.resize import lineage_mutations
from tests.support.resize.lineage_model import BrokenError, LineageModel

Mutation: TypeAlias = Callable[[pytest.MonkeyPatch], None]

SEEDS = int(os.environ.get("ANABRANCH_LINEAGE_SEEDS", "40"))
LIMIT = 1500
"""With a rule switched off, one of this number of histories must fail."""


def histories(first: int, count: int, *, is_edited: bool = False, seen: set[VerdictKind] | None = None) -> list[str]:
    """Return the first failure in histories with these seeds. ``seen`` collects the results of edits by hand."""
    for seed in range(first, first + count):
        model = LineageModel(seed)
        model.is_edited = is_edited
        try:
            model.run()
        except (AssertionError, LookupError, IllegalTransitionError, RecursionError) as error:
            return [f"history {seed}: {type(error).__name__}: {error}"]
        if seen is not None:
            seen.update(model.judged)
    return []


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_every_key_keeps_its_order_and_nothing_hangs(first: int) -> None:
    assert not histories(first, min(20, SEEDS - first))


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_topics_edited_by_hand_keep_the_order_or_are_frozen(first: int) -> None:
    """Counts, version, initial count and last epochs are edited at any moment while no controller is active."""
    seen: set[VerdictKind] = set()
    assert not histories(first, min(10, SEEDS - first), is_edited=True, seen=seen)
    assert seen == set(VerdictKind)


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        (lineage_mutations.no_lineage, 0),
        (lineage_mutations.a_revived_partition_gets_no_entry, 31),
        (lineage_mutations.an_entry_is_written_after_the_bump, 0),
        (lineage_mutations.a_losers_epoch_is_read_when_its_gainer_is_bumped, 0),
        (lineage_mutations.losers_need_not_answer_and_producers_go_back, 77),
        (lineage_mutations.the_next_resize_begins_at_any_time, 5),
        (lineage_mutations.a_resize_is_cancelled_at_any_time, 0),
        (lineage_mutations.a_removal_does_not_wait_for_gainers, 62),
        (lineage_mutations.a_recreated_log_begins_at_offset_0, 67),
        (lineage_mutations.a_recreated_partition_begins_at_epoch_0, 3),
        (lineage_mutations.batches_newer_than_the_known_lineage_are_delivered, 1),
        (lineage_mutations.a_partition_unknown_to_a_broker_is_over, 14),
        (lineage_mutations.pruned_entries_leave_no_floor, 23),
        (lineage_mutations.entries_of_a_later_incarnation_are_pruned, 124),
        (lineage_mutations.a_bump_never_replaces_before, 16),
        (lineage_mutations.no_load_is_due, 0),
        (lineage_mutations.pruned_entries_need_no_load, 23),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.mutation
def test_a_rule_switched_off_is_noticed(rule: Mutation, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``first`` is a history that fails without the rule. After a change of the code another history may fail."""
    rule(monkeypatch)
    assert histories(first, 1) or histories(0, LIMIT)


# ---------------------------------------------------------------- histories by hand for rare cases


def newest(model: LineageModel, key: int) -> None:
    model.producers[key].metadata = len(model.metadata) - 1


def put(model: LineageModel, key: int) -> None:
    """Write the key's next record, to the partition that its producer's metadata gives."""
    model.send(key)
    model.send(key)
    assert model.producers[key].batch is None


def settle(model: LineageModel) -> None:
    """Carry out the resize without reads and removals."""
    model.retains = True
    while model.advance() or any(model.order_one(p) for p in list(model.states)):
        pass


def read(model: LineageModel, p: int) -> None:
    for _ in range(30):
        model.look(p)


def resized(model: LineageModel, count: int) -> None:
    model.request(count)
    settle(model)


def an_election_between_goal_and_bump(model: LineageModel) -> None:
    """1 -> 2, key 1: the loser has two leader epochs under the old layout, and the records of both epochs count."""
    model.request(2)
    model.elect(0)
    model.order_one(0)
    put(model, 1)
    settle(model)
    newest(model, 1)
    put(model, 1)
    read(model, 1)


def an_empty_loser_in_between(model: LineageModel) -> None:
    """1 -> 2 -> 4, key 3: the key was in partition 1, which got no record of the key. Partition 0 is unread."""
    put(model, 3)
    for count in (2, 4):
        resized(model, count)
    newest(model, 3)
    put(model, 3)
    read(model, 1)
    read(model, 3)


def an_answer_older_than_the_required_epoch(model: LineageModel) -> None:
    """2 -> 1 -> 2 -> 4, key 3: partition 1 gained the key from 0.

    The reader of partition 3 has an older lineage of partition 1.
    """
    resized(model, 1)
    newest(model, 3)
    put(model, 3)
    for count in (2, 4):
        resized(model, count)
    newest(model, 3)
    put(model, 3)
    model.readers[3].gate.facts.on_lineage(1, model.ages[1][0])
    read(model, 1)
    read(model, 3)


def a_batch_of_the_first_layout_under_the_third(model: LineageModel) -> None:
    """2 -> 1 -> 2, key 1: a batch that was sent by the first layout arrives under the third layout."""
    model.send(1)
    late = model.producers[1].batch
    assert late is not None
    resized(model, 1)
    newest(model, 1)
    model.send(1)
    put(model, 1)
    resized(model, 2)
    model.produce(late)


def a_leader_two_layouts_behind(model: LineageModel) -> None:
    """2 -> 1, then 2 again before partition 0 has responded: key 1 moves to partition 0 and back."""
    model.request(1)
    model.advance()
    model.order_one(1)
    model.advance()
    late_order = (0, model.incarnations[0], model.states[0])
    newest(model, 1)
    model.send(1)
    late = model.producers[1].batch
    assert late is not None
    model.request(2)
    model.advance()
    newest(model, 1)
    model.send(1)  # the batch is refused, permanently if a newer layout is known
    model.order(*late_order)
    model.produce(late)


SCENES = {
    an_election_between_goal_and_bump: ((1, 1), 1, lineage_mutations.a_losers_epoch_is_recorded_with_the_goal),
    an_empty_loser_in_between: ((1, 1), 3, lineage_mutations.no_recursion),
    an_answer_older_than_the_required_epoch: ((1, 2), 3, lineage_mutations.lineages_of_any_age_are_used),
    a_batch_of_the_first_layout_under_the_third: (
        (1, 2),
        1,
        lineage_mutations.a_batch_of_another_layout_version_is_accepted,
    ),
    a_leader_two_layouts_behind: ((1, 2), 1, lineage_mutations.the_next_resize_begins_when_all_is_stored),
}


def acted(scene: Callable[[LineageModel], None]) -> None:
    counts, key, _ = SCENES[scene]
    model = LineageModel(0, records=3, counts=counts, keys=[key], calm=True)
    scene(model)
    model.finish()


@pytest.mark.parametrize("scene", SCENES)
def test_each_handwritten_history_keeps_the_order(scene: Callable[[LineageModel], None]) -> None:
    acted(scene)


@pytest.mark.parametrize("scene", SCENES)
def test_each_handwritten_history_fails_without_its_rule(
    scene: Callable[[LineageModel], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    SCENES[scene][2](monkeypatch)
    with pytest.raises(BrokenError):
        acted(scene)


# ---------------------------------------------------------------- a controller that stops at any moment

ASKED = {0: 5, 2: 2, 4: 6, 8: 3, 9: 9, 10: 4, 20: 8, 24: 3, 30: 7, 31: 3}
"""By number of writes, the count to request then: grown, cancelled, queued (the latest wins), grown while draining."""


def without_removed(state: PartitionState, present: Container[int]) -> tuple[dict[int, dict[int, int]], int]:
    """Return the lineage and the floor as the next bump leaves them.

    A bump before a removal keeps the removed partition in the lineage, a bump after it moves it to the floor.
    """
    dropped = [entry.epoch for entry in state.lineage if any(loser not in present for loser in entry.losers)]
    kept = {
        entry.epoch: {loser: epoch for loser, epoch in entry.losers.items() if loser in present}
        for entry in state.lineage
    }
    return {epoch: losers for epoch, losers in kept.items() if losers}, max([state.floor, *dropped])


def carried_out(crash_after: int) -> tuple[object, list[str]]:
    """Return the final topic and partitions, and all writes. A controller stops after the write ``crash_after``."""
    model = LineageModel(0, records=2, counts=(2, 2), keys=[1, 5, 6], calm=True)
    model.crash_after = crash_after
    asked = dict(ASKED)
    while asked:
        at = min(asked)
        if at <= model.writes or (
            not model.advance(first=True) and not any(model.order_one(p) for p in list(model.states))
        ):
            model.request(asked.pop(at))
        for key in model.producers:
            newest(model, key)
            model.send(key)
    model.finish()
    states = {
        p: (state.leader_epoch, state.layout, state.before, *without_removed(state, model.states))
        for p, state in model.states.items()
    }
    return (model.topic.replace(topic_id=uuid.UUID(int=0)), states), model.done


def test_a_controller_crash_after_any_write_leads_to_the_same_end() -> None:
    end, writes = carried_out(crash_after=-1)
    assert {write.split()[0] for write in writes} == {"asked", "begin", "bump", "create", "finished", "leave", "forget"}
    for at in range(1, len(writes) + 1):
        assert carried_out(at)[0] == end, f"crash after {writes[at - 1]}"


def test_a_grow_that_counts_a_partition_being_removed_breaks_no_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The grow waits for the end of the removal, and then creates the partition again."""
    monkeypatch.setattr(next_step, "may_begin", lambda snapshot, _: next_step.is_settled(snapshot))
    assert not histories(0, 20)
