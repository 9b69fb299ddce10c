"""Keeps the directories of logs that were renamed for deletion, and removes their files later."""

from __future__ import annotations

import random
import uuid

from anabranch.broker.log.log_directory import LogDirectory
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import delete_directory_name, join, parent_of
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock, Storage


class DeletedDirectories:
    """The renamed directories. The partition can have a new log at once; the files stay for a while."""

    def __init__(self, clock: Clock, storage: Storage, rng: random.Random, background: Background) -> None:
        self._clock = clock
        self._storage = storage
        self._rng = rng
        self._background = background
        self._due_ms: dict[str, int] = {}

    def rename_log(self, log: PartitionLog) -> str:
        """Rename a log's directory; its files are removed after ``file.delete.delay.ms``.

        Returns the new path. Raises ``OSError``.
        """
        return self.rename(log.partition, log.directory, self._clock.now_ms() + log.config.file_delete_delay_ms)

    def rename(self, partition: TopicPartition, path: str, due_ms: int = 0) -> str:
        """Rename a directory whose files are removed at ``due_ms``. Returns the new path. Raises ``OSError``."""
        name = delete_directory_name(partition, uuid.UUID(int=self._rng.getrandbits(128), version=4))
        renamed = join(parent_of(path), name)
        self._storage.rename(path, renamed)
        self._due_ms[renamed] = due_ms
        return renamed

    def restore(self, renamed: str, path: str) -> None:
        """Undo a rename. If this raises ``OSError``, the files stay until the next start."""
        del self._due_ms[renamed]
        self._storage.rename(renamed, path)

    def add(self, renamed: str) -> None:
        """Note a directory that an earlier process renamed, so that its files are removed."""
        self._due_ms[renamed] = 0

    def forget_in(self, directory: LogDirectory) -> None:
        """Forget the directories in a log dir that is lost."""
        for path in [path for path in self._due_ms if parent_of(path) == directory.path]:
            del self._due_ms[path]

    async def remove_due(self) -> None:
        """Remove the directories whose delay is over. If a removal fails, it is tried again later."""
        now_ms = self._clock.now_ms()
        for path in [path for path, due_ms in self._due_ms.items() if due_ms <= now_ms]:
            if self._background.due("directory-removal", path):
                with self._background.guard("directory-removal", path):
                    await self._storage.unlink_tree(path)
                    del self._due_ms[path]
