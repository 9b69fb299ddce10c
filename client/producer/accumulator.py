"""Holds the records that wait to be sent, per partition, and processes the outcomes of batches. No IO, no clock.

A ``PartitionQueue`` holds the batches of one partition in order. ``waiting`` has unsent batches; the last of them may
still take records. ``outstanding`` has batches that are sent and not answered, in sequence order. A batch whose outcome
is unknown is sent again unchanged, so that the broker can recognize a duplicate. Such a batch goes back to the front of
``waiting``, and no newer batch is sent before it. All times are milliseconds of one monotonic clock given by the
caller. ``client.producer.placement_while_resized`` describes the effects of a resize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.client.cluster import TopicInfo
from anabranch.client.errors import KafkaError, KafkaTimeoutError, OutcomeUnknownError
from anabranch.client.producer.callbacks import Callbacks
from anabranch.client.producer.partition_queue import PartitionQueue
from anabranch.client.producer.partitioner import StickyPartitioner, cached_place
from anabranch.client.producer.placement_while_resized import TopicPlacement
from anabranch.client.producer.producer_batch import BatchResult, ProducerBatch, RecordHandle
from anabranch.client.producer.unwritten_records_placed_again import Placing, Replaced, Replacement
from anabranch.protocol.batch_builder import BatchBuilder
from anabranch.protocol.batch_layout import Header
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.plurals import counted, one_or_many
from anabranch.protocol.records import RecordBatch, increment_sequence
from anabranch.protocol.sentinels import NO_INCARNATION, NO_SEQUENCE
from anabranch.protocol.types import TopicPartition

GIVES_WAY_AFTER_MS = 2
"""The longest time for which a loop of sends keeps the sender from running."""
MAX_OUTSTANDING_BATCHES = 5
"""Batches of one producer and partition whose sequences a broker remembers (Kafka's ProducerStateEntry)."""


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
        sticky: StickyPartitioner | None = None,
    ) -> None:
        self.batch_size = batch_size
        self.linger_ms = linger_ms
        self.buffer_memory = buffer_memory
        self.delivery_timeout_ms = delivery_timeout_ms
        self.compression = compression
        self.compression_level = compression_level
        self.idempotent = idempotent
        self._max_outstanding = min(max_in_flight, MAX_OUTSTANDING_BATCHES) if idempotent else max_in_flight
        self.callbacks = Callbacks()
        self.queues: dict[tuple[str, int], PartitionQueue] = {}
        self.topics: dict[str, TopicPlacement] = {}
        self._queues_of: dict[str, list[PartitionQueue]] = {}
        self.buffered_bytes = 0
        self._sticky = sticky
        """Chooses partitions; None if the user's function does."""
        self.gives_way_at_ms = 0
        """The wall-clock time (ms, like a record's timestamp) from which a loop of sends lets the sender run."""
        self.gives_way = False
        """Whether the loop of sends should let the sender run."""
        self.flushing = 0
        """Number of running calls of flush and close. While it is above 0, no batch lingers."""

    def placement(self, info: TopicInfo) -> TopicPlacement:
        """The placement of a topic's records; if there is none yet, it is created with ``info``."""
        topic = self.topics.get(info.name)
        if topic is None:
            topic = self.topics[info.name] = TopicPlacement(info)
            self._queues_of[info.name] = []
        return topic

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """The queue of a partition, created if there is none."""
        tp = TopicPartition(topic, partition)
        queue = self.queues.get(tp)
        if queue is None:
            queue = self.queues[tp] = PartitionQueue(tp, self.topics[topic])
            self._queues_of[topic].append(queue)
        return queue

    def queues_of(self, topic: TopicPlacement) -> Sequence[PartitionQueue]:
        """The queues of a topic's partitions."""
        return self._queues_of[topic.name]

    # ------------------------------------------------------------ taking records

    def accept(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Sequence[Header],
        timestamp: int,
        now_ms: int,
        size: int,
    ) -> RecordHandle | None:
        """Add a judged record to the open batch of its partition, which is the usual case of ``Producer._append``.

        Returns None in any other case; the record is then not added.
        """
        placement = self.topics.get(topic)
        if placement is None or (self.buffered_bytes + size > self.buffer_memory and self.buffered_bytes):
            return None
        info = placement.info
        if not info.partitions:
            return None
        initial, undeleted = info.layout
        chosen = partition
        if chosen is None:
            if self._sticky is None:
                return None
            if key is None:
                chosen = self._sticky.place(info, None)
            else:
                chosen = cached_place(key, initial, undeleted)
        if chosen >= undeleted or chosen not in info.partitions or (placement.watches_keys and key is not None):
            return None
        handle = self.append(topic, chosen, key, value, headers, timestamp, partition is not None)
        if handle is not None and now_ms >= self.gives_way_at_ms:
            self.give_way(now_ms)
        return handle

    def give_way(self, now_ms: int) -> None:
        """Let the sender run soon, and again after some time."""
        self.gives_way_at_ms = now_ms + GIVES_WAY_AFTER_MS
        self.gives_way = True

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        timestamp: int,
        pinned: bool = False,
    ) -> RecordHandle | None:
        """Add a record to the partition's open batch. Returns None if no batch is open or the record does not fit.

        ``pinned``: the user chose the partition, so a resize does not move the record.
        """
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
        if pinned:
            batch.pin(index)
        size = builder.size_bytes
        self.buffered_bytes += size - batch.charged_bytes
        batch.charged_bytes = size
        return RecordHandle(batch, index, timestamp, self.callbacks)

    def append_to_new_batch(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        timestamp: int,
        now_ms: float,
        *,
        pinned: bool = False,
    ) -> RecordHandle:
        """Begin a batch with a record. ``placement`` was called for the topic before."""
        queue = self.queue(topic, partition)
        builder = BatchBuilder(self.compression, self.batch_size, level=self.compression_level)
        batch = ProducerBatch(queue.tp, builder, now_ms, queue.topic.layout)
        builder.append(key, value, headers, timestamp)
        if pinned:
            batch.pin(0)
        batch.charged_bytes = builder.size_bytes
        self.buffered_bytes += batch.charged_bytes
        queue.waiting.append(batch)
        return RecordHandle(batch, 0, timestamp, self.callbacks)

    def append_batch(
        self, topic: str, partition: int, builder: BatchBuilder, timestamp: int, now_ms: float
    ) -> RecordHandle:
        """Take a batch that the user made for a partition. Returns the handle of its first record."""
        queue = self.queue(topic, partition)
        batch = ProducerBatch(queue.tp, builder, now_ms, queue.topic.layout)
        batch.pinned = set(range(builder.count))
        batch.full = True
        batch.charged_bytes = builder.size_bytes
        self.buffered_bytes += batch.charged_bytes
        queue.waiting.append(batch)
        return RecordHandle(batch, 0, timestamp, self.callbacks)

    def has_waiting(self, topic: str, partition: int) -> bool:
        """Whether a partition has batches that were not sent."""
        queue = self.queues.get((topic, partition))
        return queue is not None and bool(queue.waiting)

    def has_room(self, size: int, queued_bytes: int = 0) -> bool:
        """Whether ``size`` more bytes fit into the buffer after the queued ones. An empty buffer takes any size."""
        before = self.buffered_bytes + queued_bytes
        return before + size <= self.buffer_memory or before == 0

    def fits(self, topic: str, partition: int | None, size: int, queued_bytes: int) -> bool:
        """Whether a record can probably be appended at once, after ``queued_bytes`` of others. For any thread."""
        placement = self.topics.get(topic)
        if placement is None or not placement.info.partitions or not self.has_room(size, queued_bytes):
            return False
        info = placement.info
        return partition is None or (partition in info.partitions and partition < info.layout[1])

    # ------------------------------------------------------------ giving batches

    def sendable(self, queue: PartitionQueue, now_ms: float, *, memory_short: bool) -> tuple[bool, float]:
        """Whether the first batch of ``queue`` may be sent now; if not, also the milliseconds until it may.

        The time is ``inf`` if the batch waits for a response. The rules are those of Kafka's
        ``RecordAccumulator.batchReady`` and ``shouldStopDrainBatchesForPartition``.
        """
        head = queue.candidate()
        if head is None:
            return False, float("inf")
        if head.retry_at_ms > now_ms:
            return False, head.retry_at_ms - now_ms
        if head in queue.outstanding:
            return True, 0.0
        limit = self._max_outstanding if queue.is_established or not self.idempotent else 1
        if len(queue.outstanding) + queue.overtook >= limit:
            return False, float("inf")
        lingered = now_ms - head.created_ms
        if head.full or len(queue.waiting) > 1 or self.flushing or memory_short or lingered >= self.linger_ms:
            return True, 0.0
        return False, self.linger_ms - lingered

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        """Take the candidate of ``queue`` for sending: it gets a sequence if needed, and becomes outstanding."""
        batch = queue.candidate()
        assert batch is not None
        queue.waiting.remove(batch)
        batch.full = True
        if self.idempotent and batch.base_sequence == NO_SEQUENCE:
            batch.set_producer_state(queue.producer_id, queue.producer_epoch, queue.next_sequence)
            queue.next_sequence = increment_sequence(queue.next_sequence, batch.count)
        if batch not in queue.outstanding:
            queue.outstanding.append(batch)
        if not batch.lost:
            part = queue.topic.info.partitions.get(queue.tp.partition)
            batch.incarnation = part.incarnation if part is not None else NO_INCARNATION
        batch.is_unwritten = False
        batch.in_flight = True
        batch.attempts += 1
        return batch

    # ------------------------------------------------------------ outcomes

    def complete(self, batch: ProducerBatch, result: BatchResult) -> None:
        """Complete a batch that the broker has stored."""
        queue = self.queues[batch.tp]
        queue.establish(batch)
        queue.forget(batch)
        batch.in_flight = False
        self._release(batch)
        batch.resolve(result=result)

    def fail(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Give the batch up. If the batch had a sequence, a gap follows, so the partition needs a new epoch."""
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
        """Send the batch again with a new sequence, because the broker refused its sequence."""
        batch.is_unwritten = True
        self.queues[batch.tp].bump_needed = True
        self.retry(batch, retry_at_ms)

    def refuse(self, batch: ProducerBatch, now_ms: float, pause_ms: Callable[[int], float]) -> bool:
        """Note that a broker refused the batch's layout. Returns whether to look for newer metadata.

        While there is no newer metadata, the topic's refused batches are tried again together. ``pause_ms`` gives the
        pause for the number of refusals.
        """
        queue = self.queues[batch.tp]
        topic = queue.topic
        again = queue.refuse(batch, now_ms)
        if again:
            topic.retry_at_ms = now_ms + pause_ms(topic.refusals)
        batch.retry_at_ms = topic.retry_at_ms
        return again

    def split(self, batch: ProducerBatch, now_ms: float) -> None:
        """Replace a batch that was refused as too large by two halves, which are sent one after the other."""
        queue = self.queues[batch.tp]
        records = RecordBatch(batch.encode()).records()
        middle = (len(records) + 1) // 2
        halves: list[ProducerBatch] = []
        moved: list[tuple[ProducerBatch, int]] = []
        for part in (records[:middle], records[middle:]):
            half = ProducerBatch(batch.tp, BatchBuilder(self.compression, 2**31 - 1), batch.created_ms, batch.layout)
            for index, record in enumerate(part):
                half.builder.append(record.key, record.value, record.headers, record.timestamp)
                if batch.pinned is not None and len(moved) in batch.pinned:
                    half.pin(index)
                moved.append((half, index))
            half.full = True
            half.charged_bytes = half.builder.size_bytes
            halves.append(half)
        for half in halves:
            half.retry_at_ms = now_ms
        queue.substitute(batch, halves)
        self.buffered_bytes += sum(half.charged_bytes for half in halves)
        self._release(batch)
        batch.resolve(moved=moved)

    # ------------------------------------------------------------ resizes

    def give_up_gone(self, topic: TopicPlacement) -> int:
        """Decide the outcome of batches for removed partitions. Returns the number of records of unknown outcome."""
        unknown = 0
        for queue in self.queues_of(topic):
            for batch in [*queue.outstanding]:
                if batch.in_flight or not topic.is_gone(queue.tp.partition, batch.incarnation):
                    continue
                if batch.lost:
                    unknown += batch.count
                    self.fail(batch, OutcomeUnknownError(queue.tp, batch.count))
                else:
                    batch.is_unwritten = True
        return unknown

    def replace(self, topic: TopicPlacement, placing: Placing) -> Replaced | None:
        """Do one step of placing the topic's remaining records by its next layout.

        Returns None while the outcome of a sent batch is open or more steps are needed. If more steps are needed,
        ``topic.replacement`` is set.
        """
        work = topic.replacement
        if work is None:
            after = topic.next
            if after is None or not topic.confirmed or not all(queue.may_adopt for queue in self.queues_of(topic)):
                return None
            work = topic.replacement = Replacement(topic.info, after, placing)
            work.take([queue.drain() for queue in self.queues_of(topic)])
        work.step()
        if not work.is_unfinished:
            work.take([queue.drain() for queue in self.queues_of(topic)])  # records sent meanwhile
        if work.is_unfinished:
            return None
        replaced = work.result()
        topic.advance(work.after)
        for partition, batches in replaced.batches.items():
            self.queue(topic.name, partition).waiting.extend(batches)
            for batch in batches:
                self.buffered_bytes += batch.builder.size_bytes - batch.charged_bytes
                batch.charged_bytes = batch.builder.size_bytes
        for batch, moved in replaced.sources:
            self._release(batch)
            batch.resolve(moved=moved)
        return replaced

    # ------------------------------------------------------------ ends

    def expire(self, now_ms: float, why: Callable[[ProducerBatch], str] = lambda _: "") -> list[ProducerBatch]:
        """Fail every batch older than ``delivery_timeout_ms`` and return them; ``why`` gives the end of the message.

        A batch in flight stays outstanding until its response arrives, so that no newer batch overtakes it.
        """
        expired: list[ProducerBatch] = []
        for queue in self.queues.values():
            for batch in [*queue.outstanding, *queue.waiting]:
                if batch.resolved or now_ms < batch.created_ms + self.delivery_timeout_ms:
                    continue
                expired.append(batch)
                error = KafkaTimeoutError(
                    f"{counted(batch.count, 'record')} for {batch.tp} {one_or_many(batch.count, 'was', 'were')} not "
                    f"acknowledged within {self.delivery_timeout_ms:.0f} ms ({counted(batch.attempts, 'attempt')})"
                    f"{why(batch)}"
                )
                if batch.in_flight:
                    queue.bump_needed = queue.bump_needed or batch.base_sequence != NO_SEQUENCE
                    self._release(batch)
                    batch.resolve(error=error)
                else:
                    self.fail(batch, error)
        return expired

    def settle_expired(self, batch: ProducerBatch) -> None:
        """Remove an expired batch whose response has arrived."""
        batch.in_flight = False
        self.queues[batch.tp].forget(batch)

    def abort(self, error: KafkaError) -> None:
        """Fail all batches that are not acknowledged."""
        for batch in self.unresolved():
            batch.in_flight = False
            self.fail(batch, error)
        for topic in self.topics.values():
            topic.replacement = None

    def forget(self, error: KafkaError) -> None:
        """Give the error to all handles without an outcome. Nobody is woken: no loop runs."""
        for batch in self.unresolved():
            batch.error = error

    def unresolved(self) -> list[ProducerBatch]:
        """Every batch whose outcome is open, oldest first within a partition."""
        found: list[ProducerBatch] = []
        for topic in self.topics.values():
            if topic.replacement is not None:
                found += topic.replacement.unresolved()
        for queue in self.queues.values():
            found += [batch for batch in queue.outstanding if not batch.resolved]
            found += [batch for batch in queue.waiting if not batch.resolved and batch not in queue.outstanding]
        return found

    def oldest_deadline_ms(self) -> float:
        """The time when the oldest batch expires, except for already expired batches; ``inf`` if there is no batch."""
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
