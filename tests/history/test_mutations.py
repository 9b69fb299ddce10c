"""A correct history passes, and the check for each kind of mutation finds it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.history.checks import check_history
from tests.history.event_edits import FAST, SEEDS, changed, copies, replaced, some
from tests.history.events import (
    Acked,
    Assigned,
    Committed,
    Event,
    NotWritten,
    OffsetFetched,
    Polled,
    Replica,
    Sent,
    StoredBatch,
    WatermarkSeen,
    read_history,
    write_history,
)
from tests.history.generated import BROKERS, GROUP, MEMBERS, correct_history


def without_record(batch: StoredBatch, value: str) -> StoredBatch:
    return changed(batch, values=[None if other == value else other for other in batch.values])


def drop_from_one_replica(events: list[Event], rng: random.Random) -> list[Event]:
    ack = some(events, rng, Acked)
    batch = some(events, rng, StoredBatch, lambda e: ack.value in e.values)
    return replaced(events, batch, without_record(batch, ack.value))


def drop_from_every_replica(events: list[Event], rng: random.Random) -> list[Event]:
    ack = some(events, rng, Acked)
    for batch in copies(events, some(events, rng, StoredBatch, lambda e: ack.value in e.values)):
        events = replaced(events, batch, without_record(batch, ack.value))
    return [event for event in events if not (isinstance(event, Polled) and event.value == ack.value)]


def forget_all_replicas(events: list[Event], rng: random.Random) -> list[Event]:
    some(events, rng, Acked)
    return [event for event in events if not isinstance(event, Replica | StoredBatch)]


def swap_two_acknowledged_offsets(events: list[Event], rng: random.Random) -> list[Event]:
    one = some(events, rng, Acked)
    other = some(events, rng, Acked, lambda e: e.tp == one.tp and e.offset != one.offset)
    return replaced(replaced(events, one, changed(one, offset=other.offset)), other, changed(other, offset=one.offset))


def store_a_value_that_nobody_sent(events: list[Event], rng: random.Random) -> list[Event]:
    batch = some(events, rng, StoredBatch, lambda e: e.broker == BROKERS[0])
    for copy in copies(events, batch):
        events = replaced(events, copy, changed(copy, values=["from nowhere", *copy.values[1:]]))
    return [e for e in events if getattr(e, "value", None) != batch.values[0] or isinstance(e, Sent)]


def deliver_a_value_that_is_not_stored(events: list[Event], rng: random.Random) -> list[Event]:
    poll = some(events, rng, Polled)
    sent = Sent(0.0, "left", poll.tp.topic, "k", "lost later")
    return [sent, *events, changed(poll, value=sent.value, offset=10_000)]


def report_a_stored_record_as_refused(events: list[Event], rng: random.Random) -> list[Event]:
    ack = some(events, rng, Acked)
    return replaced(events, ack, NotWritten(ack.at_ms, ack.producer, ack.value, "refused"))


def append_again(events: list[Event], rng: random.Random) -> list[Event]:
    """The leader appends a retried batch again, with the next sequence."""
    batch = some(events, rng, StoredBatch)
    for broker in BROKERS:
        mine = [e for e in events if isinstance(e, StoredBatch) and (e.broker, e.tp) == (broker, batch.tp)]
        again = changed(batch, broker=broker, base_offset=mine[-1].next_offset, leader_epoch=mine[-1].leader_epoch)
        following = [e for e in mine if e.producer_id == batch.producer_id][-1]
        again = changed(again, base_sequence=following.base_sequence + len(following.values))
        events = replaced(events, mine[-1], mine[-1], again)
    return events


def append_again_in_a_higher_epoch(events: list[Event], rng: random.Random) -> list[Event]:
    """A stock producer raises its epoch, and the leader takes a repeated batch for a new one."""
    batch = some(events, rng, StoredBatch)
    for broker in BROKERS:
        mine = [e for e in events if isinstance(e, StoredBatch) and (e.broker, e.tp) == (broker, batch.tp)]
        again = changed(batch, broker=broker, base_offset=mine[-1].next_offset, leader_epoch=mine[-1].leader_epoch)
        again = changed(again, producer_epoch=batch.producer_epoch + 3, base_sequence=0)
        events = replaced(events, mine[-1], mine[-1], again)
    return events


def repeat_a_sequence(events: list[Event], rng: random.Random) -> list[Event]:
    batch = some(events, rng, StoredBatch, lambda e: e.base_sequence > 0)
    for copy in copies(events, batch):
        events = replaced(events, copy, changed(copy, base_sequence=copy.base_sequence - 1))
    return events


def send_in_another_order(events: list[Event], rng: random.Random) -> list[Event]:
    one = some(events, rng, Sent)
    acked = {e.value for e in events if isinstance(e, Acked | Polled)}
    other = some(events, rng, Sent, lambda e: (e.producer, e.key) == (one.producer, one.key) and e.value != one.value)
    assume(one.value in acked and other.value in acked)
    return replaced(replaced(events, one, changed(other)), other, changed(one))


def lower_a_leader_epoch(events: list[Event], rng: random.Random) -> list[Event]:
    batch = some(events, rng, StoredBatch, lambda e: e.base_offset > 0)
    return replaced(events, batch, changed(batch, leader_epoch=-1))


def append_below_the_log_end(events: list[Event], rng: random.Random) -> list[Event]:
    batch = some(events, rng, StoredBatch, lambda e: e.base_offset > 0)
    return replaced(events, batch, changed(batch, base_offset=batch.base_offset - 1))


def change_the_digest_of_a_batch(events: list[Event], rng: random.Random) -> list[Event]:
    batch = some(events, rng, StoredBatch, lambda e: e.base_offset == 0)
    assume(max(e.high_watermark for e in events if isinstance(e, Replica) and e.tp == batch.tp) > 0)
    return replaced(events, batch, changed(batch, digest="another"))


def cut_a_log_short(events: list[Event], rng: random.Random) -> list[Event]:
    replica = some(events, rng, Replica)
    high_watermark = max(e.high_watermark for e in events if isinstance(e, Replica) and e.tp == replica.tp)
    assume(high_watermark > 1)
    return replaced(events, replica, changed(replica, log_end_offset=high_watermark - 1))


def lower_a_high_watermark(events: list[Event], rng: random.Random) -> list[Event]:
    seen = some(events, rng, WatermarkSeen, lambda e: e.offset > 0)
    later = changed(seen, offset=seen.offset - 1, asked_ms=seen.at_ms, at_ms=seen.at_ms + 0.5)
    return replaced(events, seen, seen, later)


def show_a_high_watermark_above_the_log_end(events: list[Event], rng: random.Random) -> list[Event]:
    replica = some(events, rng, Replica)
    last = events[-1].at_ms
    return [*events, WatermarkSeen(last + 1, replica.tp, 1, 10**6, replica.log_end_offset + 1, last, via="fetch")]


def deliver_all_but_one(events: list[Event], rng: random.Random) -> list[Event]:
    poll = some(events, rng, Polled)
    return [event for event in events if not (isinstance(event, Polled) and event.value == poll.value)]


def skip_a_record(events: list[Event], rng: random.Random) -> list[Event]:
    """A member skips a record, and continues with the next one."""
    poll = some(
        events,
        rng,
        Polled,
        lambda e: any(
            (p.member, p.generation, p.tp, p.offset) == (e.member, e.generation, e.tp, e.offset + 1)
            for p in events
            if isinstance(p, Polled)
        ),
        lambda e: any(
            (p.member, p.generation, p.tp, p.offset) == (e.member, e.generation, e.tp, e.offset - 1)
            for p in events
            if isinstance(p, Polled)
        ),
    )
    return replaced(events, poll)


def deliver_twice(events: list[Event], rng: random.Random) -> list[Event]:
    poll = some(events, rng, Polled)
    return replaced(events, poll, poll, changed(poll))


def deliver_to_a_member_without_the_partition(events: list[Event], rng: random.Random) -> list[Event]:
    poll = some(events, rng, Polled)
    return replaced(events, poll, changed(poll, member="nobody"))


def start_below_the_commit(events: list[Event], rng: random.Random) -> list[Event]:
    """The last generation delivers from the log's start again, although a commit was acknowledged."""
    last = max(e.generation for e in events if isinstance(e, Assigned))
    commit = some(events, rng, Committed, lambda e: e.outcome == "ok")
    in_doubt = [e for e in events if isinstance(e, Committed) and e.tp == commit.tp and e.outcome == "unknown"]
    assume(not in_doubt and commit.generation < last)
    first = next((e for e in events if isinstance(e, Polled) and (e.generation, e.tp) == (last, commit.tp)), None)
    assume(first is not None)
    value = next(e for e in events if isinstance(e, StoredBatch) and e.tp == commit.tp and e.base_offset == 0).values[0]
    return replaced(events, first, changed(first, offset=0, value=value), first)


def start_above_all_commits(events: list[Event], rng: random.Random) -> list[Event]:
    assigned = some(events, rng, Assigned, lambda e: e.generation == 1)
    tp = assigned.partitions[0]
    mine = [e for e in events if isinstance(e, Polled) and (e.generation, e.tp) == (1, tp)]
    assume(len(mine) > 1)
    assume(not any(e.at_ms < mine[1].at_ms for e in events if isinstance(e, Committed) and e.tp == tp))
    return replaced(events, mine[0])


def lower_a_commit(events: list[Event], rng: random.Random) -> list[Event]:
    commit = some(events, rng, Committed, lambda e: e.outcome == "ok")
    less = changed(commit, offset=commit.offset - 1, asked_ms=commit.at_ms, at_ms=commit.at_ms + 0.5)
    return replaced(events, commit, commit, less)


def forget_a_commit(events: list[Event], rng: random.Random) -> list[Event]:
    commit = some(events, rng, Committed, lambda e: e.outcome == "ok")
    fetched = OffsetFetched(commit.at_ms + 0.5, GROUP, commit.tp, -1, commit.at_ms)
    return replaced(events, commit, commit, fetched)


def add_a_second_owner(events: list[Event], rng: random.Random) -> list[Event]:
    assigned = some(events, rng, Assigned)
    other = MEMBERS[1 - MEMBERS.index(assigned.member)]
    return replaced(events, assigned, assigned, changed(assigned, member=other))


MUTATIONS = [
    (drop_from_one_replica, "lost_acknowledged"),
    (drop_from_every_replica, "lost_acknowledged"),
    (forget_all_replicas, "lost_acknowledged"),
    (swap_two_acknowledged_offsets, "inconsistent_offsets"),
    (store_a_value_that_nobody_sent, "inconsistent_offsets"),
    (deliver_a_value_that_is_not_stored, "inconsistent_offsets"),
    (report_a_stored_record_as_refused, "refused_but_written"),
    (append_again, "duplicates"),
    (append_again_in_a_higher_epoch, "duplicates"),
    (repeat_a_sequence, "duplicates"),
    (send_in_another_order, "key_order"),
    (lower_a_leader_epoch, "leader_epochs"),
    (append_below_the_log_end, "leader_epochs"),
    (change_the_digest_of_a_batch, "replicas_identical"),
    (cut_a_log_short, "replicas_identical"),
    (lower_a_high_watermark, "watermarks"),
    (show_a_high_watermark_above_the_log_end, "watermarks"),
    (deliver_all_but_one, "unseen"),
    (skip_a_record, "polls"),
    (deliver_twice, "polls"),
    (deliver_to_a_member_without_the_partition, "polls"),
    (start_below_the_commit, "polls"),
    (start_above_all_commits, "polls"),
    (lower_a_commit, "commits"),
    (forget_a_commit, "commits"),
    (add_a_second_owner, "owners"),
]


@FAST
@given(seed=SEEDS, steps=st.integers(0, 150), seeks=st.booleans())
def test_a_correct_history_passes(seed: int, steps: int, seeks: bool) -> None:
    assert check_history(correct_history(seed, steps, seeks=seeks)) == []


@pytest.mark.parametrize(("mutate", "check"), MUTATIONS, ids=[mutate.__name__ for mutate, _ in MUTATIONS])
@settings(FAST, max_examples=25)
@given(seed=SEEDS, choice=SEEDS)
@pytest.mark.mutation
def test_each_mutation_of_a_correct_history_is_found(
    mutate: Callable[[list[Event], random.Random], list[Event]], check: str, seed: int, choice: int
) -> None:
    mutated = mutate(correct_history(seed), random.Random(choice))
    found = check_history(mutated)
    assert check in {violation.check for violation in found}, found


def test_a_history_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    events = correct_history(7)
    write_history(tmp_path / "history.jsonl", events)
    assert list(read_history(tmp_path / "history.jsonl")) == events
