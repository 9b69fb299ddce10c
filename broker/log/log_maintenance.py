"""Periodic work on all logs: retention, expiry of producers, checkpoints, due flushes, removal of deleted files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog
import trio

from anabranch.broker.log.checkpoint_writer import CheckpointWriter
from anabranch.broker.log.clock_watch import FAR_AHEAD_MS, ClockWatch
from anabranch.broker.log.current_logs import CurrentLogs
from anabranch.broker.log.deleted_directories import DeletedDirectories
from anabranch.broker.log.log_flusher import LogFlusher
from anabranch.broker.log.manager_config import LogManagerConfig
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.retention import NOTHING_RETAINED
from anabranch.broker.log.slices import TimeSlice
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock

logger = structlog.get_logger(__name__)

_REMOVAL_CHECK_MS = 1000
_CLOCK_CHECK_MS = 10_000

R = TypeVar("R")


class LogMaintenance:
    """The periodic tasks. A failure of one log, log dir or file does not affect the others."""

    def __init__(
        self,
        clock: Clock,
        logs: CurrentLogs,
        checkpoints: CheckpointWriter,
        flusher: LogFlusher,
        deleted: DeletedDirectories,
        background: Background,
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._checkpoints = checkpoints
        self._flusher = flusher
        self._deleted = deleted
        self._background = background
        self.retained_from: Callable[[PartitionLog], int] = lambda log: NOTHING_RETAINED
        """Returns the first offset of a log that retention by time has to keep."""
        self.on_expired: Callable[[PartitionLog, int], None] = lambda log, start: None
        """Called with the earlier log start when retention removed records."""
        self._clock_watch = ClockWatch(clock.now_ms(), clock.monotonic())
        self._with_deleted_files: dict[TopicPartition, PartitionLog] = {}
        self._ahead: set[TopicPartition] = set()
        """The logs with a record that is far ahead of the clock. Each is logged once."""

    async def run(self, config: LogManagerConfig) -> None:
        """Do each task at its interval of ``config``, until cancelled."""
        checkpoints = self._checkpoints
        tasks = (
            ("apply-retention", config.retention_check_interval_ms, self.apply_retention),
            ("checkpoint-recovery", config.flush_offset_checkpoint_interval_ms, checkpoints.write_recovery_points),
            ("checkpoint-starts", config.flush_start_offset_checkpoint_interval_ms, checkpoints.write_log_starts),
            ("checkpoint-watermarks", config.high_watermark_checkpoint_interval_ms, checkpoints.write_high_watermarks),
            ("expire-producers", config.producer_id_expiration_check_interval_ms, self.expire_producers),
            ("collect-due-flushes", config.flush_scheduler_interval_ms, self.collect_due_flushes),
            ("remove-doomed", _REMOVAL_CHECK_MS, self.remove_deleted),
            ("watch-clock", _CLOCK_CHECK_MS, self.watch_clock),
        )
        async with trio.open_nursery() as nursery:
            for task, interval_ms, work in tasks:
                nursery.start_soon(self._background.every, task, interval_ms / 1000, work)

    async def apply_retention(self) -> None:
        """Delete the segments that ``retention.ms``, ``retention.bytes`` and the log starts allow, in every log."""
        await self._each("retention", self._apply_retention_to, until=lambda deleted: not deleted)

    def _apply_retention_to(self, log: PartitionLog) -> int:
        start = log.log_start_offset
        deleted = log.delete_old_segments(self.retained_from(log))
        if deleted:
            logger.info("log.segments_deleted", partition=str(log.partition), count=deleted)
        if log.log_start_offset > start:
            self.on_expired(log, start)
        self._note_ahead(log)
        log.release_caches()
        return deleted

    def _note_ahead(self, log: PartitionLog) -> None:
        ahead_ms = log.latest_timestamp_ms - self._clock.now_ms()
        if ahead_ms <= FAR_AHEAD_MS:
            self._ahead.discard(log.partition)
        elif log.partition not in self._ahead:
            self._ahead.add(log.partition)
            logger.warning("log.timestamps_ahead", partition=str(log.partition), ahead_ms=ahead_ms)

    @property
    def logs_ahead(self) -> int:
        """The number of logs with a record that is far ahead of the clock, as of the last check of retention.

        Retention by time removes neither this record nor the segments after it before that time.
        """
        return sum(self._logs.get(partition) is not None for partition in self._ahead)

    async def watch_clock(self) -> None:
        """Warn if the system's clock was set."""
        step_ms = self._clock_watch.step_ms(self._clock.now_ms(), self._clock.monotonic())
        if step_ms:
            logger.warning("clock.set", forward_ms=step_ms)

    async def expire_producers(self) -> None:
        """Forget the producers that have been idle for ``producer.id.expiration.ms``, in every log."""
        now_ms = self._clock.now_ms()
        await self._each("producer-expiry", lambda log: log.producers.remove_expired(now_ms))

    async def collect_due_flushes(self) -> None:
        """Ask for a flush of each log for which ``flush.messages`` or ``flush.ms`` requires one."""
        await self._each("flush", lambda log: self._flusher.want(log) if log.flush_due else None)

    def files_deleted(self, log: PartitionLog) -> None:
        """Remove the deleted segments of a log when their delay is over."""
        self._with_deleted_files[log.partition] = log

    async def remove_deleted(self) -> None:
        """Remove the deleted directories and segments whose ``file.delete.delay.ms`` is over.

        Outdated checkpoint files are written first. A log without deleted segments costs nothing.
        """
        self._checkpoints.write_outdated()
        await self._deleted.remove_due()
        logs = list(self._with_deleted_files.values())
        await self._each("file-removal", lambda log: log.remove_due_files(), lambda removed: not removed, logs)
        for log in logs:
            is_done = not (self._logs.is_current(log) and log.has_deleted_files)
            if is_done and self._with_deleted_files.get(log.partition) is log:
                del self._with_deleted_files[log.partition]

    async def _each(
        self,
        task: str,
        work: Callable[[PartitionLog], R],
        until: Callable[[R], bool] = lambda _result: True,
        logs: Sequence[PartitionLog] | None = None,
    ) -> None:
        """Call ``work`` for each of ``logs``, or for every log, in slices; repeat it until ``until(result)`` is true.

        A failure of one log does not affect the others; that log is paused.
        """
        time_slice = TimeSlice(self._clock)
        for log in self._logs.all() if logs is None else logs:
            is_through = not self._background.due(task, log.partition)
            while not is_through and self._logs.is_current(log):
                is_through = True
                with self._background.guard(task, log.partition):
                    is_through = until(work(log))
                if time_slice.due():
                    await time_slice.pause()
