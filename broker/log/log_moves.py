"""Moves replicas from one log dir of this broker to another log dir (AlterReplicaLogDirs, KIP-113).

A move copies the log into ``<topic>-<partition>.<uuid>-future`` in the other dir while the log is in use. The copy
replaces the log once it has caught up. After a crash only one of log and copy stays. If both exist, the copy is
discarded and the move begins again. If only the copy exists, it was complete.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog
import trio

from anabranch.broker.log.current_logs import CurrentLogs
from anabranch.broker.log.deleted_directories import DeletedDirectories
from anabranch.broker.log.live_directories import LiveDirectories
from anabranch.broker.log.load_records import load_records
from anabranch.broker.log.log_creation import create_log
from anabranch.broker.log.log_directory import LogDirectory
from anabranch.broker.log.open_segments import OpenSegments
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import directory_name, future_directory_name, join
from anabranch.broker.log.pieces import pieces_of
from anabranch.broker.log.producer_rebuild import catch_up
from anabranch.broker.log.producer_state import ProducerExpiration, ProducerState
from anabranch.broker.log.slices import TimeSlice
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Env, Storage

logger = structlog.get_logger(__name__)

CHUNK_BYTES = 1 << 20


class FutureReplica(NamedTuple):
    """A move under way, as DescribeLogDirs shows it; ``offset_lag`` is the number of offsets still to be copied."""

    partition: TopicPartition
    directory: str
    size_bytes: int
    offset_lag: int


class LogMoves:
    """The moves in progress, and the log dirs requested for replicas that do not exist yet.

    ``replace`` is called with a log, its complete copy, and the log dir of the copy, once the directories are renamed.
    """

    def __init__(
        self,
        env: Env,
        logs: CurrentLogs,
        directories: LiveDirectories,
        deleted: DeletedDirectories,
        expiration: ProducerExpiration,
        open_segments: OpenSegments,
        background: Background,
        replace: Callable[[PartitionLog, PartitionLog, LogDirectory], None],
    ) -> None:
        assert env.storage is not None
        self._background = background
        self._env = env
        self._storage: Storage = env.storage
        self._logs = logs
        self._directories = directories
        self._deleted = deleted
        self._expiration = expiration
        self._open_segments = open_segments
        self._replace = replace
        self._preferred: dict[TopicPartition, str] = {}
        self._targets: dict[TopicPartition, LogDirectory] = {}
        self._futures: dict[TopicPartition, PartitionLog] = {}
        self._scopes: dict[TopicPartition, trio.CancelScope] = {}
        self._wanted = trio.Event()

    def request(self, partition: TopicPartition, path: str, *, exists: bool = True) -> None:
        """Move a replica to the log dir ``path``, or remember the request for a replica that is not here yet.

        Raises LOG_DIR_NOT_FOUND 57 for a dir this broker does not have, and REPLICA_NOT_AVAILABLE 9 once a request is
        remembered. Raises UNKNOWN_TOPIC_OR_PARTITION 3 unless the cluster has the partition (``exists``). So the number
        of remembered requests is bounded.
        """
        target = self._directories.get(path)
        if path in self._directories.lost:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log dir {path} is lost")
        if target is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of this broker's log.dirs")
        if self._logs.get(partition) is None:
            if not exists:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the cluster has no {partition}")
            self._preferred[partition] = path
            raise KafkaError(
                ErrorCode.REPLICA_NOT_AVAILABLE,
                f"{partition} has no replica on this broker; a later one will be created in {path}",
            )
        if self._targets.get(partition) is target:
            return
        self.cancel(partition)
        if self._logs.home(partition) is not target:
            self._targets[partition] = target
            self._wanted.set()

    def preferred(self, partition: TopicPartition) -> LogDirectory | None:
        """The log dir requested for a new replica. The request is forgotten by this call."""
        path = self._preferred.pop(partition, None)
        return None if path is None else self._directories.get(path)

    def cancel(self, partition: TopicPartition) -> None:
        """Cancel a move and remove its copy. Does nothing if there is no move."""
        self._targets.pop(partition, None)
        scope = self._scopes.pop(partition, None)
        if scope is not None:
            scope.cancel()
        self._discard(partition)

    def futures(self) -> Iterator[FutureReplica]:
        """The moves under way."""
        for partition, future in self._futures.items():
            log = self._logs.get(partition)
            lag = max(0, log.log_end_offset - future.log_end_offset) if log is not None else 0
            yield FutureReplica(partition, self._targets[partition].path, future.size_bytes, lag)

    async def run(self) -> None:
        """Carry out the moves, each in a task of its own, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for partition in [p for p in self._targets if p not in self._scopes]:
                    self._scopes[partition] = trio.CancelScope()
                    nursery.start_soon(self._move, partition, self._targets[partition], self._scopes[partition])
                self._wanted = trio.Event()
                await self._wanted.wait()

    # ------------------------------------------------------------ one move

    async def _move(self, partition: TopicPartition, target: LogDirectory, scope: trio.CancelScope) -> None:
        with scope:
            try:
                while not await self._copy(partition, target):
                    self._discard(partition)
                    await trio.lowlevel.checkpoint()
            except Exception as error:  # the move is cancelled, as in Kafka: the client may request it again
                self._background.failed_once("log-moves", f"{partition} to {target.path}", error)
                self._discard(partition)
        if self._scopes.get(partition) is scope:
            del self._scopes[partition]
            self._targets.pop(partition, None)

    async def _copy(self, partition: TopicPartition, target: LogDirectory) -> bool:
        """Copy until the copy has caught up, then switch.

        Returns False if the log was truncated at its end or its start, so that the copy has to begin again.
        """
        log = self._logs.get(partition)
        if log is None:
            return True
        if log.is_broken:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: the log is broken: {log.failure or 'the disk failed'}"
            )
        future = await self._create(log, target)
        logger.info("log_move.started", partition=str(partition), source=log.directory, to=target.path)
        time_slice = TimeSlice(self._env.clock)
        flushed = False
        truncations = log.truncations
        while log.truncations == truncations:
            behind = future.log_end_offset < log.log_start_offset
            if future.log_end_offset > log.log_end_offset or (behind and log.log_start_offset == log.log_end_offset):
                return False
            if future.log_end_offset == log.log_end_offset:
                if flushed:
                    self._switch(log, future, target)
                    return True
                await future.flush()
                flushed = True
                continue
            records = await load_records(log, future.log_end_offset, CHUNK_BYTES)
            if log.truncations != truncations:
                break
            behind = future.log_end_offset < log.log_start_offset
            if not records or (behind and RecordBatch(records).base_offset > future.log_end_offset):
                return False
            for piece in pieces_of(records):
                future.append_as_follower(piece)
                if time_slice.due():
                    await time_slice.pause()
                    if log.truncations != truncations:
                        break
        return False

    async def _create(self, log: PartitionLog, target: LogDirectory) -> PartitionLog:
        """Create an empty copy that begins at the log's first batch, with the producers that wrote before it."""
        unique = uuid.UUID(int=self._env.rng.getrandbits(128), version=4)
        path = join(target.path, future_directory_name(log.partition, unique))
        first = log.log_start_offset
        if first < log.log_end_offset:
            first = min(first, RecordBatch(await load_records(log, first, 1)).base_offset)
        await catch_up(log)
        producers = ProducerState(self._expiration)
        future = create_log(
            self._env,
            path,
            log.partition,
            log.identity.metadata,
            log.config,
            producers,
            start_offset=first,
            open_segments=self._open_segments,
        )
        self._futures[log.partition] = future
        before = log.producers.below(first)
        if before.snapshot:
            future.truncate_fully_and_start_at(first, before)
            await catch_up(future)
        return future

    def _switch(self, log: PartitionLog, future: PartitionLog, target: LogDirectory) -> None:
        """Replace the log by the copy. Between the last check of the log and this call no other task may run."""
        if future.identity.metadata != log.identity.metadata:  # the log got its identity after the copy began
            future.identity.replace(log.identity.metadata)
        future.update_config(log.config)
        future.advance_log_start(log.log_start_offset)
        future.advance_high_watermark(log.high_watermark)
        if log.leader_epoch_cache.latest_epoch > future.leader_epoch_cache.latest_epoch:
            future.assign_epoch(log.leader_epoch_cache.latest_epoch)
        future.layouts.take_over(log.layouts)
        if log.rebuild is None and future.rebuild is None:
            future.producers.take_over(log.producers)
        else:
            future.begin_to_lead()  # the copy does not know what the log took without writing
        try:
            self._rename_directories(log, future, target)
            self._replace(log, future, target)
        finally:
            if self._logs.is_current(future) or log.is_broken:  # else the copy is discarded
                del self._futures[log.partition]
        logger.info("log_move.finished", partition=str(log.partition), to=future.directory)

    def _rename_directories(self, log: PartitionLog, future: PartitionLog, target: LogDirectory) -> None:
        """Rename the log's directory for deletion, and then the copy's directory to the log's name.

        After an ``OSError`` the log is as before, or broken. If the log is broken, the next start finds only the copy
        and uses it.
        """
        final = join(target.path, directory_name(log.partition))
        renamed = self._deleted.rename_log(log)
        try:
            self._storage.rename(future.directory, final)
        except OSError:
            try:
                self._deleted.restore(renamed, log.directory)
            except OSError as error:
                log.fail(
                    f"after a failed move the log is neither in {log.directory} nor in {final}; "
                    f"the next start uses its copy in {future.directory}: {error}"
                )
            raise
        log.close_files()
        future.moved_to(final)

    def _discard(self, partition: TopicPartition) -> None:
        """Soon remove the copy of a move, which is not needed any more. If that fails, the next start removes it."""
        future = self._futures.pop(partition, None)
        if future is None:
            return
        future.close_files()
        try:
            self._deleted.rename(partition, future.directory)
        except OSError as error:
            logger.warning("log.not_removed", path=future.directory, error=str(error))
