"""A partition's log: append, read, find, truncate, delete. Everything here runs between two suspensions of the loop.

Opening one that exists, with its recovery, is ``log_loader``; compaction is ``cleaner``.
"""

from __future__ import annotations

import errno
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence

import structlog
import trio

from broker.log.append_validation import batch_log_append_time, validate_append
from broker.log.blank_directories import blank_directory
from broker.log.checkpoint_files import PartitionMetadata
from broker.log.identity_file import IdentityFile
from broker.log.layout_history import LayoutHistory
from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.log.log_config import LogConfig
from broker.log.log_state import AppendResult, LogRead, LogState
from broker.log.paths import LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, PARTITION_COUNT_CHECKPOINT, join
from broker.log.producer_state import AppendOrigin, ProducerState
from broker.log.retention import FILES_REMOVED_AT_ONCE, SEGMENTS_DELETED_AT_ONCE, SegmentFacts, count_deletable
from broker.log.segment import LogSegment
from broker.log.segment_swap import commit_cleaned, finish_swap
from broker.log.snapshot_files import SnapshotFiles, replay_producers, restore_producers
from broker.log.txn_index import AbortedTxn
from protocol.batch_layout import Buffer
from protocol.errors import ErrorCode, KafkaError
from protocol.records import RecordBatch, iter_batches, set_base_offset
from protocol.types import TopicPartition
from runtime.env import Clock, Env, FileRange, Storage

__all__ = ["AppendOrigin", "AppendResult", "LogRead", "PartitionLog"]

logger = structlog.get_logger(__name__)


_DISK_IS_GONE = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO})  # a full disk is not gone


def _ignore(_log: PartitionLog) -> None:
    return None


class PartitionLog:
    """One replica's log. Offsets: log start <= last stable <= high watermark <= log end; records are below log end."""

    __slots__ = (
        "_bases",
        "_clock",
        "_doomed",
        "_epochs",
        "_flush_limit",
        "_flush_lock",
        "_jitter_ms",
        "_last_flush_ms",
        "_rng",
        "_segments",
        "_snapshots",
        "_storage",
        "_sync_failure",
        "_synced_truncations",
        "_truncations",
        "_unflushed",
        "config",
        "directory",
        "high_watermark",
        "identity",
        "is_broken",
        "layouts",
        "log_end_offset",
        "log_start_offset",
        "on_flush_needed",
        "on_log_start_moved",
        "on_truncated",
        "partition",
        "producers",
        "recovery_point",
    )

    def __init__(
        self,
        env: Env,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        state: LogState,
    ) -> None:
        assert env.storage is not None
        self._storage: Storage = env.storage
        self._clock: Clock = env.clock
        self._rng: random.Random = env.rng
        self.directory = directory
        self.partition = partition
        self.identity = state.identity
        """Whose log this is."""
        self.config = config
        self._segments = state.segments
        self._bases = [segment.base_offset for segment in state.segments]
        self._epochs = state.epochs
        self.layouts = state.layouts
        self._snapshots = state.snapshots
        self.producers = state.producers
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = state.log_end_offset
        self.high_watermark = state.high_watermark
        self.recovery_point = state.recovery_point
        """Everything below is on disk; recovery after a crash begins in its segment."""
        self._truncations = 0 if state.truncation_synced else 1
        self._synced_truncations = 0
        self.on_flush_needed: Callable[[PartitionLog], None] = _ignore
        """Called when ``flush.messages`` is reached or a segment was rolled: the log manager flushes soon."""
        self.on_log_start_moved: Callable[[PartitionLog], None] = _ignore
        self.is_broken = False
        """The disk failed in a way that does not pass: until the next start nothing here is to be relied on."""
        self.on_truncated: Callable[[PartitionLog], None] = _ignore
        """Called when a truncation lowered the recovery point: the log manager writes its checkpoint at once."""
        self._flush_lock = trio.Lock()
        self._flush_limit = 0
        self._sync_failure = ""
        self._last_flush_ms = env.clock.now_ms()
        self._unflushed = 0
        self._doomed: list[tuple[int, str]] = []
        self._jitter_ms = self._draw_jitter()

    @classmethod
    def create(
        cls,
        env: Env,
        directory: str,
        partition: TopicPartition,
        metadata: PartitionMetadata,
        config: LogConfig,
        producers: ProducerState,
        *,
        start_offset: int = 0,
    ) -> PartitionLog:
        """A new, empty log in a new directory; its first record is ``start_offset``.

        Raises ``OSError`` and leaves no directory then, if the disk allows that.
        """
        storage = env.storage
        assert storage is not None
        with blank_directory(storage, directory):
            identity = IdentityFile.create(storage, directory, metadata)
            segment = LogSegment(storage, directory, start_offset, config, env.clock.now_ms(), create=True)
        epochs = LeaderEpochCache(storage, join(directory, LEADER_EPOCH_CHECKPOINT))
        layouts = LayoutHistory(storage, join(directory, PARTITION_COUNT_CHECKPOINT))
        offsets = (start_offset,) * 4
        state = LogState(identity, [segment], epochs, layouts, producers, SnapshotFiles(storage, directory), *offsets)
        return cls(env, directory, partition, config, state)

    def moved_to(self, directory: str) -> None:
        """The log's directory has another name now; its open files are the same."""
        self.directory = directory
        self.identity.moved_to(directory)
        for segment in self._segments:
            segment.moved_to(directory)
        self._snapshots.moved_to(directory)
        self._epochs.moved_to(join(directory, LEADER_EPOCH_CHECKPOINT))
        self.layouts.moved_to(join(directory, PARTITION_COUNT_CHECKPOINT))

    # ------------------------------------------------------------ what is known

    @property
    def segments(self) -> Sequence[LogSegment]:
        """The segments, oldest first; there is always one. The last takes appends."""
        return self._segments

    @property
    def size_bytes(self) -> int:
        """Bytes in all log files."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def latest_epoch(self) -> int:
        """Leader epoch of the newest records, or assigned since; -1 when there is none."""
        return self._epochs.latest_epoch

    @property
    def leader_epoch_cache(self) -> LeaderEpochCache:
        return self._epochs

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided and replicated; it is never below the log start."""
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
        admission: Callable[[RecordBatch], None] | None = None,
    ) -> AppendResult:
        """Give the one batch in ``records`` its offsets and append it; the buffer is rewritten in place where writable.

        A batch that a producer repeats is not appended again. Any other has to pass ``admission``, before its sequence
        is looked at: what follows a refused batch is refused for the same reason. Raises ``KafkaError``: the codes of
        ``validate_append``, of ``admission`` and of ``ProducerState.check``, or KAFKA_STORAGE_ERROR 56 when the disk
        refuses, with the log as it was before.
        """
        now_ms = self._clock.now_ms()
        batch = validate_append(records, self.config, now_ms, origin)
        if admission is not None and self.producers.find_duplicate(batch) is None:
            admission(batch)
        has_producer = batch.producer_id >= 0
        if has_producer:
            if batch.is_control:
                self.producers.check_marker(batch)
            elif (known := self.producers.check(batch, origin)) is not None:
                time_ms = known.timestamp if self.config.log_append_time else -1
                return AppendResult(known.first_offset, known.last_offset, time_ms, self.log_start_offset, True)
        base_offset = self.log_end_offset
        last_offset = base_offset + batch.last_offset_delta
        buffer = batch.buffer
        set_base_offset(buffer, base_offset, leader_epoch)
        try:
            segment = self._segment_for(batch.length, last_offset, batch.max_timestamp, base_offset, now_ms)
            segment.append(buffer, last_offset, batch.max_timestamp)
        except OSError as error:
            raise self._storage_error("append", error) from error
        if leader_epoch > self._epochs.latest_epoch:
            self._epochs.assign(leader_epoch, base_offset)
        if has_producer:
            self._record(segment, batch, base_offset)
        self._appended(last_offset + 1, batch.count)
        return AppendResult(base_offset, last_offset, batch_log_append_time(batch), self.log_start_offset)

    def append_as_follower(self, records: Buffer) -> int:
        """Append what a leader sent, offsets and all; a cut-off batch at the end is left out. The new log end offset.

        Raises ``KafkaError``: CORRUPT_MESSAGE 2 for a bad CRC or offsets that do not follow on, 56 when the disk
        refuses. Batches before the bad one are appended.
        """
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
                raise self._storage_error("append", error) from error
            self._epochs.assign(batch.partition_leader_epoch, batch.base_offset)
            if batch.producer_id >= 0:
                self._record(segment, batch, batch.base_offset)
            self._appended(batch.next_offset, batch.count)
        return self.log_end_offset

    def assign_epoch(self, leader_epoch: int) -> None:
        """This replica leads from here on in ``leader_epoch``."""
        self._epochs.assign(leader_epoch, self.log_end_offset)

    def _segment_for(
        self, length: int, last_offset: int, max_timestamp: int, base_offset: int, now_ms: int
    ) -> LogSegment:
        segment = self._segments[-1]
        if segment.must_roll(length, last_offset, max_timestamp, now_ms, self.config, self._jitter_ms):
            segment = self._roll(base_offset, now_ms)
        return segment

    def _record(self, segment: LogSegment, batch: RecordBatch, base_offset: int) -> None:
        aborted = self.producers.record(batch, base_offset)
        if aborted is not None:
            segment.txn_index.append(aborted)

    def _appended(self, log_end_offset: int, count: int) -> None:
        self.log_end_offset = log_end_offset
        self.producers.map_end_offset = log_end_offset
        self._unflushed += count
        if self._unflushed >= self.config.flush_messages:
            self.on_flush_needed(self)

    # ------------------------------------------------------------ roll

    def roll_if_needed(self) -> bool:
        """Roll when the active segment is older than ``segment.ms`` and holds records; whether it was. Raises 56."""
        active = self._segments[-1]
        now_ms = self._clock.now_ms()
        if not active.size_bytes or not active.must_roll(
            0, self.log_end_offset, now_ms, now_ms, self.config, self._jitter_ms
        ):
            return False
        self.roll()
        return True

    def roll(self) -> LogSegment:
        """Begin a new segment at the log end; the active one when that is empty. Raises 56."""
        try:
            return self._roll(self.log_end_offset, self._clock.now_ms())
        except OSError as error:
            raise self._storage_error("roll", error) from error

    def _roll(self, base_offset: int, now_ms: int) -> LogSegment:
        active = self._segments[-1]
        if active.base_offset == base_offset:
            return active
        segment = LogSegment(self._storage, self.directory, base_offset, self.config, now_ms, create=True)
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._jitter_ms = self._draw_jitter()
        try:
            active.seal()
            self.producers.map_end_offset = base_offset
            self._snapshots.take(self.producers)
        except OSError as error:  # recovery rebuilds both; the next flush tries the indexes again
            logger.warning("log.roll_incomplete", partition=str(self.partition), error=str(error))
        self.on_flush_needed(self)
        return segment

    def _draw_jitter(self) -> int:
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._rng.randrange(jitter_ms) if jitter_ms > 0 else 0

    # ------------------------------------------------------------ read

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_bound: int,
        at_least_one: bool = True,
        include_aborted: bool = False,
    ) -> LogRead:
        """Batches from the one that holds ``offset``, all below ``upper_bound``, about ``max_bytes`` of one segment.

        ``at_least_one``: the first batch comes whole even when it is larger. ``upper_bound`` is the high watermark, the
        last stable offset or the log end. Raises OFFSET_OUT_OF_RANGE 1 outside of [log start, log end].
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.partition}: offset {offset} is not in [{self.log_start_offset}, {self.log_end_offset}]",
            )
        try:
            records = self._read_range(offset, max_bytes, upper_bound, at_least_one)
        except OSError as error:
            raise self._storage_error("read", error) from error
        aborted = None
        if include_aborted:
            aborted = self._aborted_from(offset, upper_bound) if records else []
        return LogRead(offset, records, self.high_watermark, self.last_stable_offset, self.log_start_offset, aborted)

    def _read_range(self, offset: int, max_bytes: int, upper_bound: int, at_least_one: bool) -> FileRange | bytes:
        if offset >= upper_bound or (max_bytes <= 0 and not at_least_one):
            return b""
        for index in range(bisect_right(self._bases, offset) - 1, len(self._segments)):
            segment = self._segments[index]
            start = segment.locate(offset)
            if start is None:
                continue
            limit = segment.size_bytes
            if upper_bound < self.log_end_offset:
                if segment.base_offset >= upper_bound:
                    return b""
                bound = segment.locate(upper_bound)
                limit = segment.size_bytes if bound is None else bound.position
            if limit <= start.position or (start.length > max_bytes and not at_least_one):
                return b""
            end = segment.end_of_range(start, max_bytes, limit)
            return segment.file.range(start.position, end - start.position)
        return b""

    def _aborted_from(self, offset: int, upper_bound: int) -> list[AbortedTxn]:
        found: list[AbortedTxn] = []
        for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            more, complete = segment.txn_index.collect(offset, upper_bound)
            found += more
            if complete:
                break
        return found

    def offset_for_time(self, timestamp: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record at or after ``timestamp``; None when there is none."""
        for segment in self._segments:
            if segment.largest_timestamp() >= timestamp:
                found = segment.find_by_timestamp(timestamp, self.log_start_offset)
                if found is not None:
                    return found
        return None

    def offset_of_max_timestamp(self) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the largest timestamp (KIP-734), or None."""
        filled = [segment for segment in self._segments if segment.size_bytes]
        if not filled:
            return None
        segment = max(filled, key=lambda candidate: candidate.largest_timestamp())
        return segment.find_by_timestamp(segment.largest_timestamp(), self.log_start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch, (-1, -1) when not known (KIP-101, KIP-279)."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    # ------------------------------------------------------------ watermarks and ends

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to ``offset``, at most to the log end; whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)
        return True

    def delete_records_before(self, offset: int, *, even_if_compacted: bool = False) -> int:
        """DeleteRecords: raise the log start to ``offset`` (-1: the high watermark). The new log start.

        Raises OFFSET_OUT_OF_RANGE 1 above the high watermark, POLICY_VIOLATION 44 when the topic is only compacted.
        """
        if not self.config.deletes and not even_if_compacted:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{self.partition}: cleanup.policy does not include delete")
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.partition}: offset {offset} is above the high watermark {self.high_watermark}",
            )
        self.advance_log_start(target)
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> bool:
        """Raise the log start (DeleteRecords, retention, a leader's); whether it moved."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self._epochs.truncate_from_start(offset)
        self.producers.on_log_start(offset)
        self.on_log_start_moved(self)
        return True

    def truncate_to(self, offset: int) -> bool:
        """Drop the records at and above ``offset``, whole batches; whether there were any. Raises 56.

        A leader epoch that begins at or above ``offset`` is forgotten even when it has no records.
        """
        if offset >= self.log_end_offset:
            self._epochs.truncate_from_end(offset)
            return False
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        try:
            keep = bisect_right(self._bases, offset)
            self._drop_segments(keep, len(self._segments))
            self._segments[-1].truncate_to(offset)
        except OSError as error:
            raise self._storage_error("truncate", error) from error
        end = self._end_of_last_segment()
        self._ended_at(end)
        restore_producers(self.producers, self._snapshots, self.log_start_offset, end, self._clock.now_ms())
        for _ in replay_producers(self.producers, self._segments, end):
            pass
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record is ``offset`` (a follower out of its leader's range). Raises 56."""
        try:
            self._drop_segments(0, len(self._segments))
            segment = LogSegment(self._storage, self.directory, offset, self.config, self._clock.now_ms(), create=True)
        except OSError as error:
            raise self._storage_error("truncate", error) from error
        self._segments.append(segment)
        self._bases.append(offset)
        self.log_start_offset = offset
        self._epochs.clear()
        self._snapshots.remove_above(-1)
        self._ended_at(offset)
        self.producers.clear(offset)
        self.on_log_start_moved(self)

    def _ended_at(self, end: int) -> None:
        self.log_end_offset = end
        self._truncations += 1
        self._flush_limit = min(self._flush_limit, end)
        lowered = end < self.recovery_point
        self.recovery_point = min(self.recovery_point, end)
        self.high_watermark = min(self.high_watermark, end)
        self.log_start_offset = min(self.log_start_offset, end)
        self._epochs.truncate_from_end(end)
        self._snapshots.remove_above(end)
        if lowered:
            self.on_truncated(self)

    def _end_of_last_segment(self) -> int:
        return self._segments[-1].load_tail()

    # ------------------------------------------------------------ retention

    def delete_old_segments(self) -> int:
        """Delete segments that retention or the log start allow, oldest first, some at a time; how many. Raises 56."""
        now_ms = self._clock.now_ms()
        ends = [*self._bases[1:], self.log_end_offset]
        facts = [
            SegmentFacts(end, segment.size_bytes, segment.retention_timestamp())
            for segment, end in zip(self._segments, ends)
        ]
        count = count_deletable(facts, self.config, now_ms, self.high_watermark, self.log_start_offset)
        count = min(count, SEGMENTS_DELETED_AT_ONCE)
        if count == 0:
            return 0
        try:
            if count == len(self._segments):
                self._roll(self.log_end_offset, now_ms)
            self.advance_log_start(self._bases[count])
            self._drop_segments(0, count)
        except OSError as error:
            raise self._storage_error("delete segments", error) from error
        return count

    def _drop_segments(self, first: int, last: int) -> None:
        """Forget the segments [first, last); their files go after ``file.delete.delay.ms``."""
        due_ms = self._clock.now_ms() + self.config.file_delete_delay_ms
        dropped = self._segments[first:last]
        del self._segments[first:last]
        del self._bases[first:last]
        for segment in dropped:
            self._doomed += [(due_ms, path) for path in segment.mark_deleted()]
            self._snapshots.remove_at(segment.base_offset)

    def replace_segments(self, old: Sequence[LogSegment], cleaned: LogSegment) -> bool:
        """Put a complete cleaned segment in the place of ``old``; False when some of those are gone. Raises 56.

        Readers keep what they have: a range of a removed file stays readable.
        """
        first = bisect_right(self._bases, old[0].base_offset) - 1
        last = first + len(old)
        if first < 0 or self._segments[first:last] != list(old) or last >= len(self._segments):
            return False
        try:
            commit_cleaned(self._storage, self.directory, cleaned.base_offset)
            for segment in old:
                segment.close()
            finish_swap(self._storage, self.directory, cleaned.base_offset, [segment.base_offset for segment in old])
            cleaned.take_over_names()
        except OSError as error:
            raise self._storage_error("replace segments", error) from error
        self._segments[first:last] = [cleaned]
        self._bases[first:last] = [cleaned.base_offset]
        for segment in old[1:]:
            self._snapshots.remove_at(segment.base_offset)
        return True

    def remove_due_files(self, *, all_of_them: bool = False) -> int:
        """Remove ``.deleted`` files whose delay is over, some at a time unless ``all_of_them``; how many."""
        now_ms = self._clock.now_ms()
        due = [item for item in self._doomed if all_of_them or item[0] <= now_ms]
        if not all_of_them:
            del due[FILES_REMOVED_AT_ONCE:]
        for doomed in due:
            if self._storage.exists(doomed[1]):
                self._storage.remove(doomed[1])
            self._doomed.remove(doomed)  # one that could not be removed stays, and those behind it
        return len(due)

    # ------------------------------------------------------------ flush and end

    @property
    def flush_due(self) -> bool:
        """Whether ``flush.messages`` or ``flush.ms`` asks for a flush."""
        if self.log_end_offset <= self.recovery_point:
            return False
        if self._unflushed >= self.config.flush_messages:
            return True
        return self._clock.now_ms() - self._last_flush_ms >= self.config.flush_ms

    @property
    def truncation_synced(self) -> bool:
        """Whether a power cut brings back nothing of what was truncated."""
        return self._synced_truncations == self._truncations

    @property
    def is_synced(self) -> bool:
        """Whether a power cut leaves the log as it is."""
        return self.recovery_point >= self.log_end_offset and self.truncation_synced

    @property
    def flushed_offset(self) -> int:
        """Everything below is on disk: what ``log.flush=ack`` may acknowledge."""
        return self.recovery_point

    async def flush(self) -> None:
        """Return when the log is on disk as it was at the call, but for what was truncated since. Raises 56.

        Callers that come while one flush runs share the next. After a failed sync every flush is refused until the
        log is opened again: the kernel forgets the pages it could not write, so that a second sync would succeed
        without them.
        """
        wanted = self.log_end_offset
        async with self._flush_lock:
            await self._sync_identity()
            if wanted > self.recovery_point or not self.truncation_synced:
                await self._flush_to(self.log_end_offset)
            if self.layouts.unsynced:
                await self._sync_layouts()

    async def sync_identity(self) -> None:
        """Return when the disk has whose log a new one is. Raises 56, as ``flush``."""
        async with self._flush_lock:
            await self._sync_identity()

    async def _sync_identity(self) -> None:
        if self._sync_failure:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition}: {self._sync_failure}")
        try:
            await self.identity.sync()
        except OSError as error:
            self.is_broken = True
            self._sync_failure = f"sync of {self.identity.path} failed: {error}"
            raise self._storage_error("sync partition.metadata", error) from error

    async def _sync(self, segment: LogSegment) -> None:
        try:
            await segment.file.sync()
        except OSError as error:
            if segment in self._segments:  # else it was deleted meanwhile
                self._sync_failure = f"sync of {segment.path(LOG_SUFFIX)} failed: {error}"
                raise

    async def _sync_layouts(self) -> None:
        try:
            await self.layouts.sync()
        except OSError as error:  # no record depends on it; the next flush tries again
            logger.warning("log.layouts_not_synced", partition=str(self.partition), error=str(error))

    async def _flush_to(self, target: int) -> None:
        self._flush_limit = target  # a truncation lowers it: what is appended after one is not in these syncs
        truncations, was_truncated = self._truncations, not self.truncation_synced
        self._unflushed = 0
        self._last_flush_ms = self._clock.now_ms()
        first = max(bisect_right(self._bases, self.recovery_point) - 1, 0)
        try:
            for segment in self._segments[first:]:
                if segment not in self._segments:
                    continue  # deleted while another was synced
                if segment.size_bytes or was_truncated:
                    await self._sync(segment)
                if segment is not self._segments[-1] and segment in self._segments:
                    await segment.sync_indexes()
            self._epochs.save()
            if was_truncated:
                await self._storage.sync_directory(self.directory)
        except OSError as error:
            # What a failed sync leaves on disk is not known, and a later one that succeeds does not say it either.
            self.is_broken = True
            raise self._storage_error("flush", error) from error
        self.recovery_point = max(self.recovery_point, self._flush_limit)
        self._synced_truncations = truncations

    def release_caches(self) -> None:
        """Drop what look-ups in sealed segments left in memory."""
        for segment in self._segments[:-1]:
            segment.release()

    def update_config(self, config: LogConfig) -> None:
        """Take over a changed configuration, from the next call on."""
        self.config = config
        for segment in self._segments:
            segment.configure(config)

    async def close(self) -> None:
        """Flush, write indexes, snapshot and epochs, give the files up: opening again needs no recovery. Raises 56."""
        await self.flush()
        try:
            self._segments[-1].seal()
            self._snapshots.take(self.producers)
            self._epochs.save()
            self.remove_due_files(all_of_them=True)
        except OSError as error:
            raise self._storage_error("close", error) from error
        self.close_files()

    def close_files(self) -> None:
        """Give the files up as they are; a range that is being sent stays readable."""
        self.identity.close()
        for segment in self._segments:
            segment.close()

    def _storage_error(self, action: str, error: OSError) -> KafkaError:
        logger.error("log.storage_error", partition=str(self.partition), action=action, error=str(error))
        if error.errno in _DISK_IS_GONE:
            self.is_broken = True
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition}: {action} failed: {error}")
