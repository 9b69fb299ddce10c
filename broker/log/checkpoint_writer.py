"""Writes the checkpoint files of the log dirs: at intervals, and after changes that must not wait."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from anabranch.broker.log.cleaner import LogCleaner
from anabranch.broker.log.current_logs import CurrentLogs
from anabranch.broker.log.live_directories import LiveDirectories
from anabranch.broker.log.log_directory import LogDirectory
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.runtime.background import Background

logger = structlog.get_logger(__name__)


class CheckpointWriter:
    """Writes checkpoint files. A log dir is outdated while its files name a deleted log, or an old start of a log."""

    def __init__(
        self, logs: CurrentLogs, directories: LiveDirectories, cleaner: LogCleaner, background: Background
    ) -> None:
        self._logs = logs
        self._directories = directories
        self._cleaner = cleaner
        self._background = background
        self._outdated: set[LogDirectory] = set()

    # ------------------------------------------------------------ one log dir

    def write(self, directory: LogDirectory) -> None:
        """Write all checkpoint files of a log dir. Raises ``OSError``."""
        directory.write_recovery_points()
        directory.write_log_starts()
        directory.write_high_watermarks()
        self._cleaner.write_checkpoint(directory)
        self._outdated.discard(directory)

    def write_if_outdated(self, directory: LogDirectory) -> None:
        """Write all checkpoint files of a log dir that is outdated. Raises ``OSError``."""
        if directory in self._outdated:
            self.write(directory)

    def set_outdated(self, directory: LogDirectory) -> None:
        """Write the log dir's checkpoint files soon, and before a log is created in it."""
        self._outdated.add(directory)

    # ------------------------------------------------------------ one log

    def log_start_moved(self, log: PartitionLog) -> None:
        """Write the new start of a log soon."""
        directory = self._logs.home(log.partition)
        if directory is not None:
            self.set_outdated(directory)

    def truncated(self, log: PartitionLog) -> None:
        """Write a lowered recovery point at once: new records below the old recovery point would count as synced."""
        directory = self._logs.home(log.partition)
        if directory is None:
            return
        try:
            directory.write_recovery_points()
        except OSError as error:
            logger.warning("log_dir.checkpoint_not_written", path=directory.path, error=str(error))
            self.set_outdated(directory)

    # ------------------------------------------------------------ every log dir

    def write_outdated(self) -> None:
        """Write all checkpoint files of the log dirs that are outdated."""
        self._each("checkpoints", self.write_if_outdated)

    def write_recovery_points(self) -> None:
        """Write the recovery points of all logs."""
        self._each("recovery-points", LogDirectory.write_recovery_points)

    def write_log_starts(self) -> None:
        """Write the log start offsets of all logs."""
        self._each("log-starts", LogDirectory.write_log_starts)

    def write_high_watermarks(self) -> None:
        """Write the high watermarks of all logs."""
        self._each("high-watermarks", LogDirectory.write_high_watermarks)

    def _each(self, task: str, work: Callable[[LogDirectory], None]) -> None:
        """Call ``work`` for every log dir, also if another log dir refuses writes."""
        for directory in self._directories.all():
            if self._background.due(task, directory.path):
                with self._background.guard(task, directory.path):
                    work(directory)
