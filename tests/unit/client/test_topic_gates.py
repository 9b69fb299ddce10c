"""The gates of a consumer: the effects of metadata and responses, the requests, and which batches may be delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.client.cluster import TopicInfo
from anabranch.client.ordered_delivery import delivery
from anabranch.client.ordered_delivery.delivery import OrderedDelivery
from anabranch.client.ordered_delivery.positions_task import AnsweredPosition, PositionAnswer
from anabranch.client.ordered_delivery.topic_gates import Questions, TopicGates
from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.gate import GateState
from anabranch.ordered_resize.lineage import BELOW_EVERY_EPOCH, EVERY_EPOCH
from anabranch.protocol.sentinels import NO_INCARNATION
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import LineageEntry as Entry
from tests.support.resize import lineage_mutations
from tests.support.resize.layouts import topic, tp

GROWN = topic(1, 2, [1, 0], version=1)
"""1 -> 2: partition 1 was split from partition 0 after epoch 0 of partition 0."""
SPLIT = Lineage(0, -1, (Entry(0, {0: 0}),))


def gates_of(info: TopicInfo, held: Sequence[int], lineages: Mapping[int, Lineage] | None = None) -> TopicGates:
    gates = TopicGates()
    gates.assign([tp(p) for p in held], {"t": info})
    for p, lineage in (lineages or {}).items():
        gates.on_lineage(tp(p), lineage, -1)
    return gates


def child_that_waits(position: int = 5, held: Sequence[int] = (1,)) -> TopicGates:
    """Return gates whose child waits until the group is at offset 10 of the parent."""
    gates = gates_of(GROWN, held, {1: SPLIT, 0: Lineage(1)})
    gates.on_end(tp(0), 0, 1, 10)
    gates.on_position(tp(0), position)
    return gates


def load(gates: TopicGates, p: int = 1) -> None:
    gates.load_returned(tp(p), gates.load_called(tp(p)))


def asked(gates: TopicGates, front: int | None = None, p: int = 1, *, recheck: bool = False) -> Questions:
    return gates.questions({} if front is None else {tp(p): front}, recheck=recheck)


# ---------------------------------------------------------------- metadata


def test_a_topic_that_was_never_resized_needs_no_lineage() -> None:
    """Metadata shows the first layout until a partition has the next layout.

    No lineage entry is written before.
    """
    gates = gates_of(topic(2, 2, [4, 7], version=0), [0, 1])
    assert (gates.limit(tp(0)), gates.limit(tp(1))) == (4, 7)
    assert asked(gates) == Questions()
    assert asked(gates, front=8).lineages == {tp(1): 8}, "an election that the metadata does not show"
    gates.on_metadata({"t": topic(2, 2, [4, 8], version=0)})
    assert gates.limit(tp(1)) == 8
    assert asked(gates, front=8) == Questions()


def test_a_partition_assigned_later_gets_its_limit_from_the_same_metadata() -> None:
    info = topic(2, 2, [4, 7], version=0)
    gates = gates_of(info, [0])
    gates.assign([tp(0), tp(1)], {"t": info})
    assert gates.limit(tp(1)) == 7


def test_metadata_of_a_resized_topic_does_not_replace_the_lineage() -> None:
    gates = gates_of(GROWN, [0])
    assert gates.limit(tp(0)) == BELOW_EVERY_EPOCH
    assert asked(gates).lineages == {tp(0): 1}, (
        "the request starts before a batch arrives, so it takes no longer than a fetch"
    )
    gates.on_lineage(tp(0), Lineage(1), -1)
    assert (gates.limit(tp(0)), asked(gates)) == (1, Questions())
    gates.on_metadata({"t": topic(1, 2, [2, 0], version=1)})
    assert gates.limit(tp(0)) == 1
    assert asked(gates).lineages == {tp(0): 2}


def test_without_ordered_delivery_nothing_waits() -> None:
    gates = gates_of(replace(GROWN, ordered_delivery=False), [1])
    assert gates.limit(tp(1)) == EVERY_EPOCH
    assert asked(gates) == Questions()


def test_without_metadata_every_batch_waits() -> None:
    gates = TopicGates()
    gates.assign([tp(1)], {})
    assert gates.limit(tp(1)) == BELOW_EVERY_EPOCH
    gates.on_metadata({"t": replace(GROWN, partitions={})})
    assert gates.look(tp(1), 0) is GateState.UNKNOWN


def test_gates_keep_their_state_while_a_broker_does_not_know_the_topic() -> None:
    gates = child_that_waits(position=10)
    load(gates)
    gates.on_metadata({"t": replace(GROWN, partitions={})})
    assert gates.limit(tp(1)) == 0
    assert gates.take_revoked() == []


@pytest.mark.parametrize(
    "later",
    [topic(1, 1, [2], version=2), topic(1, 2, [3, 2], version=3, incarnations={1: 900})],
    ids=["removed", "created again"],
)
def test_a_removed_partition_is_revoked_and_loaded_again_once_it_was_created_again(later: TopicInfo) -> None:
    gates = child_that_waits(position=10)
    load(gates)
    gates.on_metadata({"t": later})
    assert gates.take_revoked() == [tp(1)]
    assert gates.take_revoked() == []
    if 1 in later.partitions:
        gates.on_lineage(tp(1), Lineage(2, -1, (Entry(2, {0: 2}),)), over=1)
        gates.on_position(tp(0), 100)
        gates.on_lineage(tp(0), Lineage(3), -1)
        gates.on_end(tp(0), 2, 3, 40)
        assert gates.look(tp(1), 2) is GateState.DUE
    else:
        assert gates.limit(tp(1)) == BELOW_EVERY_EPOCH, (
            "records fetched from it are older than those that other members process now"
        )
        assert gates.look(tp(1), 0) is GateState.UNKNOWN
        assert asked(gates) == Questions()


def test_nothing_is_known_of_a_new_topic_of_the_same_name() -> None:
    """Amendment 5: the epochs and offsets of the new topic start again."""
    gates = child_that_waits(position=10)
    load(gates)
    again = replace(GROWN, incarnation=900)
    gates.on_metadata({"t": again})
    assert (gates.limit(tp(1)), gates.position(tp(0)), gates.topic_incarnation("t")) == (BELOW_EVERY_EPOCH, -1, 900)


def test_the_end_of_an_epoch_is_asked_for_again_when_the_leader_changed() -> None:
    gates = child_that_waits()
    assert not asked(gates).ends
    gates.on_metadata({"t": topic(1, 2, [2, 0], version=1)})
    assert list(asked(gates).ends) == [(tp(0), 0)]
    gates.on_end(tp(0), 0, 1, 10)
    assert list(asked(gates).ends) == [(tp(0), 0)], "a response of the previous leader"
    gates.on_end(tp(0), 0, 2, 5)
    assert gates.look(tp(1), 0) is GateState.DUE, "after an unclean election the group is past the end"


@pytest.mark.parametrize(("epoch", "end"), [(1, 12), (0, -1)], ids=["the present epoch", "not known"])
def test_an_unknown_end_and_an_end_of_the_present_epoch_are_ignored(epoch: int, end: int) -> None:
    gates = gates_of(GROWN, [1], {1: Lineage(0, -1, (Entry(0, {0: epoch}),)), 0: Lineage(1)})
    gates.on_end(tp(0), epoch, 1, end)
    assert (tp(0), epoch) in asked(gates).ends


# ---------------------------------------------------------------- requests


def test_each_answer_decides_the_next_questions() -> None:
    gates = gates_of(GROWN, [1])
    assert asked(gates) == Questions(lineages={tp(1): 0})
    gates.on_lineage(tp(1), SPLIT, -1)
    assert asked(gates) == Questions(lineages={tp(0): 0}, positions={tp(0): 100})
    gates.on_lineage(tp(0), Lineage(1), -1)
    assert asked(gates) == Questions(ends={(tp(0), 0): None}, positions={tp(0): 100})
    gates.on_end(tp(0), 0, 1, 10)
    assert asked(gates) == Questions(positions={tp(0): 100})
    assert not asked(gates).any_to_ask and gates.is_waiting


def test_the_position_of_a_passed_parent_is_still_asked_for() -> None:
    """The parent's owner may rewind. The child's gate, which is already open, is then revoked."""
    gates = child_that_waits(position=10)
    load(gates)
    assert asked(gates) == Questions(positions={tp(0): 100})
    assert not gates.is_waiting
    gates.on_position(tp(0), 3)
    assert gates.take_revoked() == [tp(1)]
    assert gates.look(tp(1), 0) is GateState.WAITING


def test_a_recheck_asks_again_for_ends_and_log_starts() -> None:
    gates = child_that_waits()
    gates.on_owner(tp(0), is_owned=False)
    assert list(asked(gates).log_starts) == [tp(0)]
    gates.on_log_start(tp(0), 4)
    assert not asked(gates).any_to_ask
    again = asked(gates, recheck=True)
    assert (list(again.ends), list(again.log_starts)) == ([(tp(0), 0)], [tp(0)])
    gates.on_log_start(tp(0), 10)
    assert gates.look(tp(1), 0) is GateState.DUE


def test_the_lineage_of_a_parent_that_a_broker_does_not_know_is_asked_for() -> None:
    gates = child_that_waits()
    gates.on_missing(tp(0))
    assert gates.look(tp(1), 0) is GateState.WAITING
    assert asked(gates).lineages == {tp(0): 0}
    gates.on_lineage(tp(0), None, over=1)
    assert gates.look(tp(1), 0) is GateState.DUE


def test_a_new_generation_forgets_positions_but_keeps_passed_gates() -> None:
    gates = child_that_waits(position=10)
    load(gates)
    gates.on_new_generation()
    assert (gates.positions(), gates.limit(tp(1)), gates.take_revoked()) == ({}, 0, [])


# ---------------------------------------------------------------- limits and states


def test_the_limit_agrees_with_the_check_of_each_batch() -> None:
    gates = child_that_waits(position=10)
    assert gates.look(tp(1), 0) is GateState.DUE
    assert gates.limit(tp(1)) == -1
    load(gates)
    assert gates.look(tp(1), 0) is GateState.OPEN
    assert gates.limit(tp(1)) == 0


@pytest.mark.parametrize("is_new_generation", [False, True])
def test_a_load_does_not_cover_a_parent_that_was_rewound_while_it_ran(is_new_generation: bool) -> None:
    gates = child_that_waits(position=10)
    called = gates.load_called(tp(1))
    if is_new_generation:
        gates.on_new_generation()
    gates.on_position(tp(0), 3)
    gates.on_end(tp(0), 0, 1, 10)
    gates.on_position(tp(0), 10)
    gates.load_returned(tp(1), called)
    assert gates.look(tp(1), 0) is GateState.DUE


def test_lineage_entries_that_were_dropped_before_they_were_read_need_one_load() -> None:
    """The entry of epoch 2 still waits, so the load opens only the epochs below 2, although the floor is 4."""
    gates = gates_of(topic(1, 2, [5, 0], version=7), [0], {0: Lineage(5, 4, (Entry(2, {1: 0}),)), 1: Lineage(1)})
    assert gates.limit(tp(0)) == BELOW_EVERY_EPOCH
    assert gates.look(tp(0), 1) is GateState.DUE
    load(gates, 0)
    assert gates.limit(tp(0)) == 1


@pytest.mark.parametrize(("is_owned", "state"), [(True, GateState.WAITING), (False, GateState.DUE)])
def test_a_log_start_past_the_end_counts_only_for_a_partition_without_an_owner(
    is_owned: bool, state: GateState
) -> None:
    gates = child_that_waits()
    gates.on_owner(tp(0), is_owned=is_owned)
    gates.on_log_start(tp(0), 10)
    assert gates.look(tp(1), 0) is state


def test_an_empty_parent_that_waits_itself_releases_no_child() -> None:
    chain = {3: Lineage(0, -1, (Entry(0, {1: 0}),)), 1: SPLIT._replace(as_of=1), 0: Lineage(1)}
    gates = gates_of(topic(1, 4, [2, 1, 1, 0], version=2), [3], chain)
    gates.on_end(tp(1), 0, 1, 0)
    gates.on_end(tp(0), 0, 2, 10)
    gates.on_position(tp(0), 9)
    assert gates.look(tp(3), 0) is GateState.WAITING
    gates.on_position(tp(0), 10)
    assert gates.look(tp(3), 0) is GateState.DUE


def test_a_lineage_older_than_the_awaited_epoch_does_not_count() -> None:
    gates = gates_of(GROWN, [1], {1: SPLIT._replace(entries=(Entry(0, {0: 1}),)), 0: Lineage(0)})
    gates.on_metadata({"t": topic(1, 2, [2, 0], version=1)})
    gates.on_end(tp(0), 1, 2, 10)
    gates.on_position(tp(0), 10)
    assert gates.look(tp(1), 0) is GateState.WAITING
    assert asked(gates).lineages == {tp(0): 1}


def test_a_load_of_a_partition_that_was_revoked_meanwhile_does_not_count() -> None:
    gates = child_that_waits(position=10)
    called = gates.load_called(tp(1))
    gates.assign([], {})
    gates.load_returned(tp(1), called)
    assert gates.limit(tp(1)) == BELOW_EVERY_EPOCH


def test_blocked_names_the_partition_its_parent_and_the_owner() -> None:
    gates = child_that_waits()
    (one,) = gates.blocked({}, {tp(0): "m"}.get)
    assert (one.partition, one.max_leader_epoch) == (tp(1), -1)
    assert str(one) == "t: partition 1 from epoch 0 waits for partition 0 until offset 10, owned by m, at position 5"
    gates.on_position(tp(0), 10)
    assert gates.blocked({}, lambda _: None) == []


def test_blocked_names_a_partition_whose_lineage_is_not_known_yet() -> None:
    gates = gates_of(GROWN, [0], {0: Lineage(1)})
    assert gates.blocked({tp(0): 1}, lambda _: None) == []
    (one,) = gates.blocked({tp(0): 2}, lambda _: None)
    assert (one.partition, one.waits_for) == (tp(0), ())
    assert str(one) == "t: the lineage of partition 0 is not known yet"


@pytest.mark.parametrize("change", ["metadata", "lineage", "position", "owner", "load", "assignment"])
def test_every_change_raises_the_version(change: str) -> None:
    gates = child_that_waits(position=10)
    version = gates.version
    if change == "metadata":
        gates.on_metadata({"t": topic(1, 2, [2, 0], version=1)})
    elif change == "lineage":
        gates.on_lineage(tp(1), Lineage(1), -1)
    elif change == "position":
        gates.on_position(tp(0), 11)
    elif change == "owner":
        gates.on_owner(tp(0), is_owned=False)
    elif change == "load":
        load(gates)
    else:
        gates.assign([], {"t": GROWN})
    assert gates.version > version


def test_calls_that_change_nothing_keep_the_version() -> None:
    gates = child_that_waits()
    version = gates.version
    gates.on_metadata({"t": GROWN})
    gates.on_position(tp(0), 5)
    gates.on_owner(tp(0), is_owned=True)
    asked(gates)
    gates.blocked({}, lambda _: None)
    assert gates.version == version


# ---------------------------------------------------------------- each rule switched off


@pytest.mark.parametrize(
    ("rule_off", "test"),
    [
        (lineage_mutations.no_recursion, test_an_empty_parent_that_waits_itself_releases_no_child),
        (
            lineage_mutations.batches_newer_than_the_known_lineage_are_delivered,
            test_metadata_of_a_resized_topic_does_not_replace_the_lineage,
        ),
        (
            lineage_mutations.lineages_of_any_age_are_used,
            test_a_lineage_older_than_the_awaited_epoch_does_not_count,
        ),
        (
            lineage_mutations.a_partition_unknown_to_a_broker_is_over,
            test_the_lineage_of_a_parent_that_a_broker_does_not_know_is_asked_for,
        ),
        (lineage_mutations.no_load_is_due, test_the_limit_agrees_with_the_check_of_each_batch),
        (
            lineage_mutations.a_load_covers_entries_satisfied_when_it_returns,
            lambda: test_a_load_does_not_cover_a_parent_that_was_rewound_while_it_ran(False),
        ),
        (
            lineage_mutations.pruned_entries_need_no_load,
            test_lineage_entries_that_were_dropped_before_they_were_read_need_one_load,
        ),
        (
            lineage_mutations.a_load_below_the_floor_is_due_for_ever,
            test_lineage_entries_that_were_dropped_before_they_were_read_need_one_load,
        ),
        (
            lineage_mutations.passed_epochs_are_never_lowered,
            test_the_position_of_a_passed_parent_is_still_asked_for,
        ),
    ],
)
@pytest.mark.mutation
def test_the_tests_notice_a_rule_that_is_switched_off(
    rule_off: Callable[[pytest.MonkeyPatch], None], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    test()
    rule_off(monkeypatch)
    with pytest.raises(AssertionError):
        test()


def test_the_tests_notice_a_log_start_that_counts_for_every_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    lineage_mutations.an_expired_log_start_counts_for_every_partition(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_log_start_past_the_end_counts_only_for_a_partition_without_an_owner(True, GateState.WAITING)


def delivery_with(monkeypatch: pytest.MonkeyPatch, gates: TopicGates) -> OrderedDelivery:
    """Return the delivery of a consumer that answers reach and that never polls."""
    any_part: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: 0.0), on_update=lambda _: None, config=SimpleNamespace()
    )
    monkeypatch.setattr(delivery, "TopicGates", lambda: gates)
    return OrderedDelivery(any_part, any_part, any_part, any_part, any_part, None, lambda: None)


def answer(consumer: OrderedDelivery, positions: Mapping[TopicPartition, tuple[int, int]]) -> None:
    """Take an answer: by partition, the group's position, and how often it was lowered."""
    wanted = {tp: AnsweredPosition(NO_INCARNATION, at, rewinds=rewinds) for tp, (at, rewinds) in positions.items()}
    consumer._on_answer(PositionAnswer(wanted, set(wanted), {}, 0, None))


@pytest.mark.parametrize(("rewinds", "state"), [(1, GateState.DUE), (2, GateState.WAITING)])
def test_a_position_that_is_not_known_any_more_releases_only_if_it_was_not_lowered(
    monkeypatch: pytest.MonkeyPatch, rewinds: int, state: GateState
) -> None:
    gates = child_that_waits()
    consumer = delivery_with(monkeypatch, gates)
    answer(consumer, {tp(0): (5, 1)})
    answer(consumer, {tp(0): (10, 1)})
    answer(consumer, {tp(0): (-1, rewinds)})
    assert gates.look(tp(1), 0) is state
    gates.on_end(tp(0), 0, 1, 10)
    answer(consumer, {tp(0): (10, rewinds)})
    assert gates.look(tp(1), 0) is GateState.DUE


def test_the_gates_are_settled_once_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the coordinator no position is known. Each settling takes as long as all held partitions."""
    gates, settled = child_that_waits(position=10), list[bool]()
    gates.on_position(tp(1), 3)
    monkeypatch.setattr(TopicGates, "settle", lambda _: settled.append(True))
    answer(delivery_with(monkeypatch, gates), {tp(0): (-1, 0), tp(1): (-1, 0)})
    assert settled == [True]
