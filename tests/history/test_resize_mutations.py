"""Correct histories of resizes pass, and the check for each kind of mutation finds it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anabranch.protocol.key_placement import place, positive_hash
from tests.history.checks import CHECKS, check_history
from tests.history.event_edits import FAST, SEEDS, changed, copies, replaced, some
from tests.history.events import (
    EXPIRED,
    Acked,
    Assigned,
    Committed,
    Created,
    Event,
    Expired,
    KeysFlushed,
    KeysLoaded,
    LayoutAsked,
    LayoutSet,
    OffsetFetched,
    Polled,
    PositionAnswered,
    PositionReported,
    Removed,
    Replica,
    Revoked,
    Sent,
    StoredBatch,
)
from tests.history.resized import INITIAL, correct_resized_history
from tests.history.test_mutations import MUTATIONS

Mutate = Callable[[list[Event], random.Random], list[Event]]


def without(events: list[Event], *gone: Event) -> list[Event]:
    return [event for event in events if not any(event is other for other in gone)]


def index_of(events: list[Event], wanted: Event) -> int:
    return next(at for at, event in enumerate(events) if event is wanted)


def across_partitions(events: list[Event]) -> Iterator[tuple[int, int]]:
    """Find successive deliveries of one producer and key that are in one generation and from two partitions."""
    sent = {event.value: (event.producer, event.key) for event in events if isinstance(event, Sent)}
    order = {value: number for number, value in enumerate(sent)}
    last: dict[tuple[str, str], int] = {}
    for at, event in enumerate(events):
        if isinstance(event, Polled):
            before = last.get(sent[event.value])
            earlier = events[before] if before is not None else None
            if (
                before is not None
                and isinstance(earlier, Polled)
                and (earlier.generation, order[earlier.value] + 1) <= (event.generation, order[event.value])
                and (earlier.tp, earlier.generation) != (event.tp, event.generation)
                and earlier.tp != event.tp
                and earlier.generation == event.generation
            ):
                yield before, at
            last[sent[event.value]] = at


def a_hand_over(events: list[Event], rng: random.Random) -> tuple[Polled, Polled, list[Event]]:
    """A record, the next record of its key in another partition, and all events between the two."""
    found = list(across_partitions(events))
    assume(found)
    first, second = rng.choice(found)
    one, other = events[first], events[second]
    assert isinstance(one, Polled) and isinstance(other, Polled)
    return one, other, events[first:second]


# ---------------------------------------------------------------- the promise


def deliver_the_child_first(events: list[Event], rng: random.Random) -> list[Event]:
    one, other, _ = a_hand_over(events, rng)
    assume(not [e for e in events if isinstance(e, Polled) and e.value == one.value and e is not one])
    return replaced(without(events, one), other, other, one)


def deliver_the_parent_again(events: list[Event], rng: random.Random) -> list[Event]:
    one, other, _ = a_hand_over(events, rng)
    return replaced(events, other, other, changed(one))


def forget_to_flush(events: list[Event], rng: random.Random) -> list[Event]:
    one, _, between = a_hand_over(events, rng)
    flushes = [e for e in between if isinstance(e, KeysFlushed) and e.member == one.member and e.partitions == [one.tp]]
    assume(not any(isinstance(e, Revoked) and one.tp in e.partitions for e in between))
    return without(events, *flushes)


def load_before_the_flush(events: list[Event], rng: random.Random) -> list[Event]:
    one, other, between = a_hand_over(events, rng)
    loads = [
        e for e in between if isinstance(e, KeysLoaded) and e.member == other.member and e.partitions == [other.tp]
    ]
    assume(loads and not any(isinstance(e, Assigned) and other.tp in e.partitions for e in between))
    return replaced(without(events, *loads), one, loads[0], one)


def load_nothing(events: list[Event], rng: random.Random) -> list[Event]:
    _, other, _ = a_hand_over(events, rng)
    assume(other.state)
    return replaced(events, other, changed(other, state=""))


# ---------------------------------------------------------------- retention


def expired(one: Polled) -> Expired:
    return Expired(one.at_ms, 1, one.tp, one.offset + 1)


def forget_to_flush_an_expired_record(events: list[Event], rng: random.Random) -> list[Event]:
    one, other, between = a_hand_over(events, rng)
    flushes = [e for e in between if isinstance(e, KeysFlushed) and e.member == one.member and e.partitions == [one.tp]]
    assume(not any(isinstance(e, Revoked) and one.tp in e.partitions for e in between))
    return replaced(without(events, *flushes), other, expired(one), other)


def skip_a_record_that_expires_only_later(events: list[Event], rng: random.Random) -> list[Event]:
    one, other, _ = a_hand_over(events, rng)
    assume(not [e for e in events if isinstance(e, Polled) and e.value == one.value and e is not one])
    assume(not [e for e in events if isinstance(e, Expired) and e.tp == one.tp and e.log_start_offset > one.offset])
    return replaced(without(events, one), other, other, expired(one))


def lose_a_record_that_would_have_expired(events: list[Event], rng: random.Random) -> list[Event]:
    acked = {e.value for e in events if isinstance(e, Acked)}
    batch = some(events, rng, StoredBatch, lambda e: e.broker == EXPIRED, lambda e: acked.intersection(e.values))
    return without(events, batch)


# ---------------------------------------------------------------- callbacks and positions


def call_a_member_without_the_partition(events: list[Event], rng: random.Random) -> list[Event]:
    called = some(events, rng, KeysLoaded)
    return replaced(events, called, changed(called, member="nobody"))


def just_before(events: list[Event], report: PositionReported, kind: type[Event]) -> Event | None:
    """Return the event of this kind right before a report; None if the event does not directly follow a delivery."""
    at = index_of(events, report)
    mine = [
        e
        for e in events[:at]
        if isinstance(e, kind | Polled | Assigned)
        and (getattr(e, "tp", None) == report.tp or [report.tp] == getattr(e, "partitions", None))
    ]
    return mine[-1] if len(mine) > 1 and isinstance(mine[-1], kind) and isinstance(mine[-2], Polled) else None


def report_before(kind: type[Event]) -> Mutate:
    def mutate(events: list[Event], rng: random.Random) -> list[Event]:
        reports = [e for e in events if isinstance(e, PositionReported) and just_before(events, e, kind)]
        assume(reports)
        report = rng.choice(reports)
        before = just_before(events, report, kind)
        assert before is not None
        return replaced(without(events, report), before, report, before)

    mutate.__name__ = f"report_before_{kind.__name__.lower()}"
    return mutate


def report_a_position_above_the_delivered_records(events: list[Event], rng: random.Random) -> list[Event]:
    report = some(events, rng, PositionReported)
    last = next(
        (e for e in reversed(events[: index_of(events, report)]) if isinstance(e, Polled) and e.tp == report.tp), None
    )
    assume(last is not None)
    following = [e for e in events if isinstance(e, Polled) and e.tp == report.tp and e.offset >= report.position]
    assume(following and not any(isinstance(e, Removed) for e in events))
    return replaced(events, report, changed(report, position=following[-1].offset + 1))


def answer_a_position_before_its_report(events: list[Event], rng: random.Random) -> list[Event]:
    answered = some(events, rng, PositionAnswered)
    early = changed(answered, position=answered.position)
    assume(not any(isinstance(e, Removed) for e in events))
    at = index_of(events, next(e for e in events if isinstance(e, Assigned)))
    return [*events[:at], early, *events[at:]]


# ---------------------------------------------------------------- the logs


def layout_of(events: list[Event], batch: StoredBatch) -> LayoutSet:
    mine = [
        e
        for e in events
        if isinstance(e, LayoutSet)
        and (e.tp, e.incarnation) == (batch.tp, batch.incarnation)
        and e.leader_epoch <= batch.leader_epoch
    ]
    return max(mine, key=lambda e: e.leader_epoch)


def store_in_a_wrong_partition(events: list[Event], rng: random.Random) -> list[Event]:
    """A record's key is replaced by a key that belongs in another partition."""
    batch = some(events, rng, StoredBatch)
    layout = layout_of(events, batch)
    sent = next(e for e in events if isinstance(e, Sent) and e.value == batch.values[0])
    key = next(
        f"other-{number}"
        for number in range(1000)
        if place(positive_hash(f"other-{number}".encode()), layout.initial, layout.undeleted) != batch.tp.partition
    )
    return replaced(events, sent, changed(sent, key=key))


def keep_the_old_layout(events: list[Event], rng: random.Random) -> list[Event]:
    """The history lacks the layouts up to a record's leader epoch."""
    batch = some(events, rng, StoredBatch)
    layout = layout_of(events, batch)
    gone = [
        e
        for e in events
        if isinstance(e, LayoutSet)
        and (e.tp, e.incarnation) == (layout.tp, layout.incarnation)
        and e.leader_epoch <= layout.leader_epoch
    ]
    return without(events, *gone)


def append_to_a_closed_partition(events: list[Event], rng: random.Random) -> list[Event]:
    """A replica that is not in sync appends a record to a closed partition."""
    with_records = {(e.tp, e.incarnation) for e in events if isinstance(e, StoredBatch)}
    closing = some(
        events,
        rng,
        LayoutSet,
        lambda e: e.undeleted <= e.tp.partition,
        lambda e: (e.tp, e.incarnation) in with_records,
    )
    incarnation, epoch = (closing.tp, closing.incarnation), closing.leader_epoch
    batch = next(e for e in reversed(events) if isinstance(e, StoredBatch) and (e.tp, e.incarnation) == incarnation)
    replica = next(e for e in events if isinstance(e, Replica) and (e.tp, e.incarnation) == incarnation)
    late = changed(batch, broker=9, base_offset=0, leader_epoch=epoch)
    return [*events, changed(replica, broker=9, in_sync=False), late]


# ---------------------------------------------------------------- layouts


def change_a_layout_within_an_epoch(events: list[Event], rng: random.Random) -> list[Event]:
    layout = some(events, rng, LayoutSet)
    return replaced(events, layout, layout, changed(layout, layout_version=layout.layout_version + 1))


def accept_a_layout_that_never_existed(events: list[Event], rng: random.Random) -> list[Event]:
    asked = some(events, rng, LayoutAsked, lambda e: e.layout_version >= 1000)
    return replaced(events, asked, changed(asked, error="NONE"))


def refuse_such_a_layout_with_an_unknown_error(events: list[Event], rng: random.Random) -> list[Event]:
    asked = some(events, rng, LayoutAsked, lambda e: e.layout_version >= 1000)
    return replaced(events, asked, changed(asked, error="UNKNOWN_SERVER_ERROR"))


def take_a_record_by_the_last_layout(events: list[Event], rng: random.Random) -> list[Event]:
    batch = some(events, rng, StoredBatch, lambda e: layout_of(events, e).layout_version > 0)
    layout, value = layout_of(events, batch), batch.values[0]
    assert value is not None
    version = layout.layout_version - 1
    return [*events, LayoutAsked(9e9, batch.tp, layout.undeleted, version, "NONE", value)]


# ---------------------------------------------------------------- incarnations


def two_incarnations(events: list[Event], rng: random.Random) -> tuple[Created, Created]:
    creations = [e for e in events if isinstance(e, Created)]
    pairs = [
        (one, other)
        for one in creations
        for other in creations
        if one.tp == other.tp and one.incarnation < other.incarnation
    ]
    assume(pairs)
    return rng.choice(pairs)


def recreate_a_partition_at_an_old_epoch(events: list[Event], rng: random.Random) -> list[Event]:
    one, other = two_incarnations(events, rng)
    mine = [e for e in events if isinstance(e, LayoutSet) and (e.tp, e.incarnation) == (other.tp, other.incarnation)]
    before = [e for e in events if isinstance(e, LayoutSet) and (e.tp, e.incarnation) == (one.tp, one.incarnation)]
    return replaced(events, mine[0], changed(mine[0], leader_epoch=before[-1].leader_epoch))


def recreate_a_partition_at_offset_0(events: list[Event], rng: random.Random) -> list[Event]:
    _, other = two_incarnations(events, rng)
    found = [e for e in events if isinstance(e, StoredBatch) and (e.tp, e.incarnation) == (other.tp, other.incarnation)]
    assume(found and found[0].base_offset > 0)
    for copy in copies(events, found[0]):
        if copy.incarnation == other.incarnation:
            events = replaced(events, copy, changed(copy, base_offset=0))
    return events


def bring_a_record_back(events: list[Event], rng: random.Random) -> list[Event]:
    one, other = two_incarnations(events, rng)
    batch = some(events, rng, StoredBatch, lambda e: (e.tp, e.incarnation) == (one.tp, one.incarnation))
    found = [e for e in events if isinstance(e, StoredBatch) and (e.tp, e.incarnation) == (other.tp, other.incarnation)]
    assume(found)
    value = batch.values[0]
    for copy in copies(events, found[0]):
        if copy.incarnation == other.incarnation:
            events = replaced(events, copy, changed(copy, values=[value, *copy.values[1:]]))
    return events


def keep_a_commit_of_the_earlier_incarnation(events: list[Event], rng: random.Random) -> list[Event]:
    _, other = two_incarnations(events, rng)
    fetched = some(events, rng, OffsetFetched, lambda e: (e.tp, e.incarnation) == (other.tp, other.incarnation))
    return replaced(events, fetched, changed(fetched, offset=10**6))


def skip_the_first_record_of_a_new_partition(events: list[Event], rng: random.Random) -> list[Event]:
    """The effect of ``auto.offset.reset=latest``, if it also applied to partitions that were created later."""
    first = some(events, rng, StoredBatch, lambda e: e.tp.partition >= INITIAL, lambda e: e.base_offset == 0)
    value = first.values[0]
    return [e for e in events if not (isinstance(e, Polled) and e.value == value)]


RESIZE_MUTATIONS: list[tuple[Mutate, str]] = [
    (deliver_the_child_first, "promise"),
    (deliver_the_parent_again, "promise"),
    (forget_to_flush, "promise"),
    (load_before_the_flush, "promise"),
    (load_nothing, "promise"),
    (call_a_member_without_the_partition, "callbacks"),
    (report_before(KeysFlushed), "positions"),
    (report_before(Committed), "positions"),
    (report_a_position_above_the_delivered_records, "positions"),
    (answer_a_position_before_its_report, "positions"),
    (store_in_a_wrong_partition, "routing"),
    (keep_the_old_layout, "routing"),
    (append_to_a_closed_partition, "closed"),
    (change_a_layout_within_an_epoch, "layouts"),
    (accept_a_layout_that_never_existed, "layouts"),
    (refuse_such_a_layout_with_an_unknown_error, "layouts"),
    (take_a_record_by_the_last_layout, "layouts"),
    (recreate_a_partition_at_an_old_epoch, "incarnations"),
    (recreate_a_partition_at_offset_0, "incarnations"),
    (bring_a_record_back, "incarnations"),
    (keep_a_commit_of_the_earlier_incarnation, "incarnations"),
    (skip_the_first_record_of_a_new_partition, "unseen"),
]


RETENTION_MUTATIONS: list[tuple[Mutate, str]] = [
    (forget_to_flush_an_expired_record, "promise"),
    (skip_a_record_that_expires_only_later, "promise"),
    (lose_a_record_that_would_have_expired, "lost_acknowledged"),
]


@FAST
@given(seed=SEEDS, steps=st.integers(0, 250), expires=st.booleans())
def test_a_correct_resized_history_passes(seed: int, steps: int, expires: bool) -> None:
    assert check_history(correct_resized_history(seed, steps, expires=expires)) == []


@pytest.mark.parametrize(
    ("mutate", "check"), RETENTION_MUTATIONS, ids=[mutate.__name__ for mutate, _ in RETENTION_MUTATIONS]
)
@settings(FAST, max_examples=15)
@given(seed=SEEDS, choice=SEEDS)
@pytest.mark.mutation
def test_each_mutation_of_a_history_with_expired_records_is_found(
    mutate: Mutate, check: str, seed: int, choice: int
) -> None:
    mutated = mutate(correct_resized_history(seed, expires=True), random.Random(choice))
    found = check_history(mutated)
    assert check in {violation.check for violation in found}, found


@pytest.mark.parametrize(("mutate", "check"), RESIZE_MUTATIONS, ids=[mutate.__name__ for mutate, _ in RESIZE_MUTATIONS])
@settings(FAST, max_examples=15)
@given(seed=SEEDS, choice=SEEDS)
@pytest.mark.mutation
def test_each_mutation_of_a_correct_resize_is_found(mutate: Mutate, check: str, seed: int, choice: int) -> None:
    mutated = mutate(correct_resized_history(seed), random.Random(choice))
    found = check_history(mutated)
    assert check in {violation.check for violation in found}, found


def test_every_check_has_a_mutation() -> None:
    assert {check for _, check in MUTATIONS + RESIZE_MUTATIONS} == {check.__name__ for check in CHECKS}
