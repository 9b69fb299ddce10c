"""Keeps a log durable: flushes, the recovery point, truncations to sync, failures."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from anabranch.broker.log import disk_errors
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_state import LogState
from anabranch.broker.log.paths import LOG_SUFFIX
from anabranch.broker.log.segment import LogSegment
from anabranch.broker.log.segment_list import SegmentList
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock, Storage

logger = structlog.get_logger(__name__)


def _ignore(_partition: TopicPartition) -> None:
    return None


class Durability:
    """The durability of one log."""

    __slots__ = (
        "_clock",
        "_epochs",
        "_flush_limit",
        "_flush_lock",
        "_identity",
        "_last_flush_ms",
        "_layouts",
        "_partition",
        "_segments",
        "_storage",
        "_synced_truncations",
        "failure",
        "is_broken",
        "on_disk_full",
        "recovery_point",
        "truncations",
        "unflushed",
    )

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        partition: TopicPartition,
        segments: SegmentList,
        state: LogState,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._partition = partition
        self._segments = segments
        self._epochs = state.epochs
        self._identity = state.identity
        self._layouts = state.layouts
        self.recovery_point = state.recovery_point
        """All records below this offset are on disk. Recovery after a crash begins in the segment that holds it."""
        self.truncations = 0 if state.truncation_synced else 1
        """The number of truncations of the log."""
        self._synced_truncations = 0
        self.failure = state.failure
        """The reason why the log is broken; empty if it is not known."""
        self.is_broken = bool(state.failure)
        """Whether the disk failed permanently: nothing is appended until the next start."""
        self.on_disk_full: Callable[[TopicPartition], None] = _ignore
        """Called when a write was refused because there is no space."""
        self.unflushed = 0
        """The number of records appended since the last flush began."""
        self._flush_lock: trio.Lock | None = None  # made when it is needed: most logs of a large broker are idle
        self._flush_limit = 0
        self._last_flush_ms = clock.now_ms()

    # ------------------------------------------------------------ flush

    def is_due(self, log_end_offset: int, config: LogConfig) -> bool:
        """Whether ``flush.messages`` or ``flush.ms`` requires a flush."""
        if log_end_offset <= self.recovery_point:
            return False
        waited_ms = self._clock.now_ms() - self._last_flush_ms
        return self.unflushed >= config.flush_messages or waited_ms >= config.flush_ms

    @property
    def truncation_synced(self) -> bool:
        """Whether truncated records stay removed after a power cut."""
        return self._synced_truncations == self.truncations

    @property
    def _flushing(self) -> trio.Lock:
        """Held while the log is flushed or cut."""
        self._flush_lock = self._flush_lock or trio.Lock()
        return self._flush_lock

    async def flush(self, log_end_offset: Callable[[], int]) -> None:
        """Return when the log is on disk up to its present end. See ``PartitionLog.flush``.

        Raises KAFKA_STORAGE_ERROR.

        ``log_end_offset`` is called again when the flush begins, because the flush may have waited for another flush.
        """
        wanted = log_end_offset()
        async with self._flushing:
            if self._segments.have_records:
                await self._sync_identity()
            else:
                self.check_usable()
            await self._cut_tail()
            if wanted > self.recovery_point or not self.truncation_synced:
                await self._flush_to(log_end_offset())
            if self._layouts.unsynced:
                await self._layouts.try_sync()

    async def sync_identity(self) -> None:
        """Return when the identity of a new log is on disk. Raises KAFKA_STORAGE_ERROR, as ``flush``."""
        async with self._flushing:
            await self._sync_identity()

    async def _sync_identity(self) -> None:
        self.check_usable()
        try:
            await self._identity.sync()
        except OSError as error:
            if isinstance(error, disk_errors.SyncFailedError):
                self.fail(f"sync of {self._identity.path} failed: {error}")
            raise self.storage_error("sync partition.metadata", error) from error

    async def _sync(self, segment: LogSegment) -> None:
        file = segment.file
        try:
            await disk_errors.sync(file)
        except OSError as error:
            if segment in self._segments.items:  # else it was deleted meanwhile
                self.fail(f"sync of {segment.path(LOG_SUFFIX)} failed: {error}")
                raise

    async def _flush_to(self, target: int) -> None:
        self._flush_limit = target  # a truncation lowers this limit: these syncs may miss records appended afterwards
        truncations, was_truncated = self.truncations, not self.truncation_synced
        self.unflushed = 0
        self._last_flush_ms = self._clock.now_ms()
        # Also the segment that ends at the recovery point: it may have been truncated or sealed since the last flush.
        first = max(self._segments.index_of(self.recovery_point - 1), 0)
        segments = self._segments.items[first:]
        try:
            for segment in segments:
                if segment not in self._segments.items:
                    continue  # deleted while another was synced
                if segment.size_bytes or was_truncated:
                    await self._sync(segment)
                if segment is not self._segments.active and segment in self._segments.items:
                    await segment.sync_indexes()
            self._epochs.save()
            if was_truncated:
                await self._storage.sync_directory(self._segments.active.directory)
        except OSError as error:
            raise self.storage_error("flush", error) from error
        self.recovery_point = max(self.recovery_point, self._flush_limit)
        self._synced_truncations = truncations
        self._segments.flushed(segments)

    # ------------------------------------------------------------ truncation

    def truncated_to(self, end: int) -> bool:
        """Note that the log ends at ``end`` now; returns whether the recovery point was lowered."""
        self.truncations += 1
        self._flush_limit = min(self._flush_limit, end)
        lowered = end < self.recovery_point
        self.recovery_point = min(self.recovery_point, end)
        return lowered

    @property
    def awaits_cut(self) -> bool:
        """See ``PartitionLog.awaits_cut``."""
        return self._segments.active.awaits_cut

    async def finish_truncation(self) -> None:
        """Return when the truncated records are cut from the file.

        Raises KAFKA_STORAGE_ERROR; a later call then continues the cut.
        """
        async with self._flushing:
            await self._cut_tail()

    async def _cut_tail(self) -> None:
        """Called with the flush lock held, so that no thread syncs the file while another cuts it."""
        if not self.awaits_cut:
            return
        try:
            await self._segments.active.cut_tail()
        except OSError as error:
            raise self.storage_error("truncate", error) from error

    # ------------------------------------------------------------ failure

    def fail(self, reason: str) -> None:
        """Mark the log as broken: records that were not on disk may be lost.

        The log is not used until it is opened again.
        """
        self.is_broken = True
        self.failure = self.failure or reason
        logger.error("log.broken", partition=str(self._partition), reason=reason)

    def check_usable(self) -> None:
        """Raises KAFKA_STORAGE_ERROR when the log is broken."""
        if self.is_broken:
            raise self._refusal(f"the log is broken: {self.failure or 'the disk failed'}")

    def check_changeable(self) -> None:
        """Raises KAFKA_STORAGE_ERROR when the log is broken, or awaits a cut. Called before each change."""
        if self.is_broken or self._segments.items[-1].awaits_cut:
            self.check_usable()
            raise self._refusal("truncated records are not yet cut from the log's file")

    def _refusal(self, reason: str) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._partition}: {reason}")

    def storage_error(self, action: str, error: OSError) -> KafkaError:
        """The error to raise when the disk refused ``action``. An error that does not pass breaks the log."""
        logger.error("log.storage_error", partition=str(self._partition), action=action, error=str(error))
        if disk_errors.is_out_of_space(error):
            self.on_disk_full(self._partition)
        elif not disk_errors.passes(error):
            where = "" if error.filename else f" in {self._segments.items[-1].directory}"
            self.is_broken, self.failure = True, self.failure or f"{action} failed{where}: {error}"
        return self._refusal(f"{action} failed: {error}")
