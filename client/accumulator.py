"""Records waiting to be sent, per partition, and what became of the batches that were: no IO, no clock.

A ``PartitionQueue`` holds the batches of one partition in order: those not sent (``waiting``, the last of which may
still take records) and those sent and not answered (``outstanding``, in sequence order). A batch whose answer is
unknown is sent again unchanged, so the broker can tell a duplicate; it goes back to the front of ``waiting`` and
nothing newer leaves before it. All times are milliseconds of one monotonic clock given by the caller.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import anyio

from client.errors import ErrorCode, KafkaError, KafkaTimeoutError
from protocol.batch_builder import BatchBuilder, estimate_batch_bytes
from protocol.batch_layout import Header
from protocol.compression import CompressionType
from protocol.records import RecordBatch, increment_sequence
from protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition

MAX_OUTSTANDING_BATCHES = 5
"""Batches of one producer and partition whose sequences a broker remembers (Kafka's ProducerStateEntry)."""


class RecordMetadata(NamedTuple):
    """Where a record was written. ``offset`` is -1 when acks=0, or when only its being a duplicate is known."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds: the record's own, or the broker's when the topic has message.timestamp.type=LogAppendTime."""
    timestamp_type: int
    """0 CreateTime, 1 LogAppendTime."""
    log_start_offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What the broker answered for one batch."""

    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


class ProducerBatch:
    """Records of one partition that travel together. Resolved exactly once: with a result, an error, or by a split."""

    __slots__ = (
        "_event",
        "attempts",
        "base_sequence",
        "builder",
        "charged_bytes",
        "created_ms",
        "data",
        "error",
        "full",
        "in_flight",
        "parts",
        "producer_epoch",
        "producer_id",
        "refused",
        "result",
        "retry_at_ms",
        "tp",
    )

    def __init__(self, tp: TopicPartition, builder: BatchBuilder, created_ms: float) -> None:
        self.tp = tp
        self.builder = builder
        self.created_ms = created_ms
        self.charged_bytes = 0
        self.full = False
        self.attempts = 0
        self.retry_at_ms = 0.0
        self.in_flight = False
        self.refused = False
        """The broker said that it does not have the batch: it may take another sequence. Else its fate is unknown."""
        self.data: bytes | None = None
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch: int = NO_PRODUCER_EPOCH
        self.base_sequence: int = NO_SEQUENCE
        self.result: BatchResult | None = None
        self.error: KafkaError | None = None
        self.parts: list[tuple[int, ProducerBatch]] | None = None
        self._event: anyio.Event | None = None

    @property
    def count(self) -> int:
        return self.builder.count

    @property
    def resolved(self) -> bool:
        return self.result is not None or self.error is not None or self.parts is not None

    def encode(self) -> bytes:
        """The batch's bytes; built once, so that a retry is byte for byte what was sent before."""
        if self.data is None:
            self.full = True
            self.data = self.builder.build(
                producer_id=self.producer_id, producer_epoch=self.producer_epoch, base_sequence=self.base_sequence
            )
        return self.data

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Give the batch its place in the producer's sequence; bytes built for another place are dropped."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.data = None

    def resolve(
        self,
        *,
        result: BatchResult | None = None,
        error: KafkaError | None = None,
        parts: list[tuple[int, ProducerBatch]] | None = None,
    ) -> None:
        """Set the outcome and wake who waits for it; the first outcome stands."""
        if self.resolved:
            return
        self.result, self.error, self.parts = result, error, parts
        if parts is None:
            self.data = None
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Return once the batch is resolved."""
        if self.resolved:
            return
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class RecordHandle:
    """A record on its way. Await it for its ``RecordMetadata``, or for the ``KafkaError`` that stopped it.

    It may be awaited at any time, any number of times, or never.
    """

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    @property
    def topic(self) -> str:
        return self._batch.tp.topic

    @property
    def partition(self) -> int:
        return self._batch.tp.partition

    def done(self) -> bool:
        """Whether awaiting would return, or raise, at once."""
        batch, _ = self._locate()
        return batch.resolved

    def _locate(self) -> tuple[ProducerBatch, int]:
        """The batch that holds the record now (a batch too large is split) and the record's index in it."""
        batch, index = self._batch, self._index
        while batch.parts is not None:
            first, part = next((f, p) for f, p in reversed(batch.parts) if f <= index)
            batch, index = part, index - first
        return batch, index

    def __await__(self) -> Iterator[object]:  # type: ignore[misc]
        return self.wait().__await__()

    async def wait(self) -> RecordMetadata:
        """What ``await handle`` does."""
        batch, index = self._locate()
        while not batch.resolved:
            await batch.wait()
            batch, index = self._locate()
        if batch.error is not None:
            raise batch.error
        result = batch.result
        assert result is not None
        stamped = result.log_append_time_ms >= 0
        return RecordMetadata(
            batch.tp.topic,
            batch.tp.partition,
            result.base_offset + index if result.base_offset >= 0 else -1,
            result.log_append_time_ms if stamped else self._timestamp,
            1 if stamped else 0,
            result.log_start_offset,
        )


class PartitionQueue:
    """The batches of one partition and its place in the producer's sequence."""

    __slots__ = (
        "bump_needed",
        "next_sequence",
        "outstanding",
        "producer_epoch",
        "producer_id",
        "tp",
        "waiting",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.waiting: deque[ProducerBatch] = deque()
        self.outstanding: list[ProducerBatch] = []
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch: int = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        self.bump_needed = False
        """A batch failed for good or was refused: once no fate is unknown, a new epoch starts."""

    @property
    def may_adopt(self) -> bool:
        """No batch is on the wire or may have been written under the present id and epoch."""
        return all(batch.refused for batch in self.outstanding)

    def candidate(self) -> ProducerBatch | None:
        """The batch to send next; while a new epoch is needed, only one whose fate is unknown.

        A resent batch goes alone at the head of the outstanding: what is behind it would be out of order.
        """
        for batch in self.outstanding:
            if not batch.refused:
                if not batch.in_flight and batch in self.waiting:
                    return batch
                break
        if self.bump_needed or not self.waiting:
            return None
        head = self.waiting[0]
        if head in self.outstanding and head is not self.outstanding[0]:
            return None
        return head

    def adopt(self, producer_id: int, producer_epoch: int) -> None:
        """Start again from sequence 0 under a new id or epoch; only when ``may_adopt``.

        Batches that were refused under the old one are numbered anew, in order.
        """
        assert self.may_adopt
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0
        self.bump_needed = False
        for batch in self.outstanding:
            batch.refused = False
            batch.set_producer_state(producer_id, producer_epoch, self.next_sequence)
            self.next_sequence = increment_sequence(self.next_sequence, batch.count)

    def requeue(self, batch: ProducerBatch) -> None:
        """Put a sent batch back to be sent again, in sequence order before everything that was never sent."""
        batch.in_flight = False
        later = [b for b in self.waiting if b in self.outstanding]
        position = sum(1 for b in later if self.outstanding.index(b) < self.outstanding.index(batch))
        self.waiting.insert(position, batch)

    def forget(self, batch: ProducerBatch) -> None:
        """Take a batch whose fate is decided out of the books."""
        if batch in self.outstanding:
            self.outstanding.remove(batch)
        if batch in self.waiting:
            self.waiting.remove(batch)


class Accumulator:
    """All partitions' queues and the memory they use."""

    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: float,
        buffer_memory: int,
        delivery_timeout_ms: float,
        compression: CompressionType,
        max_in_flight: int,
        idempotent: bool,
        compression_level: int | None = None,
    ) -> None:
        self.batch_size = batch_size
        self.linger_ms = linger_ms
        self.buffer_memory = buffer_memory
        self.delivery_timeout_ms = delivery_timeout_ms
        self.compression = compression
        self.compression_level = compression_level
        self.idempotent = idempotent
        self._max_outstanding = min(max_in_flight, MAX_OUTSTANDING_BATCHES) if idempotent else max_in_flight
        self.queues: dict[tuple[str, int], PartitionQueue] = {}
        self.buffered_bytes = 0
        self.flushing = 0
        """Callers of flush and of close: while there is one, no batch lingers."""

    # ------------------------------------------------------------ taking records

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        timestamp: int,
    ) -> RecordHandle | None:
        """Add a record to the partition's open batch; None when there is none or the record does not fit."""
        queue = self.queues.get((topic, partition))
        if queue is None or not queue.waiting:
            return None
        batch = queue.waiting[-1]
        if batch.full:
            return None
        builder = batch.builder
        index = builder.append(key, value, headers, timestamp)
        if index is None:
            batch.full = True
            return None
        size = builder.size_bytes
        self.buffered_bytes += size - batch.charged_bytes
        batch.charged_bytes = size
        return RecordHandle(batch, index, timestamp)

    def append_to_new_batch(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        timestamp: int,
        now_ms: float,
    ) -> RecordHandle:
        """Begin a batch with a record."""
        tp = TopicPartition(topic, partition)
        queue = self.queues.get(tp)
        if queue is None:
            queue = self.queues[tp] = PartitionQueue(tp)
        builder = BatchBuilder(self.compression, self.batch_size, level=self.compression_level)
        batch = ProducerBatch(queue.tp, builder, now_ms)
        builder.append(key, value, headers, timestamp)
        batch.charged_bytes = builder.size_bytes
        self.buffered_bytes += batch.charged_bytes
        queue.waiting.append(batch)
        return RecordHandle(batch, 0, timestamp)

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes may be held; more than all memory may when nothing else is held."""
        return self.buffered_bytes + size <= self.buffer_memory or self.buffered_bytes == 0

    # ------------------------------------------------------------ giving batches

    def sendable(self, queue: PartitionQueue, now_ms: float, *, memory_short: bool) -> tuple[bool, float]:
        """Whether the head of ``queue`` may leave now, and else the milliseconds until time alone lets it.

        ``inf`` when only an answer can. Kafka's ``RecordAccumulator.batchReady`` and
        ``shouldStopDrainBatchesForPartition``.
        """
        head = queue.candidate()
        if head is None:
            return False, float("inf")
        if head.retry_at_ms > now_ms:
            return False, head.retry_at_ms - now_ms
        if head.attempts or head.base_sequence != NO_SEQUENCE:
            return True, 0.0
        if len(queue.outstanding) >= self._max_outstanding:
            return False, float("inf")
        lingered = now_ms - head.created_ms
        if head.full or len(queue.waiting) > 1 or self.flushing or memory_short or lingered >= self.linger_ms:
            return True, 0.0
        return False, self.linger_ms - lingered

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        """Take the candidate of ``queue`` for sending: it gets its sequence, if it has none, and is outstanding."""
        batch = queue.candidate()
        assert batch is not None
        queue.waiting.remove(batch)
        batch.full = True
        if self.idempotent and batch.base_sequence == NO_SEQUENCE:
            batch.set_producer_state(queue.producer_id, queue.producer_epoch, queue.next_sequence)
            queue.next_sequence = increment_sequence(queue.next_sequence, batch.count)
        if batch not in queue.outstanding:
            queue.outstanding.append(batch)
        batch.in_flight = True
        batch.attempts += 1
        return batch

    # ------------------------------------------------------------ outcomes

    def complete(self, batch: ProducerBatch, result: BatchResult) -> None:
        """The broker has the batch."""
        queue = self.queues[batch.tp]
        queue.forget(batch)
        batch.in_flight = False
        self._release(batch)
        batch.resolve(result=result)

    def fail(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Give the batch up. If it had a sequence, nothing behind it fits any more: the partition needs a new epoch."""
        queue = self.queues[batch.tp]
        queue.forget(batch)
        batch.in_flight = False
        if batch.base_sequence != NO_SEQUENCE:
            queue.bump_needed = True
        self._release(batch)
        batch.resolve(error=error)

    def retry(self, batch: ProducerBatch, retry_at_ms: float) -> None:
        """Send the batch again, unchanged, not before ``retry_at_ms``."""
        batch.retry_at_ms = retry_at_ms
        self.queues[batch.tp].requeue(batch)

    def renumber(self, batch: ProducerBatch, retry_at_ms: float) -> None:
        """Send the batch again with a new sequence: the broker refused the one it had."""
        batch.refused = True
        self.queues[batch.tp].bump_needed = True
        self.retry(batch, retry_at_ms)

    def split(self, batch: ProducerBatch, now_ms: float) -> None:
        """Replace a batch that was refused as too large by two halves at the front of its partition.

        The halves take new sequences, so the partition starts a new epoch once the wire is empty.
        """
        queue = self.queues[batch.tp]
        records = RecordBatch(batch.encode()).records()
        middle = (len(records) + 1) // 2
        halves: list[tuple[int, ProducerBatch]] = []
        for first, part in ((0, records[:middle]), (middle, records[middle:])):
            half = ProducerBatch(batch.tp, BatchBuilder(self.compression, 2**31 - 1), batch.created_ms)
            for record in part:
                half.builder.append(record.key, record.value, record.headers, record.timestamp)
            half.full = True
            half.charged_bytes = half.builder.size_bytes
            halves.append((first, half))
        had_sequence = batch.base_sequence != NO_SEQUENCE
        at = queue.outstanding.index(batch) if batch in queue.outstanding else 0
        queue.forget(batch)
        batch.in_flight = False
        if had_sequence:
            queue.bump_needed = True
            # Kept in order with what else is outstanding; ``adopt`` numbers them all anew.
            queue.outstanding[at:at] = [half for _, half in halves]
            for _, half in halves:
                half.refused = True
        for _, half in reversed(halves):
            half.retry_at_ms = now_ms
            if had_sequence:
                queue.requeue(half)
            else:
                queue.waiting.appendleft(half)
        self.buffered_bytes += sum(half.charged_bytes for _, half in halves)
        self._release(batch)
        batch.resolve(parts=halves)

    def expire(self, now_ms: float) -> list[ProducerBatch]:
        """Fail every batch older than ``delivery_timeout_ms`` and return them.

        One that is on the wire stays among the outstanding until its answer comes, so no newer one overtakes it.
        """
        expired: list[ProducerBatch] = []
        for queue in self.queues.values():
            for batch in [*queue.outstanding, *queue.waiting]:
                if batch.resolved or now_ms < batch.created_ms + self.delivery_timeout_ms:
                    continue
                expired.append(batch)
                error = KafkaTimeoutError(
                    f"{batch.count} records for {batch.tp} were not acknowledged within "
                    f"{self.delivery_timeout_ms:.0f} ms ({batch.attempts} attempts)"
                )
                if batch.in_flight:
                    queue.bump_needed = queue.bump_needed or batch.base_sequence != NO_SEQUENCE
                    self._release(batch)
                    batch.resolve(error=error)
                else:
                    self.fail(batch, error)
        return expired

    def settle_expired(self, batch: ProducerBatch) -> None:
        """The answer to a batch that had expired came: it only leaves the books."""
        batch.in_flight = False
        self.queues[batch.tp].forget(batch)

    def abort(self, error: KafkaError) -> None:
        """Fail everything not acknowledged."""
        for batch in self.unresolved():
            batch.in_flight = False
            self.fail(batch, error)

    def unresolved(self) -> list[ProducerBatch]:
        """Every batch whose fate is open, oldest first within a partition."""
        found: list[ProducerBatch] = []
        for queue in self.queues.values():
            found += [batch for batch in queue.outstanding if not batch.resolved]
            found += [batch for batch in queue.waiting if not batch.resolved and batch not in queue.outstanding]
        return found

    def oldest_deadline_ms(self) -> float:
        """When the oldest batch expires; ``inf`` when there is none. One that has expired on the wire is past that."""
        oldest = float("inf")
        for queue in self.queues.values():
            for batches in (queue.outstanding, queue.waiting):
                head = next((batch for batch in batches if not batch.resolved), None)
                if head is not None:
                    oldest = min(oldest, head.created_ms + self.delivery_timeout_ms)
        return oldest

    def _release(self, batch: ProducerBatch) -> None:
        self.buffered_bytes -= batch.charged_bytes
        batch.charged_bytes = 0


class Outcome(enum.Enum):
    """What the producer does with the answer to a batch (Kafka's ``Sender.completeBatch``)."""

    COMPLETE = "complete"
    RETRY = "retry"
    SPLIT = "split"
    RENUMBER = "renumber"
    """The broker has lost or never had this producer's state: retry under a new epoch."""
    FAIL = "fail"


def decide(error: ErrorCode, batch: ProducerBatch, queue: PartitionQueue, *, retries: int) -> Outcome:
    """The ``Outcome`` for ``error`` in the answer to ``batch``; ``retries`` is the producer's setting."""
    if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return Outcome.COMPLETE
    if error is ErrorCode.MESSAGE_TOO_LARGE:
        return Outcome.SPLIT if batch.count > 1 else Outcome.FAIL
    if batch.attempts > retries:
        return Outcome.FAIL
    if batch.base_sequence != NO_SEQUENCE:
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Behind a batch whose fate is unknown the gap is expected, and closes when that one is resent.
            unknown = next((b for b in queue.outstanding if not b.refused), batch)
            return Outcome.RENUMBER if unknown is batch else Outcome.RETRY
        if error in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH):
            return Outcome.RENUMBER
    return Outcome.RETRY if error.retriable else Outcome.FAIL


def check_record_size(
    key: bytes | None, value: bytes | None, headers: Sequence[Header], max_request_size: int, buffer_memory: int
) -> None:
    """Raise MESSAGE_TOO_LARGE for a record that could never be sent."""
    size = estimate_batch_bytes(key, value, headers)
    if size > max_request_size:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"record of {size} bytes, max_request_size is {max_request_size}")
    if size > buffer_memory:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"record of {size} bytes, buffer_memory is {buffer_memory}")
