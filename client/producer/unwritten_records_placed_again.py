"""Takes a topic's unsent batches apart and places each record again, for a new layout. No IO, no clock.

The records of a key are in one queue, in order. They are taken out in that order, and appended in that order to the
key's new partition. No batch of the topic is in flight meanwhile (``placement_while_resized``). A partition that gains
keys takes its first record only after the partitions that lose keys have stopped.

A full buffer is seconds of work, so the work is done in steps. Between the steps other tasks run. The user continues
sending, and the new records go into the same queues by the old layout. They are placed next, until there are no new
records. Only then is any record sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.client.cluster import TopicInfo
from anabranch.client.errors import ErrorCode, KafkaError, PartitionMarkedError
from anabranch.client.producer.partitioner import Partitioner
from anabranch.client.producer.producer_batch import ProducerBatch
from anabranch.protocol.batch_builder import BatchBuilder
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import MOVED_HEADER, ancestor_below
from anabranch.protocol.records import Record, RecordBatch
from anabranch.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from anabranch.protocol.types import TopicPartition

RECORDS_PER_STEP = 256
"""Records per step, after which other tasks may run: a millisecond or two. A batch is decoded in one piece."""

_MERGE_WINDOW_MS = 1000.0
"""The longest time between the starts of old batches whose records may share a new batch.

All records of a batch expire with its oldest record.
"""


@dataclass(frozen=True, slots=True)
class Placing:
    """How records are placed. ``by_key``: by linear hashing; else ``place`` is the user's own partitioner."""

    place: Partitioner
    by_key: bool
    batch_size: int
    compression: CompressionType
    compression_level: int | None
    records_per_step: int = RECORDS_PER_STEP


class Replaced(NamedTuple):
    """The result: by partition, the batches to send in order; and counts for the log."""

    batches: dict[int, list[ProducerBatch]]
    sources: list[tuple[ProducerBatch, list[tuple[ProducerBatch, int]]]]
    """The batches whose records moved, and each record's new batch."""
    moved: int
    """Records in another partition than before."""
    failed: int


def _oldest_first(queues: list[list[ProducerBatch]]) -> list[ProducerBatch]:
    """All batches by age; batches of one queue stay in order. Whatever is placed first is sent and expires first."""
    dated: list[tuple[float, int, ProducerBatch]] = []
    for batches in queues:
        oldest = 0.0
        for batch in batches:
            oldest = max(oldest, batch.created_ms)
            dated.append((oldest, len(dated), batch))
    return [batch for _, _, batch in sorted(dated, key=lambda d: d[:2])]


def _partitions_losing_keys(before: TopicInfo, after: TopicInfo) -> frozenset[int] | None:
    """The partitions whose keys may belong to another partition under ``after``; None for all partitions."""
    (initial, undeleted), (initial_after, undeleted_after) = before.layout, after.layout
    if before.incarnation != after.incarnation or initial != initial_after or not after.ordered_delivery:
        return None
    if undeleted_after <= undeleted:
        return frozenset(range(undeleted_after, undeleted))
    return frozenset(ancestor_below(p, initial, undeleted) for p in range(undeleted, undeleted_after))


class Replacement:
    """Places records again in steps: they were placed by the layout ``before``, and are placed by ``after``.

    A batch without moving records is kept as it is, with the new layout. ``take`` may be called again for batches that
    were added to the queues meanwhile.
    """

    __slots__ = (
        "_after",
        "_layout",
        "_losing",
        "_open",
        "_pending",
        "_placing",
        "_records",
        "_taken",
        "batches",
        "failed",
        "moved",
        "sources",
    )

    def __init__(self, before: TopicInfo, after: TopicInfo, placing: Placing) -> None:
        self._after = after
        self._taken: list[ProducerBatch] = []
        self._pending: deque[ProducerBatch] = deque()
        self._records: Iterator[None] | None = None
        """The batch that is being taken apart: each item handles one record."""
        self._layout = after.named_layout
        self._placing = placing
        self._losing = _partitions_losing_keys(before, after) if placing.by_key else None
        self._open: dict[int, ProducerBatch] = {}
        self.batches: dict[int, list[ProducerBatch]] = {}
        self.sources: list[tuple[ProducerBatch, list[tuple[ProducerBatch, int]]]] = []
        self.moved = 0
        self.failed = 0

    @property
    def after(self) -> TopicInfo:
        """The layout by which records are placed."""
        return self._after

    def take(self, queues: list[list[ProducerBatch]]) -> None:
        """Add batches to place, after all batches taken before. ``queues`` has each queue's batches, in order."""
        batches = _oldest_first(queues)
        self._taken += batches
        self._pending += batches

    @property
    def is_unfinished(self) -> bool:
        return self._records is not None or bool(self._pending)

    def step(self) -> None:
        """Place a bounded number of records."""
        left = self._placing.records_per_step
        while left > 0 and self.is_unfinished:
            if self._records is None:
                self._records = self._add(self._pending.popleft())
            for _ in self._records:
                left -= 1
                if left == 0:
                    return
            self._records = None
            left -= 1

    def unresolved(self) -> list[ProducerBatch]:
        """The taken batches without an outcome. Their records are in no queue at the moment."""
        return [batch for batch in self._taken if not batch.resolved]

    def result(self) -> Replaced:
        """The result for all batches that were taken."""
        return Replaced(self.batches, self.sources, self.moved, self.failed)

    def _add(self, batch: ProducerBatch) -> Iterator[None]:
        partition = batch.tp.partition
        if self._losing is not None and partition not in self._losing and batch.pinned is None:
            self._keep(batch)
            return
        records = RecordBatch(batch.encode()).records()
        targets: list[int | KafkaError] = []
        for index, record in enumerate(records):
            targets.append(self._target(batch, index, record))
            yield
        if all(target == partition for target in targets):
            self._keep(batch)
            return
        moved: list[tuple[ProducerBatch, int]] = []
        for index, (record, target) in enumerate(zip(records, targets, strict=True)):
            yield
            if isinstance(target, KafkaError):
                moved.append((_failed(batch, target), 0))
                self.failed += not _is_moved_tombstone(record)
                continue
            pinned = batch.pinned is not None and index in batch.pinned
            moved.append(self._append(batch, record, target, pinned))
            self.moved += target != partition
        self.sources.append((batch, moved))

    def _target(self, batch: ProducerBatch, index: int, record: Record) -> int | KafkaError:
        """The new partition of a record, or the error if the record can go to no partition."""
        after, partition = self._after, batch.tp.partition
        pinned = batch.pinned is not None and index in batch.pinned
        stays = partition < after.layout[1]
        if pinned and _is_moved_tombstone(record):
            # Between the two layouts the key may have been back here. The tombstone would delete newer values.
            return KafkaError(ErrorCode.POLICY_VIOLATION, "the tombstone belongs to the previous layout")
        if pinned:
            return partition if stays else PartitionMarkedError(batch.tp, after.layout[1])
        key = record.key
        if key is None and stays and self._placing.by_key:
            return partition
        try:
            target = self._placing.place(after, key)
        except Exception as error:  # the user's code
            failure = KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"topic {after.name}: the partitioner raised {error!r}"
            )
            failure.__cause__ = error
            return failure
        if not 0 <= target < after.layout[1]:
            return PartitionMarkedError(TopicPartition(after.name, target), after.layout[1])
        return target

    def _keep(self, batch: ProducerBatch) -> None:
        """Keep the batch whole. It was not written, so it gets a new sequence like a new batch."""
        batch.layout = self._layout
        batch.lost = False
        batch.attempts = 0
        batch.retry_at_ms = 0.0
        if batch.base_sequence != NO_SEQUENCE:
            batch.set_producer_state(NO_PRODUCER_ID, NO_EPOCH, NO_SEQUENCE)
        partition = batch.tp.partition
        self.batches.setdefault(partition, []).append(batch)
        self._open.pop(partition, None)

    def _append(self, source: ProducerBatch, record: Record, partition: int, pinned: bool) -> tuple[ProducerBatch, int]:
        target = self._open.get(partition)
        if target is not None and source.created_ms - target.created_ms <= _MERGE_WINDOW_MS:
            index = target.builder.append(record.key, record.value, record.headers, record.timestamp)
        else:
            index = None
        if target is None or index is None:
            target = self._new_batch(source, partition)
            index = target.builder.append(record.key, record.value, record.headers, record.timestamp)
            assert index is not None
        if pinned:
            target.pin(index)
        return target, index

    def _new_batch(self, source: ProducerBatch, partition: int) -> ProducerBatch:
        placing = self._placing
        builder = BatchBuilder(placing.compression, placing.batch_size, level=placing.compression_level)
        batch = ProducerBatch(TopicPartition(self._after.name, partition), builder, source.created_ms, self._layout)
        self._open[partition] = batch
        self.batches.setdefault(partition, []).append(batch)
        return batch


def _failed(source: ProducerBatch, error: KafkaError) -> ProducerBatch:
    batch = ProducerBatch(source.tp, BatchBuilder(), source.created_ms, source.layout)
    batch.resolve(error=error)
    return batch


def _is_moved_tombstone(record: Record) -> bool:
    return record.value is None and any(name == MOVED_HEADER for name, _ in record.headers)
