"""Opens the logs at the start. Removes duplicate logs, and completes or discards moves that were interrupted."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from anabranch.broker.log.blank_directories import incarnation_of, remove_blank_copies
from anabranch.broker.log.cleaner import LogCleaner
from anabranch.broker.log.closed_logs import decode, reopen
from anabranch.broker.log.current_logs import CurrentLogs
from anabranch.broker.log.deleted_directories import DeletedDirectories
from anabranch.broker.log.disk_errors import passes
from anabranch.broker.log.full_directories import FullDirectories
from anabranch.broker.log.live_directories import LiveDirectories
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_dir_entries import Entries
from anabranch.broker.log.log_directory import LogDirectory, LogDirError
from anabranch.broker.log.log_loader import Checkpoints, open_log
from anabranch.broker.log.log_moves import LogMoves
from anabranch.broker.log.open_segments import OpenSegments
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import (
    directory_name,
    join,
)
from anabranch.broker.log.producer_state import ProducerExpiration
from anabranch.broker.log.slices import TimeSlice
from anabranch.broker.log.unreadable_logs import UnreadableLog, UnreadableLogs
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env, Storage

logger = structlog.get_logger(__name__)


class DirectoryLoader:
    """Calls ``adopt`` with each opened log and its log dir. Calls ``delete`` for an open log of an old incarnation."""

    def __init__(
        self,
        env: Env,
        expiration: ProducerExpiration,
        open_segments: OpenSegments,
        *,
        logs: CurrentLogs,
        directories: LiveDirectories,
        unreadable: UnreadableLogs,
        deleted: DeletedDirectories,
        cleaner: LogCleaner,
        moves: LogMoves,
        adopt: Callable[[PartitionLog, LogDirectory], None],
        delete: Callable[[TopicPartition], None],
    ) -> None:
        assert env.storage is not None
        self._env = env
        self._storage: Storage = env.storage
        self._expiration = expiration
        self._open_segments = open_segments
        self._logs = logs
        self._directories = directories
        self._unreadable = unreadable
        self._deleted = deleted
        self._cleaner = cleaner
        self._moves = moves
        self._adopt = adopt
        self._delete = delete

    async def load(self, config_for: Callable[[str], LogConfig]) -> None:
        """Open every log in the live log dirs, with ``config_for(topic)``.

        If the disk refuses a log dir, the broker runs without it, unless it was the last one. Raises ``LogDirError``.
        """
        try:
            entries = {directory.path: directory.entries() for directory in self._directories.all()}
            remove_blank_copies(self._storage, entries)
        except OSError as error:
            raise LogDirError(f"a log dir cannot be read, or an empty log in it cannot be removed: {error}") from error
        for work in (self._load, self._settle_moves):
            for directory in self._directories.all():
                try:
                    await work(directory, entries[directory.path], config_for)
                except OSError as error:
                    self._lose(directory, error)

    def _lose(self, directory: LogDirectory, error: OSError) -> None:
        """Continue without a log dir and its logs. Raises ``LogDirError`` if no other log dir is left."""
        for log in list(directory.logs.values()):
            log.close_files()
            self._logs.remove(log.partition)
            self._cleaner.forget(log.partition)
        self._unreadable.forget_in(directory)
        self._deleted.forget_in(directory)
        self._directories.lose(directory, error)

    # ------------------------------------------------------------ logs

    async def _load(self, directory: LogDirectory, entries: Entries, config_for: Callable[[str], LogConfig]) -> None:
        checkpoints = directory.read_checkpoints()
        self._cleaner.load_checkpoint(directory)
        for name in entries.deleted:
            self._deleted.add(join(directory.path, name))
        work = TimeSlice(self._env.clock)
        for name, partition in entries.logs.items():
            if work.due():
                await work.pause()
            path = join(directory.path, name)
            if not self._settle_copies(partition, path):
                continue
            found = checkpoints.get(partition, Checkpoints())
            config = config_for(partition.topic)
            await self._open(directory, path, partition, config, found, clean=directory.was_clean)
        logger.info("log_dir.loaded", path=directory.path, logs=len(directory.logs), recovered=not directory.was_clean)

    def _settle_copies(self, partition: TopicPartition, path: str) -> bool:
        """If a partition has two logs, keep the log of the later incarnation; returns whether that log is in ``path``.

        There are two logs if a log dir was lost for a while: meanwhile a partition in it was removed, and created again
        in another log dir. Raises ``LogDirError`` if both logs have the same incarnation, or if an incarnation is not
        known.
        """
        known, unreadable = self._logs.get(partition), self._unreadable.get(partition)
        if known is None and unreadable is None:
            return True
        here = incarnation_of(self._storage, path)
        if known is not None:
            other, there = known.directory, known.identity.incarnation
        else:
            assert unreadable is not None
            other, there = unreadable.path, self._unreadable.incarnation(unreadable)
        if here < 0 or there < 0 or here == there:
            raise LogDirError(f"{partition} is in {path} and in {other}: move one of them out of the log dirs")
        if here > there:
            self._delete(partition)
            return True
        self._deleted.rename(partition, path)
        return False

    async def _open(
        self,
        directory: LogDirectory,
        path: str,
        partition: TopicPartition,
        config: LogConfig,
        checkpoints: Checkpoints,
        *,
        clean: bool,
        again: UnreadableLog | None = None,
    ) -> None:
        """Open a log. ``again`` is the entry of an earlier failed try. It stays until this try succeeds or fails."""
        try:
            log = self._reopen(directory, path, partition, config, checkpoints) if clean else None
            log = log or await open_log(
                self._env,
                path,
                partition,
                config,
                checkpoints,
                clean=clean,
                expiration=self._expiration,
                open_segments=self._open_segments,
            )
        except (OSError, KafkaError, ValueError) as error:
            if self._unreadable.get(partition) is not again:
                return
            is_passing = isinstance(error, OSError) and passes(error)
            if not is_passing:
                self._storage.listdir(directory.path)  # raises if the log dir itself is lost
            self._unreadable.add(partition, UnreadableLog(directory, path, str(error), is_passing, checkpoints))
            directory.unopened[partition] = checkpoints
            logger.error("log.unreadable", partition=str(partition), path=path, error=str(error))
            return
        if self._unreadable.pop(partition) is not again:
            log.close_files()  # the log was deleted, or its dir was lost, while it was opened
            return
        directory.unopened.pop(partition, None)
        self._adopt(log, directory)

    def _reopen(
        self,
        directory: LogDirectory,
        path: str,
        partition: TopicPartition,
        config: LogConfig,
        checkpoints: Checkpoints,
    ) -> PartitionLog | None:
        """Open a log by the facts that the last shutdown stored, if there are any and the files are as they say."""
        facts = directory.closed_logs.pop(directory_name(partition), None)
        if facts is None:
            return None
        return reopen(
            self._env,
            path,
            partition,
            config,
            checkpoints,
            decode(facts),
            expiration=self._expiration,
            open_segments=self._open_segments,
        )

    async def open_again(self, config_for: Callable[[str], LogConfig], full: FullDirectories) -> bool:
        """Open the logs for which there was no space, or no descriptor, except in full log dirs.

        Returns whether a log was opened.
        """
        opened = False
        for partition, found in self._unreadable.items():
            if found.passes and found.directory not in full and self._unreadable.get(partition) is found:
                config = config_for(partition.topic)
                await self._open(
                    found.directory, found.path, partition, config, found.checkpoints, clean=False, again=found
                )
                opened = opened or self._logs.get(partition) is not None
        return opened

    # ------------------------------------------------------------ moves between log dirs

    async def _settle_moves(
        self, directory: LogDirectory, entries: Entries, config_for: Callable[[str], LogConfig]
    ) -> None:
        """Complete or discard moves into ``directory`` after a crash.

        If the log still exists, its copy is discarded and made again. If only the copy exists, the copy becomes the
        log.

        While some log or log dir cannot be read, the log of a copy may still exist, and the copy may be incomplete.
        """
        for name, partition in entries.futures.items():
            path = join(directory.path, name)
            if self._logs.get(partition) is not None:
                await self._storage.unlink_tree(path)
                self._moves.request(partition, directory.path)
                continue
            if self._unreadable.get(partition) is not None:
                continue
            if self._directories.lost:
                error = (
                    f"{path} is a copy from a move between log dirs; the log itself may be in a log dir that is lost: "
                    f"{', '.join(self._directories.lost)}"
                )
                self._unreadable.add(partition, UnreadableLog(directory, path, error, passes=False))
                continue
            final = join(directory.path, directory_name(partition))
            self._storage.rename(path, final)
            await self._open(directory, final, partition, config_for(partition.topic), Checkpoints(), clean=False)
