"""The environment of the log's tests: real files in a temporary directory, a manual clock, disks that fail."""

from __future__ import annotations

import errno
import posixpath
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_creation import create_log
from anabranch.broker.log.log_loader import Checkpoints, open_log
from anabranch.broker.log.log_manager import LogManager, LogManagerConfig
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.log.time_search import TimeSearch
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.records import RecordBatch, iter_batches
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Buffer, Env, File
from anabranch.runtime.real_trio import RealStorage, TrioNetwork

START_MS = 1_700_000_000_000
PARTITION = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


class ManualClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ms = START_MS
        self.seconds = 0.0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds


class Crash(BaseException):
    """Simulates the death of the process."""


class FaultyFile:
    """A file that calls ``change`` of the storage for each change."""

    def __init__(self, file: File, storage: FaultyStorage) -> None:
        self._file = file
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def append(self, data: Buffer) -> None:
        half = bytes(data)[: len(data) // 2]
        self._storage.change(torn=lambda: self._file.append(half), grows=True)
        self._file.append(data)

    def truncate(self, size: int) -> None:
        self._storage.change()
        self._file.truncate(size)

    async def cut(self, size: int) -> None:
        await self._storage.before_cut()
        self._storage.change()
        await self._file.cut(size)

    async def sync(self) -> None:
        self._storage.synced.append(posixpath.basename(self._file.path))
        await self._storage.before_sync()
        await self._file.sync()


class FaultyStorage(RealStorage):
    """Real files. The process crashes at the change number ``crash_at``, and a full disk refuses growth."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.crash_at = -1
        self.full = False
        self.full_with_parts = False
        """Whether a full disk stores the first half of an append."""
        self.full_for = ""
        """The disk is full for new files whose path ends with this suffix."""
        self.keeps_trees = False
        self.synced: list[str] = []
        """The file name of each sync, in order. Failed syncs are included."""

    @property
    def syncs(self) -> int:
        return len(self.synced)

    async def before_sync(self) -> None:
        """Called before a file is synced; tests replace it."""

    async def before_cut(self) -> None:
        """Called before a thread truncates a file; tests replace it."""

    def change(self, torn: Callable[[], None] | None = None, *, grows: bool = False) -> None:
        """Count a change; raise when the disk is full or the process is to crash."""
        if self.full and grows:
            if self.full_with_parts and torn is not None:
                torn()
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.crash_at >= 0 and self.changes >= self.crash_at:
            if self.changes == self.crash_at and torn is not None:
                torn()
            self.changes += 1
            raise Crash
        self.changes += 1

    def open(self, path: str, *, create: bool = False) -> File:
        if create and self.full_for and path.endswith(self.full_for):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        if create and not self.exists(path):
            self.change(grows=True)
        return FaultyFile(super().open(path, create=create), self)  # type: ignore[return-value]

    def rename(self, old: str, new: str) -> None:
        self.change()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self.change()
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        if self.keeps_trees:
            raise OSError(errno.EIO, "Input/output error", path)
        super().remove_tree(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        self.change(grows=True)
        super().write_atomic(path, data)


class LogFixture:
    """One partition's directory, and functions that open its log."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.storage = FaultyStorage()
        self.env = Env(clock=self.clock, network=TrioNetwork(), rng=random.Random(7), storage=self.storage)
        self.directory = str(root / "t-0")
        self._managers: list[LogManager] = []

    def create(self, **config: Any) -> PartitionLog:
        """A new log; ``config`` as for ``LogConfig``."""
        metadata = LogIdentity(TOPIC_ID, 5)
        return create_log(self.env, self.directory, PARTITION, metadata, LogConfig(**config), ProducerState())

    async def reopen(
        self, *, clean: bool = False, checkpoints: Checkpoints | None = None, **config: Any
    ) -> PartitionLog:
        """The log as the next process opens it."""
        return await open_log(
            self.env, self.directory, PARTITION, LogConfig(**config), checkpoints or Checkpoints(), clean=clean
        )

    def config(self, *dirs: str, broker_id: int = 1, cluster_id: str = "c", **config: Any) -> LogManagerConfig:
        """Of a broker with these log dirs, by default ``d``."""
        paths = tuple(str(self.root / name) for name in dirs or ("d",))
        return LogManagerConfig(broker_id, cluster_id, paths, **config)

    def manager(self, *dirs: str, background: Background | None = None, **config: Any) -> LogManager:
        """A broker's logs, as ``config`` says. They are closed at the end of the test."""
        self._managers.append(LogManager(self.config(*dirs, **config), self.env, background))
        return self._managers[-1]

    async def started(self, *dirs: str, background: Background | None = None, **config: Any) -> LogManager:
        manager = self.manager(*dirs, background=background, **config)
        await manager.start()
        return manager

    def close(self) -> None:
        for manager in self._managers:
            manager.close_at_once()

    def names(self, suffix: str = "") -> list[str]:
        """Names of the files in the partition's directory."""
        return [name for name in self.storage.listdir(self.directory) if name.endswith(suffix)]

    def file(self, name: str) -> Path:
        return self.root / "t-0" / name


def batch(
    *values: bytes | None,
    key: bytes | None = b"k",
    timestamp: int = START_MS,
    keys: list[bytes] | None = None,
    **fields: Any,
) -> bytearray:
    """A batch of one record per value."""
    names = keys or [key] * len(values)
    records = [(name, value, (), timestamp + index) for index, (name, value) in enumerate(zip(names, values))]
    return bytearray(build_batch(records, **fields))


def idempotent(sequence: int, count: int = 1, *, producer_id: int = 9, epoch: int = 0, **fields: Any) -> bytearray:
    """A batch of an idempotent producer."""
    return batch(*[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)


def read_all(log: PartitionLog, upper_bound: int | None = None) -> list[RecordBatch]:
    """Every batch from the log start to ``upper_bound`` (default: the log end)."""
    end = log.log_end_offset if upper_bound is None else upper_bound
    offset, found = log.log_start_offset, []
    while offset < end:
        records = log.read(offset, 1 << 20, upper_bound=end).records
        data = records if isinstance(records, bytes) else records.read()
        batches = [each for each in iter_batches(data, allow_partial_tail=True) if each.last_offset >= offset]
        if not batches:
            break
        found += batches
        offset = batches[-1].next_offset
    return found


def find_time(log: PartitionLog, timestamp: int | None) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch) of the first record at or after a time. None means the latest record."""
    search = TimeSearch(log, timestamp)
    assert search.advance()
    return search.found


def values(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of every record."""
    return [(record.offset, record.key, record.value) for each in read_all(log) for record in each]
