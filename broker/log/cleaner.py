"""Compacts the logs whose ``cleanup.policy`` includes compact: chooses the log and its range, and writes the files.

``compaction`` decides which records are kept, ``segment_swap`` puts the result in place. All CPU work pauses every 2
ms.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise

import structlog
import trio

from anabranch.broker.log.batch_reader import BatchReader
from anabranch.broker.log.cold_reads import load_indexes
from anabranch.broker.log.compaction import CleanedTransactions, KeyOffsets, RetainRules
from anabranch.broker.log.current_logs import CurrentLogs
from anabranch.broker.log.dirty_range import DirtyRange, dirty_range
from anabranch.broker.log.log_directory import LogDirectory
from anabranch.broker.log.manager_config import LogManagerConfig
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import CLEANED_SUFFIX, CLEANER_CHECKPOINT, SEGMENT_SUFFIXES
from anabranch.broker.log.segment import MAX_RELATIVE_OFFSET, LogSegment
from anabranch.broker.log.slices import TimeSlice, in_slices
from anabranch.ordered_resize.lineage import EVERY_EPOCH
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Env, Storage

logger = structlog.get_logger(__name__)

TASK = "log-cleaner"
_INDEX_ENTRY_BYTES = 8


class LogCleaner:
    """Compacts log after log, the dirtiest first; waits ``log.cleaner.backoff.ms`` if no log is dirty enough."""

    def __init__(
        self, env: Env, config: LogManagerConfig, logs: CurrentLogs, background: Background | None = None
    ) -> None:
        assert env.storage is not None
        self._background = background or Background(env.clock, propagate_bugs=env.propagate_bugs)
        self._env = env
        self._storage: Storage = env.storage
        self._config = config
        self._reconfigured = trio.Event()
        self._logs = logs
        self._first_dirty: dict[TopicPartition, int] = {}
        self.runs = 0
        """The number of compactions, and the bytes of the logs before and after them."""
        self.bytes_before = 0
        self.bytes_after = 0
        self.last_look_at: float | None = None
        """The time of the last search for a log to compact, by ``env.clock.monotonic()``."""
        self.largest_ratio = 0.0
        """The largest dirty ratio that the last search found."""
        self.first_kept_epoch: Callable[[TopicPartition], Awaitable[int]] = _no_tombstones
        """Returns the first leader epoch whose tombstones stay; another partition may hold older values of the keys."""

    # ------------------------------------------------------------ the checkpoint

    def load_checkpoint(self, directory: LogDirectory) -> None:
        """Read the offset at which the dirty part of each log in a dir begins."""
        self._first_dirty.update(directory.read_offsets(CLEANER_CHECKPOINT))

    def write_checkpoint(self, directory: LogDirectory) -> None:
        """Write the offsets at which the dirty parts begin, for the logs that still exist. Raises ``OSError``."""
        offsets = {partition: offset for partition, offset in self._first_dirty.items() if partition in directory.logs}
        if offsets or self._storage.exists(f"{directory.path}/{CLEANER_CHECKPOINT}"):
            directory.write_cleaner_offsets(offsets)

    def forget(self, partition: TopicPartition) -> None:
        """Forget the offset at which the dirty part of a deleted log begins."""
        self._first_dirty.pop(partition, None)

    # ------------------------------------------------------------ the choice

    async def run(self) -> None:
        """Clean for ever."""
        while True:
            if not await self.clean_dirtiest():
                await self._pause(self._config.cleaner_backoff_ms / 1000)

    def reconfigure(self, config: LogManagerConfig) -> None:
        """Use ``config`` from now on. If the cleaner is pausing, the pause ends."""
        self._config = config
        self._reconfigured.set()
        self._reconfigured = trio.Event()

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._reconfigured.wait()

    async def clean_dirtiest(self) -> bool:
        """Clean the log with the largest dirty ratio of those that are dirty enough or overdue; False if there is none.

        The keys are ``min.cleanable.dirty.ratio`` and ``max.compaction.lag.ms``. If a log cannot be cleaned, or cannot
        even be examined, it is paused, and the next log is tried.
        """
        best: tuple[float, PartitionLog, DirtyRange] | None = None
        self.last_look_at, self.largest_ratio = self._env.clock.monotonic(), 0.0
        for log in self._logs.all():
            if log.rebuild is not None or not log.config.compacts or not self._background.due(TASK, log.partition):
                continue
            try:
                dirty = self.dirty_range(log)
            except Exception as error:
                self._background.failed(TASK, log.partition, error)
                continue
            self.largest_ratio = max(self.largest_ratio, dirty.ratio)
            eligible = dirty.dirty_bytes > 0 and (dirty.overdue or dirty.ratio > log.config.min_cleanable_dirty_ratio)
            if not eligible:
                self._background.succeeded(TASK, log.partition)
            elif best is None or dirty.ratio > best[0]:
                best = dirty.ratio, log, dirty
        if best is None:
            return False
        _, log, dirty = best
        with self._background.guard(TASK, log.partition):
            await self.clean(log, dirty)
        return True

    def dirty_range(self, log: PartitionLog) -> DirtyRange:
        """The part of ``log`` that is dirty now."""
        return dirty_range(log, self._first_dirty.get(log.partition, 0), self._env.clock.now_ms())

    # ------------------------------------------------------------ cleaning

    async def clean(self, log: PartitionLog, dirty: DirtyRange) -> None:
        """Compact a log up to the first offset whose keys were not read. Raises ``OSError``, ``KafkaError``."""
        try:
            await self._clean(log, dirty)
        finally:
            log.release_caches()

    async def _clean(self, log: PartitionLog, dirty: DirtyRange) -> None:
        work = TimeSlice(self._env.clock)
        truncations = log.truncations  # after a truncation, another batch may be the last of a producer
        await load_indexes(self._storage, [segment.txn_index for segment in log.segments])
        keys = await self._read_keys(log, dirty, work)
        rules = RetainRules(
            keys,
            log.producers.producers,
            self._env.clock.now_ms(),
            log.config.delete_retention_ms,
            await self.first_kept_epoch(log.partition),
        )
        ends = [segment.base_offset for segment in log.segments[1:]]
        cleanable = [segment for segment, end in zip(log.segments, ends) if segment.base_offset < keys.end_offset]
        transactions = CleanedTransactions(txn for segment in cleanable for txn in segment.txn_index.transactions())
        before = sum(segment.size_bytes for segment in cleanable)
        for group in group_segments(log, cleanable):
            if not await self._clean_group(log, group, rules, transactions, work, truncations):
                return  # truncated or deleted meanwhile
        self._first_dirty[log.partition] = keys.end_offset
        home = self._logs.home(log.partition)
        if home is not None:
            self.write_checkpoint(home)
        after = sum(segment.size_bytes for segment in log.segments if segment.base_offset < keys.end_offset)
        self.runs += 1
        self.bytes_before += before
        self.bytes_after += after
        logger.info(
            "cleaner.cleaned", partition=str(log.partition), keys=len(keys), before_bytes=before, after_bytes=after
        )

    async def _read_keys(self, log: PartitionLog, dirty: DirtyRange, work: TimeSlice) -> KeyOffsets:
        keys = KeyOffsets(self._config.cleaner_dedupe_buffer_bytes)
        segments = [
            segment
            for segment, following in pairwise(log.segments)
            if following.base_offset > dirty.first_dirty and segment.base_offset < dirty.first_uncleanable
        ]
        transactions = CleanedTransactions(txn for segment in segments for txn in segment.txn_index.transactions())
        for segment in segments:
            async for batch in read_batches(segment):
                if batch.last_offset >= dirty.first_dirty and not await in_slices(keys.add(batch, transactions), work):
                    return keys
                if work.due():
                    await work.pause()
        keys.end_offset = dirty.first_uncleanable
        return keys

    async def _clean_group(
        self,
        log: PartitionLog,
        group: Sequence[LogSegment],
        rules: RetainRules,
        transactions: CleanedTransactions,
        work: TimeSlice,
        truncations: int,
    ) -> bool:
        """Replace ``group`` by one segment with its kept records; False if the log changed meanwhile."""
        now_ms = self._env.clock.now_ms()
        base = group[0].base_offset
        cleaned = LogSegment(self._storage, log.directory, base, log.config, now_ms, create=True, suffix=CLEANED_SUFFIX)
        try:
            for segment in group:
                await self._copy(segment, cleaned, rules, transactions, work, is_last=segment is group[-1])
            for txn in transactions.take_kept():
                cleaned.txn_index.append(txn)
            await cleaned.file.sync()
            await cleaned.sync_indexes()
            if log.truncations == truncations and log.replace_segments(group, cleaned):
                return True
        except BaseException:
            self._discard(cleaned)
            raise
        self._discard(cleaned)
        return False

    async def _copy(
        self,
        segment: LogSegment,
        cleaned: LogSegment,
        rules: RetainRules,
        transactions: CleanedTransactions,
        work: TimeSlice,
        *,
        is_last: bool,
    ) -> None:
        copied = position = 0
        async for batch in read_batches(segment):
            position += batch.length
            ends_segment = is_last and position == segment.size_bytes
            kept = await in_slices(rules.retain(batch, transactions, ends_segment=ends_segment), work)
            if kept is not None:
                view = RecordBatch(kept)
                cleaned.append(kept, view.last_offset, view.max_timestamp)
            copied += batch.length
            if work.due():
                await work.pause()
                copied = await self._throttle(copied)

    async def _throttle(self, copied_bytes: int) -> int:
        """Keep to ``log.cleaner.io.max.bytes.per.second``; returns the bytes that are not accounted for yet."""
        rate = self._config.cleaner_io_max_bytes_per_second
        delay_s = 2 * copied_bytes / rate if rate > 0 else 0.0  # each byte is read and written
        if delay_s < 0.001:
            return copied_bytes
        await self._pause(delay_s)
        return 0

    def _discard(self, cleaned: LogSegment) -> None:
        cleaned.close()
        for suffix in SEGMENT_SUFFIXES:
            with contextlib.suppress(OSError):
                self._storage.remove(cleaned.path(suffix))


async def _no_tombstones(_partition: TopicPartition) -> int:
    return EVERY_EPOCH


async def read_batches(segment: LogSegment) -> AsyncIterator[RecordBatch]:
    """Yields all batches of a segment, whole and checked. A thread reads the disk. Raises ``CorruptRecordError``."""
    await segment.ready()
    reader = BatchReader(segment.file, segment.size_bytes)
    position = 0
    while position < segment.size_bytes:
        await reader.warm(position)
        try:
            batch = reader.at(position)
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{segment.file.path}: {error.message}", error.code) from error
        yield batch
        position += batch.length


def group_segments(log: PartitionLog, segments: Sequence[LogSegment]) -> list[list[LogSegment]]:
    """Groups of neighbouring segments that fit into one segment by file size, index size and range of offsets."""
    config = log.config
    ends = {segment.base_offset: following.base_offset for segment, following in pairwise(log.segments)}
    groups: list[list[LogSegment]] = []
    size = index_bytes = 0
    for segment in segments:
        entries_bytes = segment.offset_index.size_on_disk()
        fits = (
            groups
            and size + segment.size_bytes <= config.segment_bytes
            and index_bytes + entries_bytes <= config.segment_index_bytes - _INDEX_ENTRY_BYTES
            and ends[segment.base_offset] - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        )
        if fits:
            groups[-1].append(segment)
            size += segment.size_bytes
            index_bytes += entries_bytes
        else:
            groups.append([segment])
            size, index_bytes = segment.size_bytes, entries_bytes
    return groups
