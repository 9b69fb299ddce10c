"""One batch that is sent, and the handles of its records. No IO, no clock."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio

from anabranch.client import arguments
from anabranch.client.errors import IllegalStateError, KafkaError, RefusedWithBatchError, error_for
from anabranch.client.producer.callbacks import Callbacks
from anabranch.protocol.batch_builder import BatchBuilder
from anabranch.protocol.plurals import counted, one_or_many
from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION, NO_OFFSET, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionLayout

Callback = Callable[[], object]


class RecordMetadata(NamedTuple):
    """The position of a written record. ``offset`` is -1 with acks=0, or for a duplicate whose offset is unknown."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds: the record's own time. With message.timestamp.type=LogAppendTime: the broker's time."""
    timestamp_type: int
    """0 CreateTime, 1 LogAppendTime."""
    log_start_offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


OnDelivery = Callable[[KafkaError | None, RecordMetadata], object]
"""A function of a record's error, or None, and of its place. After an error the offset of the place is -1."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The broker's answer for one batch."""

    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    record_errors: Mapping[int, str] = field(default_factory=dict)
    """The faulty records of a refused batch, by index, with the error of each."""


class ProducerBatch:
    """Records of one partition that are sent together.

    A batch is resolved exactly once: with a result, with an error, or because its records moved into other batches.
    """

    __slots__ = (
        "_event",
        "attempts",
        "base_sequence",
        "builder",
        "callbacks",
        "charged_bytes",
        "created_ms",
        "data",
        "error",
        "failure",
        "full",
        "in_flight",
        "incarnation",
        "is_unwritten",
        "layout",
        "lost",
        "moved",
        "pinned",
        "producer_epoch",
        "producer_id",
        "record_errors",
        "result",
        "retry_at_ms",
        "tp",
    )

    def __init__(self, tp: TopicPartition, builder: BatchBuilder, created_ms: float, layout: PartitionLayout) -> None:
        self.tp = tp
        self.builder = builder
        self.created_ms = created_ms
        self.layout = layout
        """The layout by which its records were placed. Every attempt names this layout."""
        self.pinned: set[int] | None = None
        """Indices of the records whose partition the user chose."""
        self.charged_bytes = 0
        self.full = False
        self.attempts = 0
        self.retry_at_ms = 0.0
        self.in_flight = False
        self.is_unwritten = True
        """Whether no broker has the batch: it was never sent, or never under its present sequence, or it was refused.

        Then the batch may take another sequence. Otherwise its outcome is unknown.
        """
        self.lost = False
        """Whether the batch may have been written by an attempt without a clear response."""
        self.failure: str | None = None
        """The error of the last attempt, if the batch is to be sent again."""
        self.incarnation = NO_INCARNATION
        """The partition's incarnation when the batch was sent first of all that may have written it; -1 if unknown."""
        self.data: bytes | None = None
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch: int = NO_EPOCH
        self.base_sequence: int = NO_SEQUENCE
        self.result: BatchResult | None = None
        self.error: KafkaError | None = None
        self.record_errors: Mapping[int, str] = {}
        """The faulty records that the broker named when it refused the batch, by index; empty if none was named."""
        self.moved: list[tuple[ProducerBatch, int]] | None = None
        """For each record, the batch that has the record now, and the record's index in that batch."""
        self.callbacks: list[tuple[int, Callback]] | None = None
        """By the index of a record, what to call once its outcome is known."""
        self._event: anyio.Event | None = None

    @property
    def count(self) -> int:
        return self.builder.count

    @property
    def resolved(self) -> bool:
        return self.result is not None or self.error is not None or self.moved is not None

    def encode(self) -> bytes:
        """The batch's bytes. They are built once, so that a retry sends the same bytes again."""
        if self.data is None:
            self.full = True
            self.data = self.builder.build(
                producer_id=self.producer_id, producer_epoch=self.producer_epoch, base_sequence=self.base_sequence
            )
        return self.data

    def pin(self, index: int) -> None:
        """Pin the record at ``index`` to the partition that the user chose. It goes to no other partition."""
        if self.pinned is None:
            self.pinned = set()
        self.pinned.add(index)

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Give the batch its place in the producer's sequence. Bytes that were built for another place are dropped."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.data = None

    def resolve(
        self,
        *,
        result: BatchResult | None = None,
        error: KafkaError | None = None,
        moved: list[tuple[ProducerBatch, int]] | None = None,
    ) -> None:
        """Set the outcome and wake the tasks that wait for it. The first outcome stands."""
        if self.resolved:
            return
        self.result, self.error, self.moved = result, error, moved
        self.data = None
        if self._event is not None:
            self._event.set()
        for index, callback in self.callbacks or ():
            if self.moved is None:
                callback()
            else:
                batch, place = self.moved[index]
                batch.when_resolved(place, callback)
        self.callbacks = None

    def when_resolved(self, index: int, callback: Callback) -> None:
        """Call ``callback`` once the outcome of the record at ``index`` is known; at once if it is known already."""
        if self.moved is not None:
            batch, place = self.moved[index]
            batch.when_resolved(place, callback)
        elif self.resolved:
            callback()
        else:
            self.callbacks = self.callbacks or []
            self.callbacks.append((index, callback))

    def error_of(self, index: int) -> KafkaError | None:
        """The error of the record at ``index``; None if the batch did not fail."""
        error = self.error
        if error is None or not self.record_errors:
            return error
        message = self.record_errors.get(index)
        if message is not None:
            return error_for(error.code, f"{self.tp}: {message}")
        refused = len(self.record_errors)
        others = f"{counted(refused, 'other record')} of the batch {one_or_many(refused, 'was', 'were')} refused"
        return RefusedWithBatchError(error.code, f"{self.tp}: {others}, so this record was not written: send it again")

    async def wait(self) -> None:
        """Return once the batch is resolved."""
        if self.resolved:
            return
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class RecordHandle:
    """A sent record. Await the handle for the ``RecordMetadata``, or for the ``KafkaError`` that stopped the record.

    The handle may be awaited at any time, any number of times, or never.
    """

    __slots__ = ("_batch", "_callbacks", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    @property
    def topic(self) -> str:
        return self._batch.tp.topic

    @property
    def partition(self) -> int:
        """The partition of the record: where it was written or will be sent. A resize of the topic may change this."""
        return self._locate()[0].tp.partition

    @property
    def layout(self) -> PartitionLayout:
        """The layout by which the record's partition was chosen."""
        return self._locate()[0].layout

    def done(self) -> bool:
        """Whether awaiting would return, or raise, at once. For any thread."""
        batch, _ = self._locate()  # the records may move to other batches after this line
        return batch.result is not None or batch.error is not None

    @property
    def failed(self) -> bool:
        """Whether awaiting would raise at once."""
        return self._locate()[0].error is not None

    def _locate(self) -> tuple[ProducerBatch, int]:
        """The batch that holds the record now and the record's index in it."""
        batch, index = self._batch, self._index
        while batch.moved is not None:
            batch, index = batch.moved[index]
        return batch, index

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        if self._batch.result is None:
            yield from self.wait().__await__()
        return self.result()

    async def wait(self) -> RecordMetadata:
        """Wait for the outcome; the same as ``await handle``."""
        while not (batch := self._locate()[0]).resolved:
            await batch.wait()
        return self.result()

    def exception(self) -> KafkaError | None:
        """The error that stopped the record; None if it was written. Raises ``IllegalStateError`` before ``done``."""
        batch, index = self._locate()
        if not batch.resolved:
            raise IllegalStateError(f"the outcome of this record for {batch.tp} is not known yet: await the handle")
        return batch.error_of(index)

    def result(self) -> RecordMetadata:
        """The place of the record, or its error. Raises ``IllegalStateError`` before ``done``. For any thread."""
        batch = self._batch
        if batch.result is None and (error := self.exception()) is not None:
            raise error
        return self._metadata()

    def _metadata(self) -> RecordMetadata:
        """The place of the record; its offset is -1 if it was not written."""
        batch, index = self._batch, self._index
        if batch.moved is not None:
            batch, index = self._locate()
        result = batch.result or BatchResult()
        topic, partition = batch.tp
        base_offset, stamp = result.base_offset, result.log_append_time_ms
        fields = (
            topic,
            partition,
            base_offset + index if base_offset >= 0 else NO_OFFSET,
            stamp if stamp >= 0 else self._timestamp,
            1 if stamp >= 0 else 0,
            result.log_start_offset,
        )
        return tuple.__new__(RecordMetadata, fields)  # half the time of RecordMetadata(...)

    def add_done_callback(self, callback: Callable[[RecordHandle], object]) -> None:
        """Call ``callback`` with this handle once its outcome is known; at once if it is known already.

        Callbacks run one after the other in the event loop, and delay the sender while they run. They may use
        ``result()`` and ``exception()``. The error of a callback is logged, and stops nothing else.
        """
        arguments.function("callback", callback)
        self._when_done(lambda: callback(self))

    def call_on_delivery(self, callback: OnDelivery) -> None:
        """Call ``callback`` with the error or None, and with the place, once the outcome is known."""
        self._when_done(lambda: callback(self.exception(), self._metadata()))

    def _when_done(self, callback: Callback) -> None:
        batch, index = self._locate()
        batch.when_resolved(index, lambda: self._callbacks.add(callback))
        if batch.resolved:
            self._callbacks.run()
