"""The state of a partition's idempotent and transactional producers (KIP-98, KIP-360), with Kafka 3's rules.

A check changes nothing. A batch is recorded when it is in the file. A producer's last five batches are kept to
recognise a repeated batch. Snapshots have all five, so a repeated batch is recognised after a restart too. (Kafka's
snapshots have only the last batch. If an earlier batch is repeated after a restart, it is written a second time, under
a new producer epoch.)

A batch may be older than the kept batches. If its sequences are at or above the first known sequence, the batch was
written: a producer uses a sequence for another record only if the first record was certainly not written. Such a batch
is neither refused nor written again, but its offset is not known any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from anabranch.broker.log.producer_capture import ProducerCapture
from anabranch.broker.log.producer_snapshot import SnapshotEntry
from anabranch.broker.log.txn_index import AbortedTxn
from anabranch.protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch, increment_sequence, read_control_record
from anabranch.protocol.sentinels import NO_EPOCH, NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP

BATCHES_KEPT = 5
HALF_OF_ALL_SEQUENCES = 2**30
DEFAULT_EXPIRATION_MS = 86_400_000
"""``producer.id.expiration.ms``."""


class AppendOrigin(Enum):
    """The origin of a leader's append."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class BatchMetadata(NamedTuple):
    """A batch that a producer wrote. ``first_offset`` is -1 if ``last_offset`` is only an upper bound."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return increment_sequence(self.last_sequence, -self.offset_delta)


class OngoingTxn:
    """A transaction without a marker below the high watermark. ``last_offset``: the marker's offset, -1 if none."""

    __slots__ = ("first_offset", "last_offset", "producer_id")

    def __init__(self, producer_id: int, first_offset: int) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset
        self.last_offset = NO_OFFSET


class ProducerEntry:
    """One producer."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "first_sequence",
        "last_timestamp",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_KEPT)
        self.first_sequence = NO_SEQUENCE
        """The first known sequence. Every sequence of this epoch from this one to the last sequence was written."""
        self.coordinator_epoch = NO_EPOCH
        self.last_timestamp = NO_TIMESTAMP
        self.txn_first_offset = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        """The kept batch with the same epoch and sequences. For an older batch, only an upper bound of its offset."""
        if batch.producer_epoch != self.epoch:
            return None
        last_sequence, delta = batch.last_sequence, batch.last_offset_delta
        for known in self.batches:
            if known.last_sequence == last_sequence and known.offset_delta == delta:
                return known
        if self.batches and self._is_behind(batch.base_sequence, last_sequence):
            return BatchMetadata(last_sequence, self.last_offset, self.last_offset - NO_OFFSET, NO_TIMESTAMP)
        return None

    def _is_behind(self, first: int, last: int) -> bool:
        """Whether these sequences were written before the kept batches; False if they wrap, or if that is not known."""
        kept = self.batches[0].first_sequence
        return NO_SEQUENCE < self.first_sequence <= first <= last < kept and kept - first < HALF_OF_ALL_SEQUENCES

    def add(self, batch: BatchMetadata) -> None:
        """Record the producer's next batch, which is in the log."""
        if not self.batches or batch.first_sequence != increment_sequence(self.last_sequence, 1):
            self.first_sequence = batch.first_sequence
        self.batches.append(batch)

    def move_to_epoch(self, epoch: int) -> None:
        """Begin a new epoch, which has no batches yet."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()

    def latest(self) -> SnapshotEntry:
        """The producer as it is now, with its last batch."""
        last = self.batches[-1] if self.batches else BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, self.last_timestamp)
        return self._entry(last._replace(timestamp=self.last_timestamp))

    def snapshot(self) -> list[SnapshotEntry]:
        """The entries for the file, one for each kept batch, oldest first. Kafka uses only the last entry."""
        return [*(self._entry(batch) for batch in list(self.batches)[:-1]), self.latest()]

    def _entry(self, batch: BatchMetadata) -> SnapshotEntry:
        return SnapshotEntry(
            self.producer_id,
            self.epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            batch.timestamp,
            self.coordinator_epoch,
            self.txn_first_offset,
        )


class ProducerExpiration:
    """``producer.id.expiration.ms``, which may change while the broker runs: one object for all its partitions."""

    __slots__ = ("ms",)

    def __init__(self, ms: int = DEFAULT_EXPIRATION_MS) -> None:
        self.ms = ms


class ProducerState:
    """All producers of a partition and its transactions."""

    __slots__ = ("_capture", "_expiration", "_ongoing", "_unreplicated", "map_end_offset", "producers")

    def __init__(self, expiration: ProducerExpiration | None = None) -> None:
        self._expiration = expiration or ProducerExpiration()
        self.producers: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, OngoingTxn] = {}  # by first offset; later transactions have higher ones
        self._unreplicated: list[OngoingTxn] = []
        self._capture: ProducerCapture | None = None
        self.map_end_offset = 0
        """The state holds every batch below this offset."""

    # ------------------------------------------------------------ decide

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        """The batch that ``batch`` repeats; None if no such batch is known.

        If the repeated batch is older than the kept batches, its offset is not known: ``first_offset`` is -1, and
        ``last_offset`` is an upper bound.
        """
        entry = self.producers.get(batch.producer_id) if batch.producer_id >= 0 else None
        return None if entry is None else entry.find_duplicate(batch)

    def knows(self, producer_id: int, epoch: int) -> bool:
        """Whether the next sequence of the producer in an epoch is known."""
        entry = self.producers.get(producer_id)
        return entry is not None and entry.epoch >= epoch

    def check(self, batch: RecordBatch, origin: AppendOrigin) -> BatchMetadata | None:
        """Raise unless a data batch may be appended; returns the batch that it repeats, or None.

        Raises INVALID_PRODUCER_EPOCH 47 for an epoch below the known epoch, OUT_OF_ORDER_SEQUENCE_NUMBER 45 for a gap
        or a repetition of an unknown batch, INVALID_TXN_STATE 48 for a non-transactional batch inside of a transaction.
        An unknown producer may begin with any sequence, because its records may have been deleted.
        """
        entry = self.producers.get(batch.producer_id)
        if entry is None:
            return None
        duplicate = entry.find_duplicate(batch)
        if duplicate is not None:
            return duplicate
        self._check_epoch(entry, batch.producer_epoch)
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(entry, batch)
        if entry.txn_first_offset != NO_OFFSET and not batch.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {entry.producer_id} has an open transaction and sent a batch outside of it",
            )
        return None

    def check_marker(self, batch: RecordBatch) -> None:
        """Raise unless a transaction marker may be appended.

        The errors are INVALID_PRODUCER_EPOCH 47 and TRANSACTION_COORDINATOR_FENCED 52.
        """
        entry = self.producers.get(batch.producer_id)
        marker = batch.control_record()
        if entry is None or marker is None:
            return
        kind, coordinator_epoch = read_control_record(marker)
        if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
            return
        self._check_epoch(entry, batch.producer_epoch)
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {entry.producer_id}: a transaction marker of coordinator epoch {coordinator_epoch}, "
                f"the last one was of epoch {entry.coordinator_epoch}",
            )

    def _check_epoch(self, entry: ProducerEntry, epoch: int) -> None:
        if epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {entry.producer_id} sent epoch {epoch}, the last known epoch is {entry.epoch}",
            )

    def _check_sequence(self, entry: ProducerEntry, batch: RecordBatch) -> None:
        first = batch.base_sequence
        if batch.producer_epoch != entry.epoch:
            expected = 0
            if first == 0 or entry.epoch == NO_EPOCH:
                return
        else:
            last = entry.last_sequence
            expected = increment_sequence(last, 1)
            if first == expected:
                return
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {entry.producer_id} epoch {batch.producer_epoch} sent sequence {first}, expected {expected}",
        )

    # ------------------------------------------------------------ record

    def record(self, batch: RecordBatch, base_offset: int) -> AbortedTxn | None:
        """Record a batch that is in the log at ``base_offset``; returns the transaction that it aborts, or None.

        The batch is not checked, because followers and recovery record every batch. The caller sets ``map_end_offset``.
        """
        last_offset = base_offset + batch.last_offset_delta
        if self._capture is not None:
            self._capture.keep(batch.producer_id)
        entry = self.producers.get(batch.producer_id)
        if entry is None:
            entry = self.producers[batch.producer_id] = ProducerEntry(batch.producer_id, batch.producer_epoch)
        elif entry.epoch != batch.producer_epoch:
            entry.move_to_epoch(batch.producer_epoch)
        entry.last_timestamp = batch.max_timestamp
        attributes = batch.attributes
        if attributes & 0x20:
            return self._record_marker(entry, batch, last_offset)
        entry.add(BatchMetadata(batch.last_sequence, last_offset, batch.last_offset_delta, batch.max_timestamp))
        if attributes & 0x10 and entry.txn_first_offset == NO_OFFSET:
            entry.txn_first_offset = base_offset
            self._ongoing[base_offset] = OngoingTxn(batch.producer_id, base_offset)
        return None

    def _record_marker(self, entry: ProducerEntry, batch: RecordBatch, offset: int) -> AbortedTxn | None:
        marker = batch.control_record()
        if marker is None:
            return None  # compaction has emptied the marker
        kind, coordinator_epoch = read_control_record(marker)
        if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
            return None
        entry.coordinator_epoch = max(entry.coordinator_epoch, coordinator_epoch)
        first_offset = entry.txn_first_offset
        if first_offset == NO_OFFSET:
            return None
        entry.txn_first_offset = NO_OFFSET
        txn = self._ongoing.pop(first_offset, None) or OngoingTxn(entry.producer_id, first_offset)
        txn.last_offset = offset
        self._unreplicated.append(txn)
        if kind == CONTROL_COMMIT:
            return None
        last_stable_offset = min(self._ongoing) if self._ongoing else offset + 1
        return AbortedTxn(entry.producer_id, first_offset, offset, last_stable_offset)

    # ------------------------------------------------------------ transactions and time

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest transaction that is open or whose marker is not below the high watermark."""
        if not self._ongoing and not self._unreplicated:
            return None
        firsts = [txn.first_offset for txn in self._unreplicated]
        if self._ongoing:
            firsts.append(min(self._ongoing))
        return min(firsts)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget transactions whose marker is below the high watermark, because readers see that they are decided."""
        if self._unreplicated:
            self._unreplicated = [txn for txn in self._unreplicated if txn.last_offset >= high_watermark]

    def on_log_start(self, log_start_offset: int) -> None:
        """Forget decided transactions below the log start: their records were deleted."""
        self._unreplicated = [txn for txn in self._unreplicated if txn.last_offset >= log_start_offset]

    def remove_expired(self, now_ms: int) -> int:
        """Forget the producers idle for ``producer.id.expiration.ms``; returns how many."""
        expired = [
            entry.producer_id
            for entry in self.producers.values()
            if entry.txn_first_offset == NO_OFFSET and now_ms - entry.last_timestamp >= self._expiration.ms
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)

    # ------------------------------------------------------------ snapshots

    def snapshot(self) -> list[SnapshotEntry]:
        """All producers, as a snapshot file holds them."""
        return [batch for entry in self.producers.values() for batch in entry.snapshot()]

    def capture(self) -> ProducerCapture:
        """Begin a snapshot of the producers as they are now, and drop an unfinished one. Producers may change later."""
        self._capture = ProducerCapture(self.producers, self.map_end_offset)
        return self._capture

    def below(self, offset: int) -> list[SnapshotEntry]:
        """The producers that wrote nothing from ``offset`` on, as a snapshot file holds them."""
        before = (entry for entry in self.producers.values() if entry.last_offset < offset)
        return [batch for entry in before for batch in entry.snapshot()]

    def latest(self) -> list[SnapshotEntry]:
        """Each producer once, with its last batch."""
        return [entry.latest() for entry in self.producers.values()]

    def clear(self, map_end_offset: int) -> None:
        """Forget all producers. The batches from ``map_end_offset`` on have to be recorded next."""
        self.producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = map_end_offset

    def restore(self, entries: Iterable[SnapshotEntry], map_end_offset: int, now_ms: int) -> Iterator[None]:
        """Load a snapshot at ``map_end_offset``, without the producers that expired; yields after each entry."""
        self.clear(map_end_offset)
        for known in entries:
            entry = self.producers.setdefault(known.producer_id, ProducerEntry(known.producer_id, known.epoch))
            entry.move_to_epoch(known.epoch)
            entry.coordinator_epoch = known.coordinator_epoch
            entry.last_timestamp = known.timestamp
            entry.txn_first_offset = known.txn_first_offset
            if known.last_offset >= 0:
                entry.add(BatchMetadata(known.last_sequence, known.last_offset, known.offset_delta, known.timestamp))
            if known.txn_first_offset != NO_OFFSET:
                self._ongoing[known.txn_first_offset] = OngoingTxn(known.producer_id, known.txn_first_offset)
            yield
        self.remove_expired(now_ms)
