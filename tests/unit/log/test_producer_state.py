from __future__ import annotations

import random
from typing import Any

import pytest

from anabranch.broker.log.producer_state import (
    AppendOrigin,
    BatchMetadata,
    ProducerEntry,
    ProducerExpiration,
    ProducerState,
)
from anabranch.broker.log.txn_index import AbortedTxn
from anabranch.protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch
from tests.support.log.batches import build_control_batch
from tests.support.log.log_fixture import START_MS, idempotent

MAX_SEQUENCE = 2**31 - 1


class Producers:
    """A producer state with a log that only counts offsets."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.end = 0

    def send(self, sequence: int, count: int = 1, **fields: int) -> tuple[int, bool]:
        batch = RecordBatch(idempotent(sequence, count, **fields))
        known = self.state.find_duplicate(batch)
        if known is not None:
            return known.first_offset, True
        self.state.check(batch, AppendOrigin.CLIENT)
        return self.write(batch), False

    def write(self, batch: RecordBatch) -> int:
        base = self.end
        self.state.record(batch, base, START_MS)
        self.end += batch.last_offset_delta + 1
        return base

    def marker(self, kind: int, producer_id: int = 9, epoch: int = 0, coordinator_epoch: int = 1) -> AbortedTxn | None:
        batch = RecordBatch(build_control_batch(kind, producer_id, epoch, coordinator_epoch, START_MS))
        self.state.check_marker(batch)
        aborted = self.state.record(batch, self.end, START_MS)
        self.end += 1
        return aborted


@pytest.fixture
def producers() -> Producers:
    return Producers()


def refused(code: ErrorCode, call, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(KafkaError) as caught:
        call(*args, **kwargs)
    assert caught.value.code == code


def test_the_last_five_batches_are_recognised_with_their_offsets(producers: Producers) -> None:
    offsets = [producers.send(sequence, 2)[0] for sequence in range(0, 12, 2)]
    assert offsets == [0, 2, 4, 6, 8, 10]
    assert [producers.send(sequence, 2) for sequence in range(2, 12, 2)] == [(offset, True) for offset in offsets[1:]]


def test_a_batch_older_than_the_last_five_is_known_to_be_written_without_its_offset(producers: Producers) -> None:
    """The batch is in the log, so neither a refusal nor a second write would be right."""
    for sequence in range(100, 112, 2):
        producers.send(sequence, 2)
    known = producers.state.find_duplicate(RecordBatch(idempotent(100, 2)))
    assert known is not None and (known.first_offset, known.last_offset) == (-1, 11)
    assert producers.send(100, 2) == (-1, True)
    # Older sequences are unknown. A batch with other boundaries, or with new records, is no retry.
    for first, count in ((98, 2), (100, 3), (104, 3), (110, 1), (110, 3), (114, 2)):
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, producers.send, first, count)
    assert producers.send(112, 2) == (12, False)


def test_only_batches_since_the_last_gap_count_as_written(producers: Producers) -> None:
    """A log may have a gap: an earlier leader had forgotten the producer, and accepted any sequence from it."""
    producers.send(0)
    for sequence in range(10, 16):
        producers.write(RecordBatch(idempotent(sequence)))
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, producers.send, 5)
    assert producers.send(10) == (-1, True)


def test_a_batch_after_a_gap_across_the_wrap_is_not_treated_as_an_old_one(producers: Producers) -> None:
    entry = producers.state.producers[9] = ProducerEntry(9, epoch=0)
    first_of_kept = MAX_SEQUENCE - 5
    entry.add(BatchMetadata(first_of_kept - 1, first_of_kept - 1, first_of_kept - 1, START_MS), 0)
    for sequence in range(first_of_kept, MAX_SEQUENCE):
        entry.add(BatchMetadata(sequence, sequence, 0, START_MS), sequence)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, producers.send, 1)
    assert producers.send(first_of_kept - 2) == (-1, True)


def test_sequences_wrap(producers: Producers) -> None:
    producers.send(MAX_SEQUENCE - 1, 2)
    assert producers.send(0, 2) == (2, False)
    assert producers.send(MAX_SEQUENCE - 1, 2) == (0, True)


def test_sequences_may_wrap_within_a_batch(producers: Producers) -> None:
    producers.send(MAX_SEQUENCE, 3)
    assert producers.send(2) == (3, False)
    assert producers.send(MAX_SEQUENCE, 3) == (0, True)


def test_an_unknown_producer_may_begin_at_any_sequence(producers: Producers) -> None:
    """The producer's records may have been deleted (Kafka 2.4 and later; before that UNKNOWN_PRODUCER_ID 59)."""
    assert producers.send(77) == (0, False)


def test_a_new_epoch_begins_at_zero_and_forgets_the_old_batches(producers: Producers) -> None:
    producers.send(0, epoch=0)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, producers.send, 1, epoch=1)
    assert producers.send(0, epoch=1) == (1, False)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, producers.send, 0, epoch=0)


def test_sequences_of_a_coordinators_batches_are_not_checked(producers: Producers) -> None:
    producers.send(0)
    producers.state.check(RecordBatch(idempotent(5)), AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("age_ms", [0, 30 * 86_400_000, -30 * 86_400_000], ids=["now", "old", "future"])
def test_producers_expire_by_the_time_of_their_last_append_unless_in_a_transaction(
    producers: Producers, age_ms: int
) -> None:
    """The timestamps of records may be old, for instance in a backfill (KAFKA-9144)."""
    state = producers.state
    producers.send(0, producer_id=1, timestamp=START_MS - age_ms)
    producers.send(0, producer_id=2, is_transactional=True)
    assert state.remove_expired(START_MS + 86_400_000 - 1) == 0
    assert state.remove_expired(START_MS + 86_400_000) == 1
    assert sorted(state.producers) == [2]


def test_a_snapshot_keeps_the_last_five_batches_of_each_producer(producers: Producers) -> None:
    """A producer has up to five batches in flight, and may repeat all of them after a restart of the broker."""
    for number in range(6):
        producers.send(2 * number, 2)
        producers.send(number, producer_id=8)
    entries = producers.state.snapshot()
    restored = ProducerState()
    for _ in restored.restore(entries, 18, START_MS):
        pass
    assert restored.map_end_offset == 18
    for number in range(1, 6):
        duplicate = restored.find_duplicate(RecordBatch(idempotent(2 * number, 2)))
        assert duplicate is not None and duplicate.first_offset == 3 * number
    code, client = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, AppendOrigin.CLIENT
    refused(code, restored.check, RecordBatch(idempotent(0, 2)), client)
    restored.check(RecordBatch(idempotent(12)), client)
    last = {entry.producer_id: entry for entry in entries}  # Kafka reads the snapshot like this
    assert list(last.values()) == restored.latest() == producers.state.latest()


def test_expired_producers_are_not_restored(producers: Producers) -> None:
    producers.send(0)
    restored = ProducerState(ProducerExpiration(1000))
    for _ in restored.restore(producers.state.snapshot(), 1, START_MS + 1000):
        pass
    assert restored.producers == {}


def test_open_transactions_hold_the_first_unstable_offset(producers: Producers) -> None:
    state = producers.state
    producers.send(0, producer_id=1)
    assert state.first_unstable_offset is None
    producers.send(0, producer_id=2, is_transactional=True)
    producers.send(0, producer_id=3, is_transactional=True)
    assert state.first_unstable_offset == 1
    assert producers.marker(CONTROL_COMMIT, producer_id=2) is None
    assert state.first_unstable_offset == 1, "the marker is written, but is not below the high watermark"
    state.on_high_watermark(4)
    assert state.first_unstable_offset == 2
    assert producers.marker(CONTROL_ABORT, producer_id=3) == AbortedTxn(3, 2, 4, 5)
    state.on_high_watermark(5)
    assert state.first_unstable_offset is None


def test_an_abort_among_open_transactions_records_the_lso(producers: Producers) -> None:
    producers.send(0, producer_id=2, is_transactional=True)
    producers.send(0, producer_id=3, is_transactional=True)
    assert producers.marker(CONTROL_ABORT, producer_id=3) == AbortedTxn(3, 1, 2, 0)


def test_a_producer_of_a_clock_that_was_ahead_expires_as_if_it_had_written_at_the_restart(producers: Producers) -> None:
    producers.send(0)
    restored, now_ms = ProducerState(ProducerExpiration(1000)), START_MS - 10_000
    for _ in restored.restore(producers.state.snapshot(), 1, now_ms):
        pass
    assert restored.producers
    restored.remove_expired(now_ms + 1000)
    assert restored.producers == {}


def test_a_restored_transaction_is_still_open(producers: Producers) -> None:
    producers.send(0, producer_id=2, is_transactional=True)
    restored = ProducerState()
    for _ in restored.restore(producers.state.snapshot(), 1, START_MS):
        pass
    assert restored.first_unstable_offset == 0


def test_a_plain_batch_inside_a_transaction_is_refused(producers: Producers) -> None:
    producers.send(0, is_transactional=True)
    refused(ErrorCode.INVALID_TXN_STATE, producers.send, 1)


def test_a_zombie_coordinator_and_a_zombie_producer_write_no_marker(producers: Producers) -> None:
    producers.send(0, epoch=2, is_transactional=True)
    producers.marker(CONTROL_COMMIT, epoch=2, coordinator_epoch=5)
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, producers.marker, CONTROL_COMMIT, epoch=2, coordinator_epoch=4)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, producers.marker, CONTROL_COMMIT, epoch=1, coordinator_epoch=5)


@pytest.mark.parametrize("seed", range(20))
def test_the_next_batch_repeats_none_and_passes_the_check(producers: Producers, seed: int) -> None:
    """The checks of the next batch are left out, so they must have nothing to find."""
    rng, state = random.Random(seed), producers.state
    nexts = 0
    for _ in range(300):
        sequence = rng.choice([0, 1, 2, 3, MAX_SEQUENCE - 1, MAX_SEQUENCE, rng.randrange(12)])
        if (entry := state.producers.get(9)) is not None and rng.random() < 0.6:
            sequence = entry.next_sequence
        fields: dict[str, Any] = {"epoch": int(rng.random() < 0.01), "is_transactional": rng.random() < 0.01}
        batch = RecordBatch(idempotent(sequence, rng.choice([1, 2]), **fields))
        if state.is_next(batch):
            nexts += 1
            assert state.find_duplicate(batch) is None
            assert list(state.repetitions(batch, START_MS, None)) == []
            state.check(batch, AppendOrigin.CLIENT)
        if state.find_duplicate(batch) is None and (rng.random() < 0.1 or state.is_next(batch)):
            producers.write(batch)
        elif entry is not None and rng.random() < 0.2:
            producers.marker(rng.choice([CONTROL_ABORT, CONTROL_COMMIT]), epoch=entry.epoch)
            assert not state.is_next(RecordBatch(build_control_batch(CONTROL_ABORT, 9, 0, 1, START_MS)))
    assert nexts


def test_the_first_batch_of_a_later_epoch_may_repeat_one_of_an_earlier_epoch(producers: Producers) -> None:
    producers.send(0)
    producers.marker(CONTROL_ABORT, epoch=1)
    assert not producers.state.is_next(RecordBatch(idempotent(0, epoch=1)))
