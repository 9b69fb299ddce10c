"""The state of a partition's idempotent and transactional producers (KIP-98, KIP-360), with Kafka 3's rules.

A check changes nothing. A batch is recorded when it is in the file. A producer's last five batches are kept to
recognise a repeated batch. Snapshots have all five, so a repeated batch is recognised after a restart too. (Kafka's
snapshots have only the last batch. If an earlier batch is repeated after a restart, it is written a second time, under
a new producer epoch.)

The idle time of a producer counts from its last append, by the broker's clock: the timestamps of records may be old.

A batch may be older than the kept batches. If its sequences are at or above the first known sequence, the batch was
written: a producer uses a sequence for another record only if the first record was certainly not written. Such a batch
is neither refused nor written again, but its offset is not known any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from anabranch.broker.log.producer_capture import ProducerCapture
from anabranch.broker.log.producer_files import NO_FILES, ProducerFiles, files_of
from anabranch.broker.log.producer_kept import KeptProducer
from anabranch.broker.log.producer_snapshot import SnapshotEntry
from anabranch.broker.log.repeated_batches import (
    Answer,
    BatchMetadata,
    ProducerConnection,
    find_duplicate,
    follows_run,
    may_have_gone_on,
    may_repeat,
    repetitions,
)
from anabranch.broker.log.txn_index import AbortedTxn
from anabranch.protocol.batch_layout import CONTROL_ABORT, CONTROL_COMMIT
from anabranch.protocol.control_records import read_control_record
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch, increment_sequence
from anabranch.protocol.sentinels import NO_EPOCH, NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP

BATCHES_KEPT = 5
DEFAULT_EXPIRATION_MS = 86_400_000
"""``producer.id.expiration.ms``."""
DEFAULT_REPEATED_MAX_AGE_MS = 300_000
"""``producer.repeated.batch.max.age.ms``."""


class AppendOrigin(Enum):
    """The origin of a leader's append."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


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
        "answers",
        "appended_ms",
        "batches",
        "coordinator_epoch",
        "earlier",
        "epoch",
        "first_sequence",
        "last_timestamp",
        "next_sequence",
        "producer_id",
        "run",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_KEPT)
        self.next_sequence = 0
        self.run = 0
        """The number of the last batches whose sequences follow one another. An earlier leader may have left gaps."""
        self.first_sequence = NO_SEQUENCE
        """The first known sequence. Every sequence of this epoch from this one to the last sequence was written."""
        self.coordinator_epoch = NO_EPOCH
        self.last_timestamp = NO_TIMESTAMP
        """The largest timestamp of the last batch."""
        self.appended_ms = NO_TIMESTAMP
        """When this broker appended the last batch; the batch's timestamp if that is not known."""
        self.txn_first_offset = NO_OFFSET
        self.earlier: Sequence[BatchMetadata] = ()
        """The last batches of earlier epochs, which the producer may send again in a later epoch."""
        self.answers: deque[Answer] | None = None
        """The last successes that this broker answered."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return max((known[-1].last_offset for known in (self.batches, self.earlier) if known), default=NO_OFFSET)

    def add(self, batch: BatchMetadata, first_sequence: int) -> None:
        """Record the producer's next batch, which begins with ``first_sequence`` and is in the log."""
        if not self.batches or first_sequence != self.next_sequence:
            self.first_sequence, self.run = first_sequence, 0
        self.run += 1
        self.next_sequence = increment_sequence(batch.last_sequence, 1)
        self.batches.append(batch)

    def move_to_epoch(self, epoch: int) -> None:
        """Begin a new epoch, which has no batches yet."""
        if epoch != self.epoch:
            self.epoch = epoch
            written = {known.last_offset: known for known in (*self.earlier, *self.batches)}
            self.earlier = [written[offset] for offset in sorted(written)[-BATCHES_KEPT:]]
            self.batches.clear()
            self.next_sequence = self.run = 0

    def kept(self) -> KeptProducer:
        """The entry for the file ``.producers``."""
        return KeptProducer(self.producer_id, self.appended_ms, self.earlier)

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
    """``producer.id.expiration.ms`` and ``producer.repeated.batch.max.age.ms``: one object for a broker's partitions.

    Both may change while the broker runs.
    """

    __slots__ = ("ms", "repeated_max_age_ms")

    def __init__(self, ms: int = DEFAULT_EXPIRATION_MS, repeated_max_age_ms: int = DEFAULT_REPEATED_MAX_AGE_MS) -> None:
        self.ms = ms
        self.repeated_max_age_ms = repeated_max_age_ms


class ProducerState:
    """All producers of a partition and its transactions."""

    __slots__ = ("_capture", "_expiration", "_ongoing", "_unreplicated", "led_from", "map_end_offset", "producers")

    def __init__(self, expiration: ProducerExpiration | None = None) -> None:
        self._expiration = expiration or ProducerExpiration()
        self.producers: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, OngoingTxn] = {}  # by first offset; later transactions have higher ones
        self._unreplicated: list[OngoingTxn] = []
        self._capture: ProducerCapture | None = None
        self.map_end_offset = 0
        """The state holds every batch below this offset."""
        self.led_from = 0
        """The log end when this broker began to lead."""

    # ------------------------------------------------------------ decide

    def is_next(self, batch: RecordBatch) -> bool:
        """Whether the batch is the next of a producer that changed no epoch and has no open transaction.

        Such a batch repeats none, and passes ``check``. This is the usual case, decided in one step. It is never a
        transaction marker, because a marker has no sequence.
        """
        entry = self.producers.get(batch.producer_id)
        return (
            entry is not None
            and entry.epoch == batch.producer_epoch
            and entry.next_sequence == batch.base_sequence
            and entry.run >= len(entry.batches)
            and not entry.earlier
            and entry.txn_first_offset == NO_OFFSET
        )

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        """The batch that ``batch`` repeats; None if no such batch is known.

        If the repeated batch is older than the kept batches, its offset is not known: ``first_offset`` is -1, and
        ``last_offset`` is an upper bound.
        """
        entry = self.producers.get(batch.producer_id) if batch.producer_id >= 0 else None
        return None if entry is None else find_duplicate(entry, batch)

    def repetitions(
        self, batch: RecordBatch, now_ms: int, connection: ProducerConnection | None
    ) -> Iterable[BatchMetadata]:
        """The batches that ``batch`` may repeat under other numbers; the log's bytes decide."""
        entry = self.producers.get(batch.producer_id)
        if (
            entry is None
            or (batch.producer_epoch == entry.epoch and not may_repeat(entry, batch.base_sequence))
            or (connection is not None and not connection.renumbers)
            or now_ms - entry.appended_ms > self._expiration.repeated_max_age_ms
            or not self._may_continue_run(entry, batch)
        ):
            return ()
        return repetitions(entry, batch, connection, self.led_from)

    def _may_continue_run(self, entry: ProducerEntry, batch: RecordBatch) -> bool:
        in_txn = batch.is_transactional or entry.txn_first_offset != NO_OFFSET
        return not in_txn and batch.producer_epoch >= entry.epoch

    def knows(self, producer_id: int, epoch: int) -> bool:
        """Whether the next sequence of the producer in an epoch is known for certain."""
        entry = self.producers.get(producer_id)
        if entry is None or entry.epoch < epoch:
            return False
        return entry.epoch > epoch or not may_have_gone_on(entry, self.led_from)

    def check(self, batch: RecordBatch, origin: AppendOrigin) -> None:
        """Raise unless a data batch, which repeats none, may be appended.

        Raises INVALID_PRODUCER_EPOCH 47 for an epoch below the known epoch, OUT_OF_ORDER_SEQUENCE_NUMBER 45 for a gap
        or a repetition of an unknown batch, INVALID_TXN_STATE 48 for a non-transactional batch inside of a transaction.
        An unknown producer may begin with any sequence, because its records may have been deleted.
        """
        entry = self.producers.get(batch.producer_id)
        if entry is None:
            return
        self._check_epoch(entry, batch.producer_epoch)
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(entry, batch)
        if entry.txn_first_offset != NO_OFFSET and not batch.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {entry.producer_id} has an open transaction and sent a batch outside of it",
            )

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
        expected = entry.next_sequence if batch.producer_epoch == entry.epoch else 0
        if first == expected or entry.epoch == NO_EPOCH:
            return
        # However long ago the run was: a producer that has been idle since then goes on after it.
        if self._may_continue_run(entry, batch) and follows_run(entry, batch, self.led_from):
            return
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {entry.producer_id} epoch {batch.producer_epoch} sent sequence {first}, expected {expected}",
        )

    # ------------------------------------------------------------ record

    def record(self, batch: RecordBatch, base_offset: int, now_ms: int) -> AbortedTxn | None:
        """Record a batch that is in the log at ``base_offset``; returns the transaction that it aborts, or None.

        The batch is not checked, because followers and recovery record every batch. The caller sets ``map_end_offset``.
        ``now_ms``: when the batch was appended, or read from the log.
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
        entry.appended_ms = now_ms
        attributes = batch.attributes
        if attributes & 0x20:
            return self._record_marker(entry, batch, last_offset)
        known = BatchMetadata(batch.last_sequence, last_offset, batch.last_offset_delta, batch.max_timestamp)
        entry.add(known, batch.base_sequence)
        if attributes & 0x10 and entry.txn_first_offset == NO_OFFSET:
            entry.txn_first_offset = base_offset
            self._ongoing[base_offset] = OngoingTxn(batch.producer_id, base_offset)
        return None

    def record_repetition(self, batch: RecordBatch, known: BatchMetadata, now_ms: int) -> BatchMetadata:
        """Record that a batch repeats one of an earlier epoch, which also gets its sequences; returns that batch."""
        if self._capture is not None:
            self._capture.keep(batch.producer_id)
        entry = self.producers[batch.producer_id]
        if batch.producer_epoch == entry.epoch and known.last_offset < entry.batches[-1].last_offset:
            return known  # another leader took these sequences
        entry.move_to_epoch(batch.producer_epoch)
        renumbered = known._replace(last_sequence=batch.last_sequence)
        entry.add(renumbered, batch.base_sequence)
        entry.appended_ms = now_ms
        return renumbered

    def record_answer(self, producer_id: int, answer: Answer) -> None:
        """Record that this broker answers a batch of the producer with success."""
        entry = self.producers.get(producer_id)
        if entry is None:
            return
        if entry.answers is None:
            entry.answers = deque(maxlen=BATCHES_KEPT)
        entry.answers.append(answer)

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
            if entry.txn_first_offset == NO_OFFSET and now_ms - entry.appended_ms >= self._expiration.ms
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)

    # ------------------------------------------------------------ snapshots

    def snapshot(self) -> list[SnapshotEntry]:
        """All producers, as a snapshot file holds them."""
        return [batch for entry in self.producers.values() for batch in entry.snapshot()]

    def files(self) -> ProducerFiles:
        """The files of all producers."""
        return files_of(self.producers.values())

    def capture(self) -> ProducerCapture:
        """Begin a snapshot of the producers as they are now, and drop an unfinished one. Producers may change later."""
        self._capture = ProducerCapture(self.producers, self.map_end_offset)
        return self._capture

    def below(self, offset: int) -> ProducerFiles:
        """The files of the producers that wrote nothing from ``offset`` on; no files if there are none."""
        before = [entry for entry in self.producers.values() if entry.last_offset < offset]
        return files_of(before) if before else NO_FILES

    def take_over(self, other: ProducerState) -> None:
        """Take over the producers of a log with the same batches, with what no file has."""
        self.producers = other.producers
        self.led_from = other.led_from

    def latest(self) -> list[SnapshotEntry]:
        """Each producer once, with its last batch."""
        return [entry.latest() for entry in self.producers.values()]

    def clear(self, map_end_offset: int) -> None:
        """Forget all producers. The batches from ``map_end_offset`` on have to be recorded next."""
        self.producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = map_end_offset

    def restore(
        self,
        entries: Iterable[SnapshotEntry],
        map_end_offset: int,
        now_ms: int,
        kept: Iterator[KeptProducer] | None = None,
    ) -> Iterator[None]:
        """Load a snapshot at ``map_end_offset``, without the producers that expired; yields after each entry.

        ``kept`` has the same producers in the same order. Without it, a producer counts as appended at its timestamp,
        at most at ``now_ms``.
        """
        self.clear(map_end_offset)
        more = None if kept is None else next(kept, None)
        appended_ms: int | None = None
        for known in entries:
            entry = self.producers.get(known.producer_id)
            if entry is None:
                entry = self.producers[known.producer_id] = ProducerEntry(known.producer_id, known.epoch)
                appended_ms = None
                if kept is not None and more is not None and more.producer_id == known.producer_id:
                    appended_ms, entry.earlier = more.appended_ms, more.earlier
                    more = next(kept, None)
            entry.move_to_epoch(known.epoch)
            entry.coordinator_epoch = known.coordinator_epoch
            entry.last_timestamp = known.timestamp
            # A clock that was ahead must not keep the producer longer than an append now would.
            entry.appended_ms = min(now_ms, known.timestamp if appended_ms is None else appended_ms)
            entry.txn_first_offset = known.txn_first_offset
            if known.last_offset >= 0:
                kept_batch = BatchMetadata(known.last_sequence, known.last_offset, known.offset_delta, known.timestamp)
                entry.add(kept_batch, kept_batch.first_sequence)
            if known.txn_first_offset != NO_OFFSET:
                self._ongoing[known.txn_first_offset] = OngoingTxn(known.producer_id, known.txn_first_offset)
            yield
        self.remove_expired(now_ms)
