"""The gate's states, row by row: the gate's questions in each state, and the texts that explain a wait."""

from __future__ import annotations

import itertools

import pytest

from anabranch.ordered_resize import gate as gates
from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.gate import MOVES, Gate, GateState, Question, QuestionKind
from anabranch.ordered_resize.lineage import BELOW_EVERY_EPOCH
from anabranch.ordered_resize.state_loads import Loaded
from anabranch.protocol.transitions import IllegalTransitionError
from anabranch.zk_schemas.partition_state import LineageEntry as Entry

UNKNOWN, WAITING, DUE, OPEN = GateState.UNKNOWN, GateState.WAITING, GateState.DUE, GateState.OPEN


@pytest.fixture
def gate() -> Gate:
    """Return the gate of partition 1, which was split from partition 0. Nothing is known about partition 0."""
    gate = Gate()
    gate.assign([1])
    gate.facts.on_lineage(1, Lineage(0, -1, (Entry(0, {0: 0}),)))
    return gate


def process_zero(gate: Gate) -> None:
    gate.facts.on_lineage(0, Lineage(1))
    gate.facts.on_end(0, 0, 100)
    gate.facts.on_position(0, 100)


def load(gate: Gate, partition: int = 1) -> None:
    gate.load_returned(partition, gate.load_called(partition))


def test_every_gate_transition_except_waiting_to_open_is_in_the_table() -> None:
    assert set(itertools.permutations(GateState, 2)) - MOVES.keys() == {(WAITING, OPEN)}


def test_a_gate_is_unknown_until_the_lineage_is_as_new_as_the_batch(gate: Gate) -> None:
    assert gate.look(1, 3) is UNKNOWN
    assert gate.questions(1, 3) == [Question(QuestionKind.LINEAGE, 1, 3)]
    gate.facts.on_lineage(1, Lineage(2, -1, ()))
    assert gate.look(1, 3) is UNKNOWN
    gate.facts.on_lineage(1, Lineage(3, -1, ()))
    assert gate.look(1, 3) is OPEN
    assert gate.questions(1, 3) == []


def test_a_waiting_gate_asks_lineage_then_end_and_position_then_log_start(gate: Gate) -> None:
    assert gate.look(1, 0) is WAITING
    assert gate.questions(1, 0) == [Question(QuestionKind.LINEAGE, 0, 0)]
    gate.facts.on_lineage(0, Lineage(1))
    assert gate.questions(1, 0) == [Question(QuestionKind.POSITION, 0), Question(QuestionKind.END, 0, 0)]
    gate.facts.on_end(0, 0, 100)
    gate.facts.on_position(0, 40)
    assert gate.questions(1, 0) == [Question(QuestionKind.POSITION, 0)]
    gate.facts.on_owner(0, is_owned=False)
    assert gate.questions(1, 0) == [Question(QuestionKind.POSITION, 0), Question(QuestionKind.LOG_START, 0)]
    gate.facts.on_missing(0)
    assert Question(QuestionKind.LINEAGE, 0, 0) in gate.questions(1, 0)
    gate.facts.on_position(0, 100)
    assert gate.look(1, 0) is DUE


@pytest.mark.parametrize("while_loading", [False, True])
def test_a_position_that_is_lowered_and_rises_between_two_checks_requires_another_load(
    gate: Gate, while_loading: bool
) -> None:
    process_zero(gate)
    assert gate.look(1, 0) is DUE
    called = gate.load_called(1)
    if not while_loading:
        gate.load_returned(1, called)
        assert gate.look(1, 0) is OPEN
    gate.facts.on_position(0, 50)
    process_zero(gate)
    if while_loading:
        gate.load_returned(1, called)
    else:
        assert gate.take_revoked() == [1]
    assert gate.look(1, 0) is not OPEN
    load(gate)
    assert gate.look(1, 0) is OPEN


@pytest.mark.parametrize("while_loading", [False, True])
@pytest.mark.parametrize("is_position_known", [False, True])
def test_a_position_that_was_lowered_unseen_requires_another_load(
    gate: Gate, while_loading: bool, is_position_known: bool
) -> None:
    gate.facts.on_rewinds(0, 2)
    process_zero(gate)
    called = gate.load_called(1)
    if not while_loading:
        gate.load_returned(1, called)
        assert gate.look(1, 0) is OPEN
    gate.facts.on_rewinds(0, 2)
    assert gate.take_revoked() == []
    if not is_position_known:
        gate.facts.on_new_generation()
    gate.facts.on_rewinds(0, 3)
    assert gate.facts.positions.get(0, -1) == (100 if is_position_known else -1)
    process_zero(gate)
    if while_loading:
        gate.load_returned(1, called)
    else:
        assert gate.take_revoked() == [1]
    assert gate.look(1, 0) is DUE
    load(gate)
    assert gate.look(1, 0) is OPEN


def test_only_the_end_of_the_highest_epoch_is_asked_first(gate: Gate) -> None:
    gate.facts.on_lineage(1, Lineage(2, -1, (Entry(0, {0: 0}), Entry(2, {0: 4}))))
    gate.facts.on_lineage(0, Lineage(5))
    assert Question(QuestionKind.END, 0, 4) in gate.questions(1, 0)
    assert Question(QuestionKind.END, 0, 0) not in gate.questions(1, 0)
    gate.facts.on_end(0, 4, 300)
    gate.facts.on_position(0, 200)
    assert Question(QuestionKind.END, 0, 0) in gate.questions(1, 0)


def test_a_gate_is_due_until_the_load_returned(gate: Gate) -> None:
    process_zero(gate)
    assert gate.look(1, 0) is DUE
    called = gate.load_called(1)
    assert gate.look(1, 0) is DUE
    gate.load_returned(1, called)
    assert gate.look(1, 0) is OPEN


def test_a_load_covers_the_entries_that_were_satisfied_when_it_was_called(gate: Gate) -> None:
    gate.facts.on_lineage(1, Lineage(5, -1, (Entry(0, {0: 0}), Entry(5, {3: 0}))))
    process_zero(gate)
    called = gate.load_called(1)
    gate.facts.on_lineage(3, None, over=0)
    gate.load_returned(1, called)
    assert called == Loaded(4, -1)
    assert gate.look(1, 4) is OPEN
    assert gate.look(1, 5) is DUE


def test_a_new_assignment_needs_a_new_load(gate: Gate) -> None:
    process_zero(gate)
    load(gate)
    gate.assign([1])
    assert gate.look(1, 0) is OPEN
    gate.assign([])
    gate.assign([1])
    assert gate.look(1, 0) is DUE


def test_a_lowered_position_revokes_the_partition_and_requires_another_load(gate: Gate) -> None:
    process_zero(gate)
    load(gate)
    assert gate.look(1, 0) is OPEN
    gate.facts.on_position(0, 50)
    assert gate.look(1, 0) is WAITING
    assert gate.take_revoked() == [1]
    assert gate.take_revoked() == []
    process_zero(gate)
    assert gate.look(1, 0) is DUE


def test_a_position_lowered_during_a_load_is_not_covered_by_it(gate: Gate) -> None:
    process_zero(gate)
    called = gate.load_called(1)
    gate.facts.on_position(0, 50)
    gate.load_returned(1, called)
    process_zero(gate)
    assert gate.look(1, 0) is DUE


def test_an_illegal_gate_transition_raises(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate.look(1, 0) is WAITING
    process_zero(gate)
    monkeypatch.setattr(gates.state_loads, "is_load_due", lambda *_: False)
    with pytest.raises(IllegalTransitionError, match="partition 1, leader epoch 0"):
        gate.look(1, 0)


def test_a_seek_restarts_the_gate(gate: Gate) -> None:
    gate.facts.on_lineage(1, Lineage(3, -1, (Entry(2, {0: 0}),)))
    assert gate.look(1, 2) is WAITING
    gate.restart(1)
    assert gate.look(1, 1) is OPEN


def test_a_recreated_topic_of_the_same_name_has_no_known_facts(gate: Gate) -> None:
    process_zero(gate)
    load(gate)
    assert gate.look(1, 0) is OPEN
    gate.forget()
    assert gate.look(1, 0) is UNKNOWN


def test_a_wait_names_the_end_the_owner_and_the_position(gate: Gate) -> None:
    assert [str(wait) for wait in gate.waits(1)] == [
        "partition 1 from epoch 0 waits for partition 0 until the end of epoch 0, not known yet, owner not known,"
        " position not known"
    ]
    gate.facts.on_lineage(0, Lineage(1))
    gate.facts.on_end(0, 0, 100)
    gate.facts.on_position(0, 40)
    assert [str(wait) for wait in gate.waits(1, lambda q: f"member-{q}")] == [
        "partition 1 from epoch 0 waits for partition 0 until offset 100, owned by member-0, at position 40"
    ]
    gate.facts.on_position(0, 100)
    assert gate.waits(1) == []


def test_the_limit_is_the_highest_epoch_that_is_open(gate: Gate) -> None:
    assert gate.limit(1) == -1
    process_zero(gate)
    assert gate.limit(1) == -1, "a load is due before epoch 0"
    load(gate)
    assert gate.limit(1) == 0
    gate.facts.on_lineage(1, Lineage(6, -1, (Entry(0, {0: 0}), Entry(4, {3: 0}))))
    assert gate.limit(1) == 3
    gate.facts.on_lineage(1, Lineage(7, 4, (Entry(0, {0: 0}),)))
    assert gate.limit(1) == BELOW_EVERY_EPOCH, "the dropped entry was not loaded"
    load(gate)
    assert gate.limit(1) == 7
    gate.forget()
    assert gate.limit(1) == BELOW_EVERY_EPOCH


def test_a_position_lowered_and_raised_during_a_load_is_not_covered_by_it(gate: Gate) -> None:
    process_zero(gate)
    called = gate.load_called(1)
    gate.facts.on_position(0, 50)
    assert gate.cap(1) == -1
    process_zero(gate)
    gate.load_returned(1, called)
    assert gate.look(1, 0) is DUE


def test_a_load_before_the_removal_of_a_partition_does_not_count(gate: Gate) -> None:
    process_zero(gate)
    load(gate)
    gate.renew(1)
    assert gate.look(1, 0) is DUE


def test_a_passed_loser_is_named_until_it_is_over(gate: Gate) -> None:
    gate.facts.on_lineage(0, Lineage(1, -1, (Entry(0, {3: 2}), Entry(1, {4: 2}))))
    gate.facts.on_end(0, 0, 100)
    gate.facts.on_position(0, 100)
    assert set(gate.named(1)) == {0, 3}, "not 4: epoch 0 of partition 0 did not require it"
    gate.facts.on_lineage(3, None, over=2)
    assert gate.cap(1) == 0
    assert set(gate.named(1)) == {0}
