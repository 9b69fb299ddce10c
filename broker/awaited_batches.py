"""What idempotent producers have to repeat on one connection before anything later of theirs is written. Pure.

A log that does not know a producer takes a batch of it with any sequence, because the records before may have been
deleted. If the first batch in flight is refused and this broker begins to lead a new partition, the second would be
written in the place of the first. The first would then be out of sequence for good. librdkafka does not even repeat it:
it takes it for written once a later batch is. (Apache Kafka accepts the later batch.)

So for each partition and producer the first sequence that was refused to be repeated is remembered, whatever the
reason. As long as the log does not know the producer, later sequences are refused too. Most libraries repeat the first
batch first; kafka-python repeats the last first, and the others right behind it. A producer that has not repeated the
first one for ``GIVE_UP_S`` will not do so. It gets OUT_OF_ORDER_SEQUENCE_NUMBER, as from a log that knows it, and goes
on in another epoch. Nothing later of the old epoch is taken, because the producer may take what is missing for written.

All of this ends with the connection, as does what the producer has in flight.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.broker.log.producer_state import HALF_OF_ALL_SEQUENCES, ProducerState
from anabranch.broker.retry_order import GIVE_UP_S
from anabranch.protocol.batch_layout import HEADER, HEADER_BYTES, MAGIC, MAGIC_AT, MAX_SEQUENCE
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch, increment_sequence
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock


class _Awaited(NamedTuple):
    epoch: int
    sequence: int
    since: float
    """When the batch came last."""


class AwaitedBatches:
    """Of one connection."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[tuple[TopicPartition, int], _Awaited] = {}

    def __len__(self) -> int:
        return len(self._first)

    def check(
        self, key: TopicPartition, batch: RecordBatch, producers: ProducerState, now: float, refusal: ErrorCode
    ) -> None:
        """Raise ``refusal``, or OUT_OF_ORDER_SEQUENCE_NUMBER 45, where another batch has to be written before."""
        awaited = self._first.get((key, batch.producer_id))
        if (
            awaited is None
            or batch.producer_epoch != awaited.epoch
            or not _is_later(batch.base_sequence, awaited.sequence)
            or producers.knows(batch.producer_id, batch.producer_epoch)
        ):
            return
        missing = f"{key}: producer {batch.producer_id} is to repeat sequence {awaited.sequence}"
        if now - awaited.since > GIVE_UP_S:
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{missing}, and sent {batch.base_sequence}")
        raise KafkaError(refusal, f"{missing} before {batch.base_sequence}")

    def add(self, batch: SentBatch, now: float) -> None:
        """A batch is to be repeated."""
        named = (batch.key, batch.producer_id)
        awaited = self._first.get(named)
        if (
            awaited is None
            or batch.epoch > awaited.epoch
            or (batch.epoch == awaited.epoch and not _is_later(batch.first, awaited.sequence))
        ):
            self._first[named] = _Awaited(batch.epoch, batch.first, now)

    def skip(self, batch: SentBatch, now: float) -> None:
        """A batch is not to be repeated: if it was awaited, the one behind it is."""
        named = (batch.key, batch.producer_id)
        awaited = self._first.get(named)
        if awaited is not None and awaited[:2] == (batch.epoch, batch.first):
            self._first[named] = _Awaited(batch.epoch, increment_sequence(batch.last, 1), now)

    def forget(self, batch: SentBatch) -> None:
        """A batch is in the log, which knows the producer from it on."""
        named = (batch.key, batch.producer_id)
        awaited = self._first.get(named)
        if awaited is not None and awaited.epoch <= batch.epoch:
            del self._first[named]


class SentBatch:
    """A batch of an idempotent producer, and where it is noted what becomes of it."""

    __slots__ = ("_awaited", "_clock", "epoch", "first", "key", "last", "producer_id")

    def __init__(
        self,
        awaited: AwaitedBatches,
        clock: Clock,
        key: TopicPartition,
        producer_id: int,
        epoch: int,
        first: int,
        last: int,
    ) -> None:
        self._awaited = awaited
        self._clock = clock
        self.key = key
        self.producer_id = producer_id
        self.epoch = epoch
        self.first = first
        self.last = last

    @classmethod
    def read(cls, awaited: AwaitedBatches, clock: Clock, key: TopicPartition, records: object) -> SentBatch | None:
        """From the header of a batch, valid or not; None where no idempotent producer wrote one."""
        if not isinstance(records, memoryview) or len(records) < HEADER_BYTES or records[MAGIC_AT] != MAGIC:
            return None
        header = HEADER.unpack_from(records)
        delta, producer_id, epoch, first = header[6], header[9], header[10], header[11]
        if producer_id < 0:
            return None
        return cls(awaited, clock, key, producer_id, epoch, first, increment_sequence(first, delta))

    def written(self) -> None:
        """It is in the log, by this request or an earlier one."""
        if self._awaited:
            self._awaited.forget(self)

    def refused(self, code: ErrorCode) -> None:
        """It is answered with an error."""
        if code.retriable:
            self.to_be_repeated()
        else:
            self._awaited.skip(self, self._clock.monotonic())

    def to_be_repeated(self) -> None:
        """It was not written, or may be truncated, and may be answered with an error after which it is repeated."""
        self._awaited.add(self, self._clock.monotonic())


def _is_later(sequence: int, other: int) -> bool:
    return 0 < ((sequence - other) & MAX_SEQUENCE) < HALF_OF_ALL_SEQUENCES
