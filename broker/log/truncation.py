"""Truncates a log: drops its records from an offset on, or drops all records and begins at another offset.

``durability`` syncs truncations, and cuts the end of a file in a thread if it is large. ``producer_rebuild`` brings the
producers back to the new log end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

from anabranch.broker.log.durability import Durability
from anabranch.broker.log.log_state import LogState
from anabranch.broker.log.producer_files import NO_FILES, ProducerFiles
from anabranch.broker.log.producer_rebuild import ProducerRebuild, TruncatedLog
from anabranch.broker.log.segment_list import SegmentList
from anabranch.broker.log.snapshot_files import ProducerSnapshot
from anabranch.protocol.compression import CorruptRecordError
from anabranch.runtime.env import Clock


class LogToTruncate(TruncatedLog, Protocol):
    """The parts of a log that a truncation reads and writes."""

    on_files_deleted: Callable[[Self], None]
    on_flush_needed: Callable[[Self], None]
    on_log_start_moved: Callable[[Self], None]
    on_truncated: Callable[[Self], None]

    def advance_log_start(self, offset: int) -> bool: ...


class Truncation:
    """The truncations of one log. Each raises KAFKA_STORAGE_ERROR when the disk refuses."""

    __slots__ = ("_clock", "_durability", "_epochs", "_segments", "_snapshots")

    def __init__(self, segments: SegmentList, durability: Durability, state: LogState, clock: Clock) -> None:
        self._segments = segments
        self._durability = durability
        self._epochs = state.epochs
        self._snapshots = state.snapshots
        self._clock = clock

    def truncate_to(self, log: LogToTruncate, offset: int) -> bool:
        """See ``PartitionLog.truncate_to``."""
        if offset >= log.log_end_offset:
            self._epochs.truncate_from_end(offset)
            return False
        if offset < self._segments.bases[0]:
            self.truncate_fully_and_start_at(log, offset, NO_FILES)
            return True
        self._durability.check_changeable()
        segments = self._segments
        keep = segments.index_of(offset) + 1
        log.on_files_deleted(log)
        try:
            self._snapshots.remove_above(offset)
            snapshot = self._snapshots.load_latest(offset)
            for segment in segments.from_offset(snapshot.offset if snapshot else 0):
                segment.open()  # the segment is read once the log is cut
            segments.items[keep - 1].prepare()
            try:
                while len(segments.items) > keep:  # from the end, so that the log is whole at each moment
                    segments.drop(-1, self._clock.now_ms())
                segments.active.truncate_to(offset)
            finally:
                self._end_at_last_batch(log, snapshot)
        except OSError as error:
            raise self._durability.storage_error("truncate", error) from error
        return True

    def truncate_fully_and_start_at(self, log: LogToTruncate, offset: int, files: ProducerFiles) -> None:
        """See ``PartitionLog.truncate_fully_and_start_at``."""
        self._durability.check_changeable()
        now_ms = self._clock.now_ms()
        log.on_files_deleted(log)
        try:
            if self._segments.roll(log.log_end_offset, now_ms, log.producers if log.rebuild is None else None):
                log.on_flush_needed(log)
            log.advance_log_start(log.log_end_offset)
            log.high_watermark = log.log_end_offset
            while len(self._segments.items) > 1:
                self._segments.drop(0, now_ms)
            self._snapshots.start_over(offset, files)
            self._segments.rename_empty(offset, now_ms)
        except OSError as error:
            raise self._durability.storage_error("truncate", error) from error
        log.log_start_offset = offset
        self._epochs.clear()
        self._ended_at(log, offset)
        log.high_watermark = offset
        self._rebuild_producers(log, self._snapshots.load_latest(offset))
        log.on_log_start_moved(log)

    def _end_at_last_batch(self, log: LogToTruncate, snapshot: ProducerSnapshot | None) -> None:
        """Set the log end and the producer state to the end of the last batch that is left."""
        try:
            end = self._segments.active.load_tail()
            self._ended_at(log, end)
        except (OSError, CorruptRecordError) as error:
            self._durability.fail(f"the new log end cannot be read after a truncation: {error}")
            raise
        self._rebuild_producers(log, snapshot)

    def _ended_at(self, log: LogToTruncate, end: int) -> None:
        log.log_end_offset = end
        lowered = self._durability.truncated_to(end)
        log.high_watermark = min(log.high_watermark, end)
        log.log_start_offset = min(log.log_start_offset, end)
        self._epochs.truncate_from_end(end)
        if lowered:
            log.on_truncated(log)

    def _rebuild_producers(self, log: LogToTruncate, snapshot: ProducerSnapshot | None) -> None:
        log.rebuild = rebuild = ProducerRebuild(log, snapshot, self._clock)
        rebuild.begin()
