"""One log dir: its owner, its lock, its last shutdown, its logs and their checkpoint files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

import structlog

from anabranch.broker.log.checkpoint_files import (
    MalformedFileError,
    MetaProperties,
    decode_meta_properties,
    decode_offsets,
    encode_meta_properties,
    encode_offsets,
    read_checkpoint,
    write_replace,
)
from anabranch.broker.log.closed_logs import ClosedLog, checksum, encode, lines_by_name
from anabranch.broker.log.log_dir_entries import Entries, entries_of, shown
from anabranch.broker.log.log_loader import Checkpoints
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import (
    CLEAN_SHUTDOWN_MARKER,
    CLEANER_CHECKPOINT,
    CLOSED_LOGS,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK_FILE,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    join,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Storage

logger = structlog.get_logger(__name__)


class LogDirError(Exception):
    """A log dir that this broker must not or cannot use; the message says why and what to do."""


class LogDirLostError(LogDirError):
    """The disk refuses a log dir: a broker that has other log dirs starts without it (KIP-112)."""


class LogDirectory:
    """A log dir that is locked by this process from ``open`` to ``close``."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self.path = path
        self.was_clean = False
        """Whether the last shutdown wrote everything."""
        self.closed_logs: dict[str, bytes] = {}
        """The facts that a clean shutdown stored about its logs, by directory; see ``closed_logs``."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        """The open logs in the dir. Only ``CurrentLogs`` changes this dict."""
        self.unopened: dict[TopicPartition, Checkpoints] = {}
        """Logs in the dir that could not be read at the start: their lines stay in the checkpoint files."""
        self._unlock: Callable[[], None] | None = None
        self._written: dict[str, Mapping[TopicPartition, int]] = {}

    def open(self, meta: MetaProperties) -> None:
        """Lock the dir, check or write ``meta.properties``, and remove the clean-shutdown marker.

        Raises ``LogDirError`` if another process uses the dir, or if it belongs to another broker or cluster. Raises
        ``LogDirLostError`` if a file operation in the dir fails.
        """
        lock_path = join(self.path, LOCK_FILE)
        try:
            self._storage.makedirs(self.path)
            self._unlock = self._storage.lock(lock_path)
        except BlockingIOError as error:
            raise LogDirError(
                f"log dir {self.path} is in use by another process, which holds {lock_path}: "
                "stop that process, or give this broker a log.dirs of its own"
            ) from error
        except OSError as error:
            raise LogDirLostError(f"log dir {self.path} cannot be used: {error}") from error
        try:
            self._check_meta(meta)
            marker = join(self.path, CLEAN_SHUTDOWN_MARKER)
            self.was_clean = self._storage.exists(marker)
            if self.was_clean:  # a crash while loading must not look like a clean shutdown (KAFKA-10471)
                self.closed_logs = self._read_closed_logs(marker)
                self._storage.remove(marker)
        except OSError as error:
            self.close()
            raise LogDirLostError(f"log dir {self.path} cannot be used: {error}") from error
        except LogDirError:
            self.close()
            raise

    def _check_meta(self, meta: MetaProperties) -> None:
        path = join(self.path, META_PROPERTIES)
        if not self._storage.exists(path):
            self._storage.write_atomic(path, encode_meta_properties(meta))
            return
        try:
            found = decode_meta_properties(path, read_checkpoint(self._storage, path))
        except MalformedFileError as error:
            raise LogDirError(f"{error}: it must name broker.id and cluster.id; restore or remove it") from error
        if found.broker_id != meta.broker_id:
            raise LogDirError(
                f"{path} has broker.id={found.broker_id}, this broker has broker.id={meta.broker_id}: "
                "the log dir belongs to another broker"
            )
        if found.cluster_id and found.cluster_id != meta.cluster_id:
            raise LogDirError(
                f"{path} has cluster.id={found.cluster_id}, the cluster is {meta.cluster_id}: "
                "the log dir belongs to another cluster, or zookeeper.connect names the wrong one"
            )

    def _read_closed_logs(self, marker: str) -> dict[str, bytes]:
        """The facts about the logs, if the shutdown that wrote the marker stored them."""
        path = join(self.path, CLOSED_LOGS)
        try:
            content = self._storage.read_bytes(path)
            is_of_marker = self._storage.read_bytes(marker) == checksum(content)
            return lines_by_name(content) if is_of_marker else {}
        except OSError:
            return {}

    def close(self, *, clean: bool = False, closed_logs: Iterable[tuple[str, ClosedLog]] = ()) -> None:
        """Release the lock. With ``clean``, write the marker first: then the next start needs no recovery.

        With ``closed_logs``, the next start does not read these logs' files either. Raises ``OSError``.
        """
        if clean:
            content = encode(closed_logs)
            self._storage.write_atomic(join(self.path, CLOSED_LOGS), content)
            self._storage.write_atomic(join(self.path, CLEAN_SHUTDOWN_MARKER), checksum(content))
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    # ------------------------------------------------------------ checkpoints

    def read_checkpoints(self) -> dict[TopicPartition, Checkpoints]:
        """The offsets in the four files, by partition. A malformed file counts as missing; more is recovered then."""
        files = [
            self.read_offsets(name)
            for name in (
                RECOVERY_POINT_CHECKPOINT,
                LOG_START_CHECKPOINT,
                HIGH_WATERMARK_CHECKPOINT,
                CLEANER_CHECKPOINT,
            )
        ]
        partitions = {partition for offsets in files for partition in offsets}
        return {partition: Checkpoints(*(offsets.get(partition, 0) for offsets in files)) for partition in partitions}

    def read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """One checkpoint file; empty when it is missing or malformed."""
        path = join(self.path, name)
        try:
            return decode_offsets(path, read_checkpoint(self._storage, path))
        except FileNotFoundError:
            return {}
        except MalformedFileError as error:
            logger.warning("log_dir.checkpoint_malformed", error=str(error))
            return {}

    def write_recovery_points(self) -> None:
        """Write ``recovery-point-offset-checkpoint``. Raises ``OSError``, as the other ``write_`` methods do."""
        points = {partition: log.recovery_point for partition, log in self.logs.items()}
        kept = {partition: found.recovery_point for partition, found in self.unopened.items()}
        self.write_offsets(RECOVERY_POINT_CHECKPOINT, kept | points)

    def write_log_starts(self) -> None:
        """Write ``log-start-offset-checkpoint``, for the logs that begin within a segment."""
        starts = {
            partition: log.log_start_offset
            for partition, log in self.logs.items()
            if log.log_start_offset > log.segments[0].base_offset
        }
        kept = {partition: found.log_start_offset for partition, found in self.unopened.items()}
        self.write_offsets(LOG_START_CHECKPOINT, kept | starts)

    def write_high_watermarks(self) -> None:
        """Write ``replication-offset-checkpoint``."""
        watermarks = {partition: log.high_watermark for partition, log in self.logs.items()}
        kept = {partition: found.high_watermark for partition, found in self.unopened.items()}
        self.write_offsets(HIGH_WATERMARK_CHECKPOINT, kept | watermarks)

    def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write ``cleaner-offset-checkpoint``: where each log's dirty part begins. If it is lost, more is cleaned."""
        kept = {partition: found.first_dirty_offset for partition, found in self.unopened.items()}
        self.write_offsets(CLEANER_CHECKPOINT, kept | dict(offsets))

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint file, unless its content is the same already."""
        if self._written.get(name) == offsets:
            return
        write_replace(self._storage, join(self.path, name), encode_offsets(offsets))
        self._written[name] = dict(offsets)

    # ------------------------------------------------------------ contents

    def entries(self) -> Entries:
        """The directories of logs, and the other entries, which are logged. Raises ``OSError``."""
        found = entries_of(self._storage, self.path, self.closed_logs)
        if found.others:
            logger.warning(
                "log_dir.entries_ignored", path=self.path, count=len(found.others), names=shown(found.others)
            )
        return found

    def usage(self) -> tuple[int, int]:
        """(total, free) bytes of the file system; (-1, -1) if they are not known."""
        with contextlib.suppress(OSError):
            return self._storage.total_bytes(self.path), self._storage.free_bytes(self.path)
        return -1, -1
