"""Remembers logs that could not be opened at the start, in log dirs that can be read."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.broker.log.blank_directories import incarnation_of
from anabranch.broker.log.deleted_directories import DeletedDirectories
from anabranch.broker.log.log_directory import LogDirectory
from anabranch.broker.log.log_loader import Checkpoints
from anabranch.protocol.sentinels import NO_INCARNATION
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Storage


@dataclass(frozen=True, slots=True)
class UnreadableLog:
    """A log that could not be opened at the start, in a log dir that can be read."""

    directory: LogDirectory
    path: str
    error: str
    passes: bool
    """Whether another try may succeed, because only space or a descriptor was missing."""
    checkpoints: Checkpoints = field(default_factory=Checkpoints)


class UnreadableLogs:
    """The unreadable logs by partition. Only a later incarnation of the partition may replace an unreadable log."""

    def __init__(self, storage: Storage, deleted: DeletedDirectories) -> None:
        self._storage = storage
        self._deleted = deleted
        self._logs: dict[TopicPartition, UnreadableLog] = {}

    def get(self, partition: TopicPartition) -> UnreadableLog | None:
        """The partition's unreadable log, None when there is none."""
        return self._logs.get(partition)

    def items(self) -> list[tuple[TopicPartition, UnreadableLog]]:
        """Every unreadable log with its partition."""
        return list(self._logs.items())

    def add(self, partition: TopicPartition, log: UnreadableLog) -> None:
        """Note that the partition's log is unreadable."""
        self._logs[partition] = log

    def pop(self, partition: TopicPartition) -> UnreadableLog | None:
        """Forget the partition's unreadable log, and return it."""
        return self._logs.pop(partition, None)

    def forget_in(self, directory: LogDirectory) -> None:
        """Forget the logs in a log dir that is lost."""
        self._logs = {partition: log for partition, log in self._logs.items() if log.directory is not directory}

    def is_earlier(self, log: UnreadableLog, incarnation: int) -> bool:
        """Whether a log is known to be of an earlier incarnation of its partition."""
        return 0 <= self.incarnation(log) < incarnation

    def incarnation(self, log: UnreadableLog) -> int:
        """The incarnation of a log's partition, -1 if it is not known."""
        try:
            return incarnation_of(self._storage, log.path)
        except OSError:
            return NO_INCARNATION

    def delete(self, partition: TopicPartition, incarnation: int = NO_INCARNATION) -> None:
        """Rename the log's directory for deletion, unless its incarnation is later; -1 means any.

        Raises ``OSError``; the log then still counts as unreadable.
        """
        log = self._logs.get(partition)
        if log is None or 0 <= incarnation < incarnation_of(self._storage, log.path):
            return
        self._deleted.rename(partition, log.path)
        del self._logs[partition]
        log.directory.unopened.pop(partition, None)
