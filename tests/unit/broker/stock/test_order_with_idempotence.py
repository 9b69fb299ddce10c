"""No batch of an idempotent producer is written in place of an earlier batch that the producer has to repeat."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.log.producer_state import AppendOrigin, ProducerState
from anabranch.broker.log.repeated_batches import ProducerConnection
from anabranch.broker.stock.order_with_idempotence import AwaitedBatches, SentBatch
from anabranch.broker.stock.order_without_idempotence import GIVE_UP_S
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.batch_layout import MAX_SEQUENCE
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.produced_batch import read_header
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition

KEY = TopicPartition("t", 5)
WRITTEN = ErrorCode.NONE
AGAIN, MISSED = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
UNKNOWN, FOR_GOOD = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.POLICY_VIOLATION


class Log:
    """A partition's log, and one connection to its leader."""

    def __init__(self) -> None:
        self.now = 0.0
        self.awaited = AwaitedBatches()
        self.producers = ProducerState()
        self._clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        self._end = 0

    def send(self, first: int, count: int = 2, *, refusal: ErrorCode = WRITTEN, epoch: int = 0) -> ErrorCode:
        """Return the error code for a batch. ``refusal`` is an error that is raised before the log is reached."""
        records = [(b"k", b"v", (), 1000)] * count
        buffer = build_batch(records, producer_id=7, producer_epoch=epoch, base_sequence=first)
        sent = SentBatch.of(self.awaited, ProducerConnection(), self._clock, KEY, RecordBatch(buffer))
        assert sent is not None
        batch = RecordBatch(buffer)
        try:
            if refusal:
                raise KafkaError(refusal)
            if self.producers.find_duplicate(batch) is None:
                self.awaited.check(KEY, batch, self.producers, self.now, AGAIN)
                self.producers.check(batch, AppendOrigin.CLIENT)
        except KafkaError as error:
            sent.refused(error.code)
            return error.code
        if self.producers.find_duplicate(batch) is None:
            self.producers.record(batch, self._end, 1000)
            self._end += count
        sent.written()
        return WRITTEN


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.parametrize("refusal", [code for code in ErrorCode if code.retriable])
def test_after_any_retriable_error_the_batch_is_written_before_later_ones(log: Log, refusal: ErrorCode) -> None:
    assert log.send(0, refusal=refusal) == refusal
    assert [log.send(2), log.send(4)] == [AGAIN, AGAIN]
    assert [log.send(first) for first in (0, 2, 4)] == [WRITTEN] * 3
    assert not log.awaited


def test_of_several_refused_batches_the_earliest_is_written_first(log: Log) -> None:
    for first in (2, 0, 4):
        log.send(first, refusal=UNKNOWN)
    assert [log.send(2), log.send(4), log.send(0), log.send(2)] == [AGAIN, AGAIN, WRITTEN, WRITTEN]


def test_a_batch_that_is_refused_again_is_still_written_first(log: Log) -> None:
    log.send(0, refusal=UNKNOWN)
    log.send(0, refusal=ErrorCode.KAFKA_STORAGE_ERROR)
    assert [log.send(2), log.send(0)] == [AGAIN, WRITTEN]


def test_a_refused_batch_that_is_in_the_log_is_not_awaited(log: Log) -> None:
    log.send(0)
    log.send(0, refusal=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert log.send(0) == WRITTEN
    assert not log.awaited


def test_a_batch_before_the_refused_one_is_written(log: Log) -> None:
    log.send(2, refusal=UNKNOWN)
    assert [log.send(0), log.send(2)] == [WRITTEN, WRITTEN]


def test_sequences_wrap(log: Log) -> None:
    log.send(MAX_SEQUENCE - 1, refusal=UNKNOWN)
    assert [log.send(0), log.send(MAX_SEQUENCE - 1), log.send(0)] == [AGAIN, WRITTEN, WRITTEN]


def test_a_log_that_knows_the_producer_checks_the_sequence_itself(log: Log) -> None:
    log.send(0)
    log.send(2, refusal=UNKNOWN)
    assert log.send(4) == MISSED
    assert [log.send(2), log.send(4)] == [WRITTEN, WRITTEN]
    assert not log.awaited


def test_a_log_that_forgot_the_producer_refuses_batches_after_the_awaited_one(log: Log) -> None:
    """The producer's records expired, were deleted, or were truncated."""
    log.send(0)
    log.send(2, refusal=UNKNOWN)
    log.producers.clear(0)
    assert [log.send(4), log.send(2), log.send(4)] == [AGAIN, WRITTEN, WRITTEN]


def test_an_awaited_batch_of_a_new_producer_epoch_is_written_before_later_ones(log: Log) -> None:
    log.send(0)
    log.send(0, epoch=1, refusal=UNKNOWN)
    assert [log.send(2, epoch=1), log.send(0, epoch=1)] == [AGAIN, WRITTEN]


def test_an_awaited_batch_is_written_before_batches_that_may_follow_those_of_an_earlier_leader(log: Log) -> None:
    """The earlier leader may have taken all three in epoch 2. This one has taken the first, from a late copy."""
    for first in (0, 1, 2):
        log.send(first, count=1)
    log.producers.led_from = 3
    records = [(b"k", b"v", (), 1000)]
    copy = RecordBatch(build_batch(records, producer_id=7, producer_epoch=2, base_sequence=0))
    log.producers.record_repetition(copy, log.producers.producers[7].batches[0], 1000)
    log.send(1, count=1, epoch=2, refusal=UNKNOWN)
    assert log.send(3, count=1, epoch=2) == AGAIN
    assert [log.send(1, count=1, epoch=2), log.send(3, count=1, epoch=2)] == [WRITTEN, MISSED]


def test_a_producer_that_continues_in_a_new_epoch_is_not_refused(log: Log) -> None:
    log.send(0, refusal=UNKNOWN)
    assert log.send(0, epoch=1) == WRITTEN
    assert not log.awaited


def test_a_batch_of_an_earlier_producer_epoch_changes_nothing(log: Log) -> None:
    log.send(0, epoch=1, refusal=UNKNOWN)
    log.send(8, epoch=0, refusal=UNKNOWN)
    assert log.send(2, epoch=1) == AGAIN
    assert log.send(8, epoch=0) == WRITTEN
    assert log.send(2, epoch=1) == AGAIN


def test_a_producer_that_repeats_nothing_is_refused_as_out_of_order(log: Log) -> None:
    """The producer gets OUT_OF_ORDER_SEQUENCE_NUMBER until it repeats the missing batch.

    librdkafka assumes that the missing batch is written as soon as a later batch is written.
    """
    log.send(0, refusal=UNKNOWN)
    log.now = GIVE_UP_S
    assert log.send(2) == AGAIN
    log.now = GIVE_UP_S + 1
    assert [log.send(2), log.send(2)] == [MISSED, MISSED]
    assert [log.send(0), log.send(2)] == [WRITTEN, WRITTEN]


def test_a_refused_batch_is_awaited_as_long_as_it_is_repeated(log: Log) -> None:
    for log.now in (0.0, GIVE_UP_S, 2 * GIVE_UP_S):
        assert [log.send(0, refusal=UNKNOWN), log.send(2)] == [UNKNOWN, AGAIN]


def test_after_a_batch_is_permanently_refused_the_next_refused_one_is_awaited(log: Log) -> None:
    log.send(0, refusal=UNKNOWN)
    log.send(2, refusal=UNKNOWN)
    assert log.send(0, refusal=FOR_GOOD) == FOR_GOOD
    assert [log.send(4), log.send(2), log.send(4)] == [AGAIN, WRITTEN, WRITTEN]


def test_a_batch_that_is_permanently_refused_when_first_sent_delays_no_later_batch(log: Log) -> None:
    assert [log.send(0, refusal=FOR_GOOD), log.send(2)] == [FOR_GOOD, WRITTEN]
    assert not log.awaited


@pytest.mark.parametrize(
    "records",
    [None, memoryview(b""), memoryview(bytes(61)), memoryview(build_batch([(b"k", b"v", (), 1)]))],
    ids=["null", "empty", "no batch", "no producer id"],
)
def test_records_that_no_idempotent_producer_sent_are_not_remembered(log: Log, records: memoryview | None) -> None:
    clock: Any = SimpleNamespace(monotonic=lambda: 0.0)
    assert SentBatch.of(log.awaited, ProducerConnection(), clock, KEY, read_header(records)) is None
