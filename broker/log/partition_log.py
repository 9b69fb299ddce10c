"""A partition's log: append, read, find, truncate, delete. Methods that are not async never suspend.

``log_creation`` creates a log, ``log_loader`` opens and recovers an existing one, ``cleaner`` compacts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.broker.log.append_validation import ReadBatch, batch_log_append_time, intact_batch, validate_append
from anabranch.broker.log.durability import Durability
from anabranch.broker.log.layout_history import LayoutEntry
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_state import AppendResult, Examined, LogRead, LogState
from anabranch.broker.log.open_segments import OpenSegments
from anabranch.broker.log.paths import LEADER_EPOCH_CHECKPOINT, PARTITION_COUNT_CHECKPOINT, join
from anabranch.broker.log.producer_files import NO_FILES, ProducerFiles
from anabranch.broker.log.producer_rebuild import ProducerRebuild, catch_up
from anabranch.broker.log.producer_state import AppendOrigin
from anabranch.broker.log.repeated_batches import BatchMetadata, ProducerConnection, is_same_batch
from anabranch.broker.log.retention import NOTHING_RETAINED, SEGMENTS_DELETED_AT_ONCE, count_deletable
from anabranch.broker.log.segment import LogSegment
from anabranch.broker.log.segment_list import SegmentList, base_of_next, facts_of
from anabranch.broker.log.segment_swap import commit_cleaned, finish_swap
from anabranch.broker.log.truncation import Truncation
from anabranch.protocol.batch_layout import Buffer
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch, iter_batches, set_base_offset
from anabranch.protocol.sentinels import HIGH_WATERMARK, NO_EPOCH, NO_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock, Env, Storage

__all__ = ["AppendOrigin", "AppendResult", "LogRead", "PartitionLog"]


def _ignore(_log: PartitionLog) -> None:
    return None


class PartitionLog:
    """One replica's log. Offsets: log start <= last stable <= high watermark <= log end; records are below log end."""

    __slots__ = (
        "_clock",
        "_durability",
        "_end_at_last_release",
        "_segments",
        "_storage",
        "_truncation",
        "config",
        "directory",
        "high_watermark",
        "identity",
        "is_full",
        "latest_timestamp_ms",
        "layouts",
        "leader_epoch_cache",
        "log_end_offset",
        "log_start_offset",
        "on_files_deleted",
        "on_first_record",
        "on_flush_needed",
        "on_log_start_moved",
        "on_producers_behind",
        "on_truncated",
        "partition",
        "producers",
        "rebuild",
        "snapshots",
    )

    def __init__(
        self,
        env: Env,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        state: LogState,
        open_segments: OpenSegments | None = None,
    ) -> None:
        assert env.storage is not None
        self._storage: Storage = env.storage
        self._clock: Clock = env.clock
        self.directory = directory
        self.partition = partition
        self.identity = state.identity
        """The identity of this log."""
        self.config = config
        self._segments = SegmentList(env.storage, env.rng, directory, partition, config, state, open_segments)
        self.leader_epoch_cache = state.epochs
        self.layouts = state.layouts
        self.latest_timestamp_ms = NO_TIMESTAMP
        """The latest time from which the age of a segment counts, as of the last check of retention."""
        self.snapshots = state.snapshots
        self.producers = state.producers
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = state.log_end_offset
        self.high_watermark = state.high_watermark
        self.on_flush_needed: Callable[[PartitionLog], None] = _ignore
        """Called when ``flush.messages`` is reached or a segment was rolled. The log manager then flushes soon."""
        self.on_files_deleted: Callable[[PartitionLog], None] = _ignore
        """Called when segments were deleted. The log manager then removes their files after a delay."""
        self.on_first_record: Callable[[PartitionLog], None] = _ignore
        """Called when a log gets its first record. The log manager then syncs the log's identity soon."""
        self.on_log_start_moved: Callable[[PartitionLog], None] = _ignore
        self.is_full = False
        """Whether the log's dir is full, as far as the log manager knows."""
        self.on_truncated: Callable[[PartitionLog], None] = _ignore
        """Called when a truncation lowered the recovery point. The log manager then writes the checkpoint at once."""
        self.rebuild: ProducerRebuild | None = None  # the work that a truncation left over: see ``catch_up``
        self.on_producers_behind: Callable[[PartitionLog], None] = _ignore
        """Called when a ``rebuild`` has to be done in the background."""
        self._durability = Durability(env.storage, env.clock, partition, self._segments, state)
        self._truncation = Truncation(self._segments, self._durability, state, env.clock)
        self._end_at_last_release = self.log_end_offset

    def moved_to(self, directory: str) -> None:
        """Note that the log's directory has another name now. The open files stay the same."""
        self.directory = directory
        self.identity.moved_to(directory)
        self._segments.moved_to(directory)
        self.snapshots.moved_to(directory)
        self.leader_epoch_cache.moved_to(join(directory, LEADER_EPOCH_CHECKPOINT))
        self.layouts.moved_to(join(directory, PARTITION_COUNT_CHECKPOINT))

    # ------------------------------------------------------------ state

    @property
    def segments(self) -> Sequence[LogSegment]:
        """The segments, oldest first. There is always at least one; the last segment takes appends."""
        return self._segments.items

    @property
    def size_bytes(self) -> int:
        """Bytes in all log files."""
        return sum(segment.size_bytes for segment in self._segments.items)

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided and replicated; never below the log start."""
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.log_start_offset), self.high_watermark)

    # ------------------------------------------------------------ append

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        connection: ProducerConnection | None = None,
        read: ReadBatch | None = None,
    ) -> AppendResult:
        """``examine`` a batch and ``write`` it."""
        return self.write(self.examine(records, origin, connection, read), leader_epoch, origin)

    def examine(
        self,
        records: Buffer,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        connection: ProducerConnection | None = None,
        read: ReadBatch | None = None,
    ) -> Examined:
        """Check the one batch in ``records``, and look for an earlier append of it. The log stays as it is.

        A batch that a producer repeats is not refused, also if the config would refuse it now. The sequence of a batch
        is checked when it is written: a batch after a refused batch has to be refused for the same reason.
        ``connection``: the connection that it came on. Raises ``KafkaError`` with the codes of ``validate_append``, and
        KAFKA_STORAGE_ERROR.
        """
        self._durability.check_changeable()
        if self.rebuild is not None:  # a replica awaits ``catch_up`` before it leads, so a leader has no rebuild
            self.rebuild.advance_or_refuse()
        now_ms = self._clock.now_ms()
        refusal: KafkaError | None = None
        try:
            batch = validate_append(records, self.config, now_ms, origin, read)
        except KafkaError as error:  # the log may have the batch: it was sent before a config or a clock changed
            if (sent := intact_batch(records, read)) is None:
                raise
            batch, refusal = sent, error
        is_next = False
        if batch.producer_id >= 0:
            is_next = self.producers.is_next(batch)
            if not is_next and not batch.is_control:
                if (known := self.producers.find_duplicate(batch)) is not None:
                    return Examined(batch, now_ms, known)
                if (known := self._repeated(batch, now_ms, connection)) is not None:
                    return Examined(batch, now_ms, known, is_renumbered=True)
        if refusal is not None:
            raise refusal
        return Examined(batch, now_ms, is_next=is_next)

    def write(self, examined: Examined, leader_epoch: int, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendResult:
        """Give a batch its offsets and append it, unless the log has it. A writable buffer is rewritten in place.

        The log must not have changed since ``examine``. If this raises ``KafkaError``, the log is as before. The codes
        are those of ``ProducerState.check``, and KAFKA_STORAGE_ERROR if the disk refuses.
        """
        batch, now_ms = examined.batch, examined.now_ms
        if (known := examined.known) is not None:
            if examined.is_renumbered:
                known = self.producers.record_repetition(batch, known, now_ms)
            time_ms = known.timestamp if self.config.log_append_time else NO_TIMESTAMP
            return AppendResult(known.first_offset, known.last_offset, time_ms, self.log_start_offset, True)
        has_producer = batch.producer_id >= 0
        if has_producer and not examined.is_next:
            if batch.is_control:
                self.producers.check_marker(batch)
            else:
                self.producers.check(batch, origin)
        base_offset = self.log_end_offset
        last_offset = base_offset + batch.last_offset_delta
        buffer = batch.buffer
        set_base_offset(buffer, base_offset, leader_epoch)
        try:
            segment = self._segment_for(batch.length, last_offset, batch.max_timestamp, base_offset, now_ms)
            segment.append(buffer, last_offset, batch.max_timestamp)
        except OSError as error:
            raise self._durability.storage_error("append", error) from error
        if leader_epoch > self.leader_epoch_cache.recorded_epoch:
            self._note_first_record(leader_epoch, base_offset)
        if has_producer:
            self._record(segment, batch, base_offset, now_ms)
        self._appended(last_offset + 1, batch.count)
        return AppendResult(base_offset, last_offset, batch_log_append_time(batch), self.log_start_offset)

    def append_as_follower(self, records: Buffer) -> int:
        """Append a leader's batches with their offsets, without a cut-off last batch; returns the new log end.

        Raises ``KafkaError``: CORRUPT_MESSAGE 2 for a bad CRC or offsets below the log end, KAFKA_STORAGE_ERROR when
        the disk refuses. Batches before the bad batch are appended.
        """
        self._durability.check_changeable()
        now_ms = self._clock.now_ms()
        for batch in iter_batches(records, allow_partial_tail=True):
            batch.ensure_valid()
            if batch.base_offset < self.log_end_offset:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{self.partition}: batch at offset {batch.base_offset} is below the log end {self.log_end_offset}",
                )
            try:
                segment = self._segment_for(
                    batch.length, batch.last_offset, batch.max_timestamp, batch.base_offset, now_ms
                )
                segment.append(batch.buffer, batch.last_offset, batch.max_timestamp)
            except OSError as error:
                raise self._durability.storage_error("append", error) from error
            if batch.partition_leader_epoch > self.leader_epoch_cache.recorded_epoch:
                self._note_first_record(batch.partition_leader_epoch, batch.base_offset)
            if batch.producer_id >= 0 and self.rebuild is None:
                self._record(segment, batch, batch.base_offset, now_ms)
            self._appended(batch.next_offset, batch.count)
        return self.log_end_offset

    def begin_to_lead(self) -> None:
        """Note that this replica begins to lead at the log end: another one may have led before."""
        self.producers.led_from = self.log_end_offset

    def assign_epoch(self, leader_epoch: int) -> None:
        """Note that this replica leads in ``leader_epoch`` from the log end on."""
        self.leader_epoch_cache.begin(leader_epoch, self.log_end_offset)

    def assign_layout(self, entry: LayoutEntry) -> None:
        """Note the layout that is in force from a leader epoch on."""
        self.layouts.assign(entry, has_records=self._segments.have_records)

    def _note_first_record(self, leader_epoch: int, base_offset: int) -> None:
        """Write what is only known while an epoch, or the log, has no records."""
        is_first = self.leader_epoch_cache.recorded_epoch == NO_EPOCH
        self.leader_epoch_cache.assign(leader_epoch, base_offset)
        self.layouts.write_pending()
        if is_first:
            self.on_first_record(self)

    def _segment_for(
        self, length: int, last_offset: int, max_timestamp: int, base_offset: int, now_ms: int
    ) -> LogSegment:
        """The segment for a batch: the active one, or a new one if a roll is due. An ``OSError`` changes nothing."""
        if self._segments.must_roll(length, last_offset, max_timestamp, now_ms):
            self._roll(base_of_next(self.log_end_offset, base_offset, last_offset), now_ms)
        return self._segments.items[-1]

    def _repeated(self, batch: RecordBatch, now_ms: int, connection: ProducerConnection | None) -> BatchMetadata | None:
        """The batch of an earlier epoch that ``batch`` repeats; None if there is none. Raises KAFKA_STORAGE_ERROR."""
        for known in self.producers.repetitions(batch, now_ms, connection):
            if self._is_stored(batch, known.first_offset):
                return known
        return None

    def _is_stored(self, batch: RecordBatch, offset: int) -> bool:
        if offset < self.log_start_offset:
            return False
        end = self.log_end_offset
        try:
            found = self._segments.read(offset, 1, end, end, at_least_one=True, waits=True).records
            stored = next(
                iter_batches(found if isinstance(found, bytes) else found.read(), allow_partial_tail=True), None
            )
        except CorruptRecordError:
            return False
        except OSError as error:
            raise self._durability.storage_error("read", error) from error
        return stored is not None and stored.base_offset == offset and is_same_batch(batch, stored)

    def _record(self, segment: LogSegment, batch: RecordBatch, base_offset: int, now_ms: int) -> None:
        aborted = self.producers.record(batch, base_offset, now_ms)
        if aborted is not None:
            segment.txn_index.append(aborted)

    def _appended(self, log_end_offset: int, count: int) -> None:
        self.log_end_offset = log_end_offset
        if self.rebuild is None:
            self.producers.map_end_offset = log_end_offset
        durability = self._durability
        durability.unflushed += count
        if durability.unflushed >= self.config.flush_messages:
            self.on_flush_needed(self)

    def roll(self) -> None:
        """Begin a new segment at the log end, unless the active segment is empty. Raises KAFKA_STORAGE_ERROR."""
        self._durability.check_changeable()
        try:
            self._roll(self.log_end_offset, self._clock.now_ms())
        except OSError as error:
            raise self._durability.storage_error("roll", error) from error

    def _roll(self, base_offset: int, now_ms: int) -> None:
        """Begin a new segment, see ``SegmentList.roll``. After an ``OSError`` the log is as before."""
        if self._segments.roll(base_offset, now_ms, self.producers if self.rebuild is None else None):
            self.on_flush_needed(self)

    # ------------------------------------------------------------ read

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_bound: int,
        at_least_one: bool = True,
        include_aborted: bool = False,
        waits: bool = True,
    ) -> LogRead:
        """Read about ``max_bytes`` of a segment, from the batch that holds ``offset`` on, below ``upper_bound``.

        ``at_least_one``: the first batch is whole even if it is larger than ``max_bytes``. ``upper_bound``: the high
        watermark, last stable offset or the log end. Raises OFFSET_OUT_OF_RANGE 1 outside of the log; ``ColdError``
        unless ``waits``.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.partition}: offset {offset} is not in [{self.log_start_offset}, {self.log_end_offset}]",
            )
        try:
            found = self._segments.read(offset, max_bytes, upper_bound, self.log_end_offset, at_least_one, waits)
            aborted = None
            if include_aborted:
                aborted = self._segments.aborted(offset, upper_bound, waits) if found.records else []
        except OSError as error:
            raise self._durability.storage_error("read", error) from error
        return LogRead(offset, found.records, found.offset_count, aborted)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch, (-1, -1) when not known (KIP-101, KIP-279)."""
        return self.leader_epoch_cache.end_offset_for(epoch, self.log_end_offset)

    # ------------------------------------------------------------ watermarks and ends

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to ``offset``, at most to the log end; returns whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)
        return True

    def delete_records_before(self, offset: int, *, even_if_compacted: bool = False) -> int:
        """DeleteRecords: raise the log start to ``offset`` (-1: the high watermark); returns the new log start.

        Raises OFFSET_OUT_OF_RANGE 1 above the high watermark, POLICY_VIOLATION 44 when the topic is only compacted.
        """
        if not self.config.deletes and not even_if_compacted:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{self.partition}: cleanup.policy does not include delete")
        target = self.high_watermark if offset == HIGH_WATERMARK else offset
        if target < 0 or target > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.partition}: offset {offset} is not between 0 and the high watermark {self.high_watermark}",
            )
        self.advance_log_start(target)
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> bool:
        """Raise the log start (for DeleteRecords, retention or a leader's start); returns whether it moved."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epoch_cache.truncate_from_start(offset)
        self.producers.on_log_start(offset)
        self.on_log_start_moved(self)
        return True

    def truncate_to(self, offset: int) -> bool:
        """Drop the batches with records at or above ``offset``; returns whether there were any.

        A leader epoch that begins at or above ``offset`` is forgotten even when it has no records. If very many bytes
        are dropped, they stay in the file until ``finish_truncation``, and the log ``awaits_cut``. Raises
        KAFKA_STORAGE_ERROR.
        """
        return self._truncation.truncate_to(self, offset)

    @property
    def awaits_cut(self) -> bool:
        """Whether a truncation is not finished: until then the log is only read and flushed.

        Such a log has a ``rebuild``. So the replica does not lead, the log is not compacted, and retention ignores it.
        Appends and further truncations are refused. A crash brings the truncated records back, as with any truncation
        that is not synced.
        """
        return self._segments.active.awaits_cut

    async def finish_truncation(self) -> None:
        """Return when the truncated records are cut from the file.

        Raises KAFKA_STORAGE_ERROR; a later call then continues the cut.
        """
        await self._durability.finish_truncation()

    def truncate_fully_and_start_at(self, offset: int, producers: ProducerFiles = NO_FILES) -> None:
        """Drop all records; the next record gets ``offset`` (for a follower out of its leader's range).

        ``producers`` are those known at ``offset``. First all records are dropped from the start, as retention
        does. Then the remaining empty file is renamed. If a step fails with KAFKA_STORAGE_ERROR, the earlier steps stay
        done, and a second call continues.
        """
        self._truncation.truncate_fully_and_start_at(self, offset, producers)

    # ------------------------------------------------------------ retention

    def delete_old_segments(self, retained_from: int = NOTHING_RETAINED) -> int:
        """Delete the segments that retention or the log start allows to delete; returns how many.

        Retention by time deletes no record from ``retained_from`` on. Raises KAFKA_STORAGE_ERROR.
        """
        if self.is_broken or self.rebuild is not None:
            return 0
        now_ms = self._clock.now_ms()
        facts = facts_of(self.segments, self.log_end_offset)
        self.latest_timestamp_ms = max(segment.timestamp for segment in facts)
        count = count_deletable(facts, self.config, now_ms, self.high_watermark, self.log_start_offset, retained_from)
        count = min(count, SEGMENTS_DELETED_AT_ONCE)
        if count == 0:
            return 0
        try:
            if count == len(self._segments.items):
                self._roll(self.log_end_offset, now_ms)
            self.advance_log_start(self._segments.bases[count])
            self.on_files_deleted(self)
            for _ in range(count):
                self._segments.drop(0, now_ms)
        except OSError as error:
            raise self._durability.storage_error("delete segments", error) from error
        return count

    def replace_segments(self, old: Sequence[LogSegment], cleaned: LogSegment) -> bool:
        """Replace the segments ``old`` by a complete cleaned segment; False if some of ``old`` were removed.

        Returns False also while the log has a ``rebuild``. A range of a removed file that is being sent stays readable.
        Raises KAFKA_STORAGE_ERROR. After this error the log is as before if the cleaned segment was not committed.
        Otherwise the log is broken, and the next start finishes the swap.
        """
        self._durability.check_changeable()
        first = self._segments.index_of(old[0].base_offset)
        last = first + len(old)
        if self.rebuild is not None or first < 0 or last >= len(self._segments.items):
            return False
        if self._segments.items[first:last] != list(old):
            return False
        try:
            commit_cleaned(self._storage, self.directory, cleaned.base_offset)
        except OSError as error:
            raise self._durability.storage_error("replace segments", error) from error
        try:
            finish_swap(self._storage, self.directory, cleaned.base_offset, [segment.base_offset for segment in old])
        except OSError as error:
            self.fail(f"the cleaned segment at offset {cleaned.base_offset} did not replace the old ones: {error}")
            raise self._durability.storage_error("replace segments", error) from error
        for segment in old:
            segment.close()
        cleaned.take_over_names()
        self._segments.flushed([cleaned])
        self._segments.replace(first, last, cleaned)
        return True

    @property
    def has_deleted_files(self) -> bool:
        """Whether files of deleted segments wait for their removal."""
        return self._segments.has_deleted_files

    def remove_due_files(self, *, all_of_them: bool = False) -> int:
        """Remove ``.deleted`` files whose delay is over; only some, unless ``all_of_them``. Returns how many."""
        return self._segments.remove_files(None if all_of_them else self._clock.now_ms())

    # ------------------------------------------------------------ flush and end

    @property
    def recovery_point(self) -> int:
        """All records below this offset are on disk. Recovery after a crash begins in the segment that holds it."""
        return self._durability.recovery_point

    @property
    def truncations(self) -> int:
        """The number of truncations since the log was opened."""
        return self._durability.truncations

    @property
    def flush_due(self) -> bool:
        """Whether ``flush.messages`` or ``flush.ms`` requires a flush."""
        return self._durability.is_due(self.log_end_offset, self.config)

    @property
    def truncation_synced(self) -> bool:
        """Whether truncated records stay removed after a power cut."""
        return self._durability.truncation_synced

    @property
    def is_synced(self) -> bool:
        """Whether a power cut leaves the log as it is."""
        return self._durability.recovery_point >= self.log_end_offset and self._durability.truncation_synced

    async def flush(self) -> None:
        """Return when all records that the log had at the call are on disk, except for records truncated meanwhile.

        Calls made while a flush runs share the next flush. After a failed sync every flush raises KAFKA_STORAGE_ERROR
        until the log is opened again, because the kernel forgets the pages that it could not write: a second sync would
        succeed without these pages.
        """
        await self._durability.flush(lambda: self.log_end_offset)

    async def sync_identity(self) -> None:
        """Return when the identity of a new log is on disk. Raises KAFKA_STORAGE_ERROR, as ``flush``."""
        await self._durability.sync_identity()

    def release_caches(self) -> None:
        """Release the memory that look-ups in sealed segments use, and the file of a log without recent appends.

        A log has had no recent append if it ends where it ended at the previous call. If it is not synced yet, it is
        flushed, and the next call releases its file. The kernel has written old records already, so the flush is cheap.
        """
        self._segments.release_sealed()
        is_idle = self.log_end_offset == self._end_at_last_release
        self._end_at_last_release = self.log_end_offset
        if not is_idle or self.is_broken or self.rebuild is not None:
            return
        if self.is_synced:
            self._segments.release_active()
        else:
            self.on_flush_needed(self)

    def update_config(self, config: LogConfig) -> None:
        """Use a changed configuration from the next call on."""
        if config == self.config:
            return
        self.config = config
        self._segments.configure(config)

    async def close(self) -> None:
        """Flush, write indexes, snapshot and epochs, close the files: opening again needs no recovery.

        Raises KAFKA_STORAGE_ERROR.
        """
        await self.flush()
        self._durability.check_usable()
        await catch_up(self)
        try:
            for segment in self._segments.items:
                if not segment.is_sealed:
                    segment.prepare()
                    segment.seal()
            if self._segments.have_records or self.producers.producers:
                self.snapshots.take(self.producers)
            await self.snapshots.write_begun(self._clock)
            self.leader_epoch_cache.save()
            self.remove_due_files(all_of_them=True)
        except OSError as error:
            raise self._durability.storage_error("close", error) from error
        self.close_files()

    def close_files(self) -> None:
        """Close the files as they are; a range that is being sent stays readable."""
        self.snapshots.give_up()
        self.identity.close()
        self._segments.close()

    # ------------------------------------------------------------ failure

    def call_when_disk_full(self, callback: Callable[[TopicPartition], None]) -> None:
        """Call ``callback`` when a write is refused because there is no space."""
        self._durability.on_disk_full = callback

    @property
    def is_broken(self) -> bool:
        """Whether the disk failed permanently: nothing is appended until the next start."""
        return self._durability.is_broken

    @is_broken.setter
    def is_broken(self, is_broken: bool) -> None:
        self._durability.is_broken = is_broken

    @property
    def failure(self) -> str:
        """The reason why the log is broken; empty if it is not known."""
        return self._durability.failure

    def fail(self, reason: str) -> None:
        """Mark the log as broken: records that were not on disk may be lost.

        The log is not used until it is opened again.
        """
        self._durability.fail(reason)
