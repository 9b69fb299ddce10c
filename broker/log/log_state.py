"""The parts of a partition log when it is opened, and the results of its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from anabranch.broker.log.identity_file import IdentityFile
from anabranch.broker.log.layout_history import LayoutHistory
from anabranch.broker.log.leader_epoch_cache import LeaderEpochCache
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.log.repeated_batches import BatchMetadata
from anabranch.broker.log.segment import LogSegment
from anabranch.broker.log.snapshot_files import SnapshotFiles
from anabranch.broker.log.txn_index import AbortedTxn
from anabranch.protocol.records import RecordBatch
from anabranch.runtime.env import FileRange


class AppendResult(NamedTuple):
    """The offsets of an appended batch. ``log_append_time_ms`` is -1 unless the topic uses the broker's timestamps."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    """Whether the batch was in the log already; the offsets are those of the first append.

    If the batch is too old for its offsets to be known, ``base_offset`` is -1 and ``last_offset`` is an upper bound.
    """


class Examined(NamedTuple):
    """A batch that passed the checks of the log itself, or that the log has already; see ``PartitionLog.examine``."""

    batch: RecordBatch
    now_ms: int
    known: BatchMetadata | None = None
    """The batch in the log that this one repeats."""
    is_renumbered: bool = False
    """Whether ``known`` has other numbers, because the producer sends it again in a later epoch."""
    is_next: bool = False
    """Whether the batch is the next of its producer, so that its sequence needs no check."""


class LogRead(NamedTuple):
    """A read's result. ``records`` begins with the batch that holds ``fetch_offset``; the last batch may be cut off."""

    fetch_offset: int
    records: FileRange | bytes
    offset_count: int
    """The number of offsets in ``records`` from ``fetch_offset`` on; exact if all batches have the same count."""
    aborted_transactions: list[AbortedTxn] | None = None
    """None unless requested (read_committed)."""

    @property
    def size_bytes(self) -> int:
        return len(self.records)


@dataclass(slots=True)
class LogState:
    """The state of a log when it is opened; see ``log_loader``."""

    identity: IdentityFile
    segments: list[LogSegment]
    epochs: LeaderEpochCache
    layouts: LayoutHistory
    producers: ProducerState
    snapshots: SnapshotFiles
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    truncation_synced: bool = True
    """False if the last process crashed, and may have truncated the log without a sync."""
    failure: str = ""
    """The reason why the log cannot be used: records are missing or overlap. The files stay unchanged."""
