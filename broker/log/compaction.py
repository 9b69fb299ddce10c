"""Decides which records compaction keeps, batch by batch. Pure.

A record is kept if no later record in the part that was read for keys has its key. A tombstone stays until its delete
horizon (KIP-534). The marker of a transaction without remaining records stays until its delete horizon, too. The
horizon is written into the batch: the time of the first compaction that found the tombstone, plus
``delete.retention.ms``. If another partition may hold older values of the key (``ordered_resize.kept_tombstones``), a
tombstone stays longer, unless it only marks that the key moved (docs/adr/0018). The last batch of each producer stays
for its sequence, even without records. The last batch of a segment stays too, so that each segment ends where the next
one begins. Offsets never change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.broker.log.producer_state import ProducerEntry
from anabranch.broker.log.slices import Steps
from anabranch.broker.log.txn_index import AbortedTxn
from anabranch.ordered_resize.lineage import EVERY_EPOCH
from anabranch.protocol.batch_builder import RECORDS_AT_ONCE, retain_in_steps, retain_records
from anabranch.protocol.batch_layout import CONTROL_ABORT, MAX_LONG, MIN_LONG
from anabranch.protocol.control_records import read_control_record
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.records import Record, RecordBatch

_PLAIN_KEY_BYTES = 24
_ENTRY_BYTES = 200
"""The approximate size of a key and its offset in a dict."""


class KeyOffsets:
    """The last offset of each key in the dirty part of a log. Long keys are held as a BLAKE2b digest."""

    __slots__ = ("_capacity", "_offsets", "end_offset")

    def __init__(self, memory_bytes: int) -> None:
        self._capacity = max(memory_bytes // _ENTRY_BYTES, 1)
        self._offsets: dict[bytes, int] = {}
        self.end_offset = -1
        """The keys of all records below this offset are known. All records from this offset on are kept."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, batch: RecordBatch, transactions: CleanedTransactions) -> Steps[bool]:
        """Add a batch's keys. If there is no room for all of them, add no key and return False.

        Aborted records are ignored. Yields after each ``RECORDS_AT_ONCE``, as ``retain`` does.
        """
        if batch.count > RECORDS_AT_ONCE or batch.may_be_large:
            yield from batch.read_in_steps(RECORDS_AT_ONCE)
        if batch.is_control:
            transactions.take_marker(batch)
            records = []
        else:
            records = [] if transactions.take_data(batch) else batch.records()
        if len(self._offsets) and len(self._offsets) + len(records) > self._capacity:
            return False
        for index, record in enumerate(records, 1):
            key = record.key
            if key is not None:
                self._offsets[_key_id(key)] = record.offset
            if index % RECORDS_AT_ONCE == 0:
                yield None
        self.end_offset = batch.next_offset
        return True

    def is_latest(self, record: Record) -> bool:
        """Whether this record is the latest known record of its key. False for a record without a key."""
        if record.offset >= self.end_offset:
            return True
        key = record.key
        return key is not None and record.offset >= self._offsets.get(_key_id(key), -1)


def _key_id(key: bytes) -> bytes:
    # A digest differs from a plain key by its length.
    return key if len(key) <= _PLAIN_KEY_BYTES else hashlib.blake2b(key, digest_size=_PLAIN_KEY_BYTES + 1).digest()


class CleanedTransactions:
    """Follows the transactions in the batches being cleaned, to drop aborted records and markers without records."""

    __slots__ = ("_kept", "_ongoing_aborted", "_pending", "_seen_data")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._pending = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._ongoing_aborted: dict[int, AbortedTxn] = {}
        self._seen_data: set[int] = set()
        self._kept: list[AbortedTxn] = []

    def take_data(self, batch: RecordBatch) -> bool:
        """Note a data batch. Returns whether it belongs to an aborted transaction."""
        self._begin_aborted(batch)
        if not batch.is_transactional:
            return False
        self._seen_data.add(batch.producer_id)
        return batch.producer_id in self._ongoing_aborted

    def take_marker(self, batch: RecordBatch) -> bool:
        """Note a marker. Returns whether this run found data of the transaction that the marker ends."""
        self._begin_aborted(batch)
        record = batch.control_record()
        if record is None:
            return False
        kind, _ = read_control_record(record)
        met_data = batch.producer_id in self._seen_data
        self._seen_data.discard(batch.producer_id)
        if kind == CONTROL_ABORT:
            txn = self._ongoing_aborted.pop(batch.producer_id, None)
            if txn is not None and met_data:
                self._kept.append(txn)
        return met_data

    def take_kept(self) -> list[AbortedTxn]:
        """Take the index entries of aborted transactions whose marker is needed: those found since the last call."""
        kept, self._kept = self._kept, []
        return kept

    def _begin_aborted(self, batch: RecordBatch) -> None:
        while self._pending and self._pending[-1].first_offset <= batch.last_offset:
            txn = self._pending.pop()
            self._ongoing_aborted[txn.producer_id] = txn


@dataclass(frozen=True, slots=True)
class RetainRules:
    """The rules for one run over one log."""

    keys: KeyOffsets
    producers: Mapping[int, ProducerEntry]
    now_ms: int
    delete_retention_ms: int
    first_kept_epoch: int = EVERY_EPOCH
    """The first leader epoch whose tombstones stay: another partition may hold older values of their keys."""

    def retain(
        self, batch: RecordBatch, transactions: CleanedTransactions, *, ends_segment: bool = False
    ) -> Steps[bytes | memoryview | None]:
        """The batch to write; None if nothing of it stays.

        A batch that ``ends_segment`` stays even without records: the segment then ends where the next one begins.
        """
        if batch.count > RECORDS_AT_ONCE or batch.may_be_large:
            yield from batch.read_in_steps(RECORDS_AT_ONCE)
        horizon_passed = batch.has_delete_horizon and self.now_ms > batch.base_timestamp
        new_horizon: int | None = None
        if batch.is_control:
            needed = transactions.take_marker(batch)
            kept = [] if not needed and horizon_passed else batch.records()
            changed = len(kept) != batch.count
            sets_horizon = bool(kept) and not needed and not batch.has_delete_horizon
        else:
            aborted = transactions.take_data(batch)
            may_hide_others = batch.partition_leader_epoch >= self.first_kept_epoch
            records = [] if aborted else batch.records()
            kept = []
            for index, record in enumerate(records, 1):
                if self.keys.is_latest(record) and (
                    record.value is not None or not horizon_passed or (may_hide_others and not _is_moved(record))
                ):
                    kept.append(record)
                if index % RECORDS_AT_ONCE == 0:
                    yield None
            changed = len(kept) != batch.count
            sets_horizon = not batch.has_delete_horizon and any(record.value is None for record in kept)
        if sets_horizon:
            new_horizon = min(self.now_ms + self.delete_retention_ms, _latest_base(kept))
        if not kept:
            return retain_records(batch, []) if ends_segment or self._is_last_of_producer(batch) else None
        if not changed and new_horizon is None:
            return batch.buffer
        return (yield from retain_in_steps(batch, kept, new_horizon))

    def _is_last_of_producer(self, batch: RecordBatch) -> bool:
        entry = self.producers.get(batch.producer_id) if batch.producer_id >= 0 else None
        if entry is None:
            return False
        if entry.last_offset >= 0:
            return entry.last_offset == batch.last_offset
        return batch.is_control and batch.producer_epoch == entry.epoch


def _latest_base(records: Iterable[Record]) -> int:
    """The latest base timestamp, which a horizon replaces, from which the distances of ``records`` fit into 64 bits."""
    return min(MAX_LONG, min(record.timestamp for record in records) - MIN_LONG)


def _is_moved(tombstone: Record) -> bool:
    """Whether a tombstone only marks that the key moved: compaction needs such a tombstone, but readers do not."""
    return any(name == MOVED_HEADER for name, _ in tombstone.headers)
