"""Remembers the batches that idempotent producers must repeat on a connection before later batches are written. Pure.

A log that does not know a producer accepts any sequence from it, because earlier records may have been deleted. Suppose
a producer has two batches in flight for a new partition. This broker refuses the first batch, because it does not lead
the partition yet. Then it begins to lead. The log would accept the second batch, and later refuse the repeated first
batch as out of sequence. librdkafka does not even repeat the first batch: it considers a batch written once a later
batch is written. (Apache Kafka accepts the second batch.)

For each partition and producer, this module remembers the first sequence that was refused with a retriable error. While
the log does not know the producer, later sequences are refused too. Most libraries repeat the first batch first;
kafka-python repeats the last batch first, and the other batches right after it. A producer that has not repeated the
first batch within ``GIVE_UP_S`` will not repeat it. Its later batches are answered with OUT_OF_ORDER_SEQUENCE_NUMBER,
as by a log that knows the producer, and the producer continues in another epoch. Later batches of the old epoch are
refused, because the producer may consider the missing batch written.

The state is dropped when the connection ends, because the producer's requests in flight end with it.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.log.repeated_batches import HALF_OF_ALL_SEQUENCES, Answer, ProducerConnection
from anabranch.broker.stock.order_without_idempotence import GIVE_UP_S
from anabranch.protocol.batch_layout import MAX_SEQUENCE
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch, increment_sequence
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock


class _FirstToRepeat(NamedTuple):
    epoch: int
    sequence: int
    since: float
    """The time at which the batch last arrived."""


class AwaitedBatches:
    """The batches that producers of one connection have to repeat."""

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first: dict[tuple[TopicPartition, int], _FirstToRepeat] = {}
        """The first batch to repeat, by partition and producer."""

    def __len__(self) -> int:
        return len(self.first)

    def check(
        self, key: TopicPartition, batch: RecordBatch, producers: ProducerState, now: float, refusal: ErrorCode
    ) -> None:
        """Raise ``refusal``, or OUT_OF_ORDER_SEQUENCE_NUMBER 45, if an earlier batch must be written first."""
        awaited = self.first.get((key, batch.producer_id))
        if (
            awaited is None
            or batch.producer_epoch != awaited.epoch
            or not _is_later(batch.base_sequence, awaited.sequence)
            or producers.knows(batch.producer_id, batch.producer_epoch)
        ):
            return
        sent = f"{key}: producer {batch.producer_id} sent sequence {batch.base_sequence}"
        if now - awaited.since > GIVE_UP_S:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{sent}, and did not send sequence {awaited.sequence} first within {GIVE_UP_S:g} s",
            )
        raise KafkaError(refusal, f"{sent}, and must send sequence {awaited.sequence} first")

    def add(self, batch: SentBatch, now: float) -> None:
        """Note a batch that the producer has to repeat."""
        named = (batch.key, batch.producer_id)
        awaited = self.first.get(named)
        if (
            awaited is None
            or batch.epoch > awaited.epoch
            or (batch.epoch == awaited.epoch and not _is_later(batch.first, awaited.sequence))
        ):
            self.first[named] = _FirstToRepeat(batch.epoch, batch.first, now)

    def skip(self, batch: SentBatch, now: float) -> None:
        """Note that the producer will not repeat a batch. If that batch was awaited, the next batch is awaited now."""
        named = (batch.key, batch.producer_id)
        awaited = self.first.get(named)
        if awaited is not None and awaited[:2] == (batch.epoch, batch.first):
            self.first[named] = _FirstToRepeat(batch.epoch, increment_sequence(batch.last, 1), now)

    def forget(self, batch: SentBatch) -> None:
        """Note that a batch is in the log. From then on the log knows the producer."""
        named = (batch.key, batch.producer_id)
        awaited = self.first.get(named)
        if awaited is not None and awaited.epoch <= batch.epoch:
            del self.first[named]


class SentBatch:
    """A batch of an idempotent producer; its methods note whether the producer has to repeat it."""

    __slots__ = ("_awaited", "_clock", "_connection", "_request", "epoch", "first", "key", "last", "producer_id")

    def __init__(
        self,
        awaited: AwaitedBatches,
        connection: ProducerConnection,
        clock: Clock,
        key: TopicPartition,
        producer_id: int,
        epoch: int,
        first: int,
        last: int,
    ) -> None:
        self._awaited = awaited
        self._connection = connection
        self._request = connection.requests
        self._clock = clock
        self.key = key
        self.producer_id = producer_id
        self.epoch = epoch
        self.first = first
        self.last = last

    @classmethod
    def of(
        cls,
        awaited: AwaitedBatches,
        connection: ProducerConnection,
        clock: Clock,
        key: TopicPartition,
        batch: RecordBatch | None,
    ) -> SentBatch | None:
        """Return None unless an idempotent producer wrote ``batch``, which may be invalid, or None if unreadable."""
        if batch is None or batch.producer_id < 0:
            return None
        first, last = batch.base_sequence, increment_sequence(batch.base_sequence, batch.last_offset_delta)
        return cls(awaited, connection, clock, key, batch.producer_id, batch.producer_epoch, first, last)

    def written(self) -> None:
        """Note that the batch is in the log, through this request or an earlier one."""
        self._awaited.forget(self)

    def acknowledged(self, producers: ProducerState, last_offset: int) -> None:
        """Note that the batch, which ends at ``last_offset``, is answered with success."""
        producers.record_answer(self.producer_id, Answer(last_offset, self._connection, self._request))

    def refused(self, code: ErrorCode) -> None:
        """Note that the batch is answered with an error."""
        if code.retriable:
            self.to_be_repeated()
        else:
            self._awaited.skip(self, self._clock.monotonic())

    def to_be_repeated(self) -> None:
        """Note that the producer may repeat the batch: the batch is not in the log, or a truncation may remove it."""
        self._awaited.add(self, self._clock.monotonic())


def _is_later(sequence: int, other: int) -> bool:
    return 0 < ((sequence - other) & MAX_SEQUENCE) < HALF_OF_ALL_SEQUENCES
