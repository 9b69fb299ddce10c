"""Starts, stops, creates and deletes all logs of a broker, and connects them with their background work."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog
import trio

from anabranch.broker.log import catch_ups
from anabranch.broker.log.catch_ups import CatchUps
from anabranch.broker.log.checkpoint_files import LogIdentity, MetaProperties
from anabranch.broker.log.checkpoint_writer import CheckpointWriter
from anabranch.broker.log.cleaner import LogCleaner
from anabranch.broker.log.closed_logs import ClosedLog, describe
from anabranch.broker.log.current_logs import CurrentLogs
from anabranch.broker.log.deleted_directories import DeletedDirectories
from anabranch.broker.log.directory_loader import DirectoryLoader
from anabranch.broker.log.disk_errors import is_out_of_space, passes
from anabranch.broker.log.full_directories import FullDirectories
from anabranch.broker.log.live_directories import LiveDirectories
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_creation import create_log
from anabranch.broker.log.log_directory import LogDirectory, LogDirError
from anabranch.broker.log.log_flusher import LogFlusher
from anabranch.broker.log.log_maintenance import LogMaintenance
from anabranch.broker.log.log_moves import FutureReplica, LogMoves
from anabranch.broker.log.manager_config import LogManagerConfig
from anabranch.broker.log.open_segments import OpenSegments
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import directory_name, join
from anabranch.broker.log.producer_state import ProducerExpiration, ProducerState
from anabranch.broker.log.unreadable_logs import UnreadableLogs
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.sentinels import NO_INCARNATION
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Env

__all__ = ["DescribedLogDir", "LogDirError", "LogManager", "LogManagerConfig"]

logger = structlog.get_logger(__name__)

_REOPEN_CHECK_S = 10.0


@dataclass(frozen=True, slots=True)
class DescribedLogDir:
    """A log dir as DescribeLogDirs shows it; bytes are -1 if they are not known.

    ``is_lost``: the disk refused the log dir at the start, so nothing is known about the log dir.
    """

    path: str
    total_bytes: int
    usable_bytes: int
    size_bytes: dict[TopicPartition, int] = field(default_factory=dict)
    futures: list[FutureReplica] = field(default_factory=list)
    is_lost: bool = False


class LogManager:
    """Every log of the broker, by partition."""

    def __init__(self, config: LogManagerConfig, env: Env, background: Background | None = None) -> None:
        storage = env.storage
        assert storage is not None
        self._background = background or Background(env.clock, propagate_bugs=env.propagate_bugs)
        self._config = config
        self._env = env
        self.directories = LiveDirectories(storage, config.log_dirs)
        self._config_for: Callable[[str], LogConfig] = lambda _topic: config.topic_defaults
        self._full = FullDirectories(env.clock, storage, config.room_bytes, self._room_changed)
        self._logs = CurrentLogs()
        self._deleted = DeletedDirectories(env.clock, storage, env.rng, self._background)
        self.unreadable = UnreadableLogs(storage, self._deleted)
        self._flusher = LogFlusher(env.clock, self._background, self._logs.is_current)
        self._catch_ups = CatchUps(self._background, self._logs.is_current)
        self._expiration = ProducerExpiration(config.producer_id_expiration_ms, config.producer_repeated_max_age_ms)
        self.open_segments = OpenSegments(config.open_segments)
        self.cleaner = LogCleaner(env, config, self._logs, self._background)
        self.checkpoints = CheckpointWriter(self._logs, self.directories, self.cleaner, self._background)
        self.maintenance = LogMaintenance(
            env.clock, self._logs, self.checkpoints, self._flusher, self._deleted, self._background
        )
        self.moves = LogMoves(
            env,
            self._logs,
            self.directories,
            self._deleted,
            self._expiration,
            self.open_segments,
            self._background,
            self._replace,
        )
        self._loader = DirectoryLoader(
            env,
            self._expiration,
            self.open_segments,
            logs=self._logs,
            directories=self.directories,
            unreadable=self.unreadable,
            deleted=self._deleted,
            cleaner=self.cleaner,
            moves=self.moves,
            adopt=self._adopt,
            delete=self.delete,
        )
        self.on_switched: Callable[[PartitionLog], None] = lambda log: None
        """Called when a moved log in another log dir replaces a partition's log."""
        self.on_room_changed: Callable[[bool], None] = lambda is_full: None
        """Called when a log dir became full, or has room again, after ``is_full`` of its logs was set."""
        self._background.sources.append(self._describe_faults)

    # ------------------------------------------------------------ start and stop

    async def start(self, config_for: Callable[[str], LogConfig] | None = None) -> None:
        """Lock the dirs and open every log in them, with ``config_for(topic)``.

        If the disk refuses a dir, the broker runs without it, unless it was the last one (KIP-112). If this raises
        ``LogDirError``, every dir is unlocked again.
        """
        meta = MetaProperties(self._config.broker_id, self._config.cluster_id)
        try:
            self.directories.open(meta)
            self._config_for = config_for or self._config_for
            await self._loader.load(self._config_for)
        except BaseException:
            self.close_at_once()
            raise

    async def shutdown(self) -> None:
        """Close every log and unlock the dirs. A dir gets the clean-shutdown marker if all its logs could be closed."""
        is_closed: dict[PartitionLog, bool] = {}
        while left := [log for log in self._logs.all() if log not in is_closed]:  # more logs may be added meanwhile
            for log in left:
                try:
                    await log.close()
                    is_closed[log] = True
                except KafkaError as error:
                    is_closed[log] = False
                    logger.error("log.not_closed", partition=str(log.partition), error=str(error))
        for directory in self.directories.all():
            # A log that was never opened may still need recovery after a crash.
            clean = not directory.unopened and all(is_closed[log] for log in directory.logs.values())
            try:
                self.checkpoints.write(directory)
                directory.close(clean=clean, closed_logs=self._describe_closed(directory) if clean else ())
            except OSError as error:
                logger.error("log_dir.unclean", path=directory.path, error=str(error))
                directory.close()

    def _describe_closed(self, directory: LogDirectory) -> Iterator[tuple[str, ClosedLog]]:
        """The facts about the closed logs of a log dir that spare the next start their files."""
        assert self._env.storage is not None
        for log in directory.logs.values():
            try:
                known = describe(self._env.storage, log)
            except OSError as error:
                logger.warning("log.not_described", partition=str(log.partition), error=str(error))
                continue
            if known is not None:
                yield directory_name(log.partition), known

    def close_at_once(self) -> None:
        """Close the files as they are, and release the locks. The next start recovers the logs."""
        for log in self._logs.all():
            log.close_files()
        for directory in self.directories.all():
            directory.close()

    # ------------------------------------------------------------ logs

    def get(self, partition: TopicPartition) -> PartitionLog | None:
        """The partition's log, None when there is none."""
        return self._logs.get(partition)

    def logs(self) -> list[PartitionLog]:
        """All logs."""
        return self._logs.all()

    def create(
        self,
        partition: TopicPartition,
        topic_id: uuid.UUID,
        incarnation: int,
        config: LogConfig | None = None,
        *,
        is_new: bool = True,
        start_offset: int = 0,
    ) -> PartitionLog:
        """Create a log that begins at ``start_offset``.

        It is in the dir requested for it, or else in the dir with the fewest logs of all dirs with room. ``is_new``:
        the partition was never here before. Raises ``ValueError`` if the log exists, KAFKA_STORAGE_ERROR if the disk
        refuses the write or if the log may be in a lost dir, and REPLICA_NOT_AVAILABLE if another try may succeed soon.
        """
        if self._logs.get(partition) is not None:
            raise ValueError(f"{partition} has a log already")
        self._check_not_lost(partition, incarnation, is_new)
        directory = self.moves.preferred(partition) or min(
            self.directories.all(), key=lambda home: (home in self._full, len(home.logs))
        )
        try:
            self.checkpoints.write_if_outdated(directory)
            log = create_log(
                self._env,
                join(directory.path, directory_name(partition)),
                partition,
                LogIdentity(topic_id, incarnation),
                config or self._config.topic_defaults,
                ProducerState(self._expiration),
                start_offset=start_offset,
                open_segments=self.open_segments,
            )
        except OSError as error:
            if is_out_of_space(error):
                self._full.note(directory)
            elif passes(error):
                raise KafkaError(
                    ErrorCode.REPLICA_NOT_AVAILABLE,
                    f"{partition}: the log cannot be created in {directory.path} now: {error}",
                ) from error
            raise _storage_error(f"{partition}: the log cannot be created in {directory.path}", error) from error
        self._adopt(log, directory)
        return log

    def _check_not_lost(self, partition: TopicPartition, incarnation: int, is_new: bool) -> None:
        """Raise KAFKA_STORAGE_ERROR when the partition's log cannot be read, or may be in a log dir that is lost."""
        unreadable = self.unreadable.get(partition)
        if unreadable is not None:
            if not self.unreadable.is_earlier(unreadable, incarnation):
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: {unreadable.error}")
            self.delete(partition)
        elif self.directories.lost and not is_new:
            lost = ", ".join(self.directories.lost)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} may be in a log dir that is lost: {lost}")

    def delete(self, partition: TopicPartition, incarnation: int = NO_INCARNATION) -> None:
        """Rename the log's directory for deletion; its files are removed after ``file.delete.delay.ms``.

        A log that could not be opened is deleted only if its incarnation is not later than ``incarnation`` (-1: any).
        Raises KAFKA_STORAGE_ERROR.
        """
        log = self._logs.get(partition)
        try:
            if log is None:
                self.unreadable.delete(partition, incarnation)
                return
            self.moves.cancel(partition)
            self._deleted.rename_log(log)
        except OSError as error:
            raise _storage_error(f"{partition}: the log cannot be deleted", error) from error
        log.close_files()
        self._forget(log)

    def _adopt(self, log: PartitionLog, directory: LogDirectory) -> None:
        """Make a log the current one of its partition, and connect it with the background work."""
        self._logs.add(log, directory)
        log.on_flush_needed = self._flusher.want
        log.on_first_record = self._flusher.want_identity
        log.on_files_deleted = self.maintenance.files_deleted
        if log.has_deleted_files:
            self.maintenance.files_deleted(log)
        log.on_log_start_moved = self.checkpoints.log_start_moved
        log.on_truncated = self.checkpoints.truncated
        log.call_when_disk_full(self._disk_full)
        log.is_full = directory in self._full
        log.on_producers_behind = self._catch_ups.want

    def _replace(self, log: PartitionLog, future: PartitionLog, directory: LogDirectory) -> None:
        """Replace a log by its copy, which is in ``directory``."""
        self._forget(log)
        self._adopt(future, directory)
        self.on_switched(future)

    def _forget(self, log: PartitionLog) -> None:
        """Forget a log whose directory was renamed for deletion."""
        self.checkpoints.set_outdated(self._logs.remove(log.partition))
        self._flusher.forget(log.partition)
        self.cleaner.forget(log.partition)
        self._background.forget(log.partition)

    # ------------------------------------------------------------ full dirs

    def _disk_full(self, partition: TopicPartition) -> None:
        directory = self._logs.home(partition)
        if directory is not None:
            self._full.note(directory)

    def _room_changed(self, directory: LogDirectory, is_full: bool) -> None:
        for partition, log in directory.logs.items():
            log.is_full = is_full
            if not is_full:
                self._background.forget(partition)  # work that failed for lack of space is tried again now
        if not is_full:
            self._background.forget(directory.path)
        self.on_room_changed(is_full)

    # ------------------------------------------------------------ background

    async def run(self) -> None:
        """Run retention, flushes, checkpoints, removal and compaction until cancelled."""
        keep, every = self._background.keep, self._background.every
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.maintenance.run, self._config)
            nursery.start_soon(every, "open-again", _REOPEN_CHECK_S, self.open_again)
            nursery.start_soon(keep, "log-dir-room", self._full.run)
            nursery.start_soon(keep, "log-flusher", self._flusher.run)
            nursery.start_soon(keep, catch_ups.TASK, self._catch_ups.run)
            nursery.start_soon(keep, "log-moves", self.moves.run)
            if self._config.cleaner_enable:
                nursery.start_soon(keep, "log-cleaner", self.cleaner.run)

    async def open_again(self) -> None:
        """Open the logs that could not be opened at the start for lack of space or descriptors."""
        if await self._loader.open_again(self._config_for, self._full):
            self.on_room_changed(False)

    def reconfigure(self, config: LogManagerConfig) -> None:
        """Apply the settings of compaction and producer expiry, which may change while the broker runs."""
        self._config = config
        self._expiration.ms = config.producer_id_expiration_ms
        self._expiration.repeated_max_age_ms = config.producer_repeated_max_age_ms
        self.cleaner.reconfigure(config)

    # ------------------------------------------------------------ descriptions

    def log_dirs(self) -> list[DescribedLogDir]:
        """Every log dir with the sizes of its logs."""
        found = []
        for directory in self.directories.all():
            sizes = {partition: log.size_bytes for partition, log in directory.logs.items()}
            futures = [future for future in self.moves.futures() if future.directory == directory.path]
            found.append(DescribedLogDir(directory.path, *directory.usage(), sizes, futures))
        return found + [DescribedLogDir(path, -1, -1, is_lost=True) for path in self.directories.lost]

    def disk_usage(self) -> list[tuple[str, int | None, int]]:
        """(path, bytes, free bytes) of each log dir's file system; None for a dir that was lost at the start."""
        return [
            *((each.path, *each.usage()) for each in self.directories.all()),
            *((path, None, 0) for path in self.directories.lost),
        ]

    def _describe_faults(self) -> list[str]:
        """The log dirs and logs that cannot be used now, one line each."""
        return [
            *(f"log-dir {path}: lost until the next start: {error}" for path, error in self.directories.lost.items()),
            *(f"log-dir {path}: full" for path in self._full.paths),
            *(
                f"log {tp}: unreadable until {'another try succeeds' if log.passes else 'the next start'}: {log.error}"
                for tp, log in self.unreadable.items()
            ),
            *(
                f"log {log.partition}: broken until the next start: {log.failure or 'the disk failed'}"
                for log in self._logs.all()
                if log.is_broken
            ),
        ]


def _storage_error(what: str, error: OSError) -> KafkaError:
    logger.error("log_manager.storage_error", what=what, error=str(error))
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error}")
