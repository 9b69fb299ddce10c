"""The current log of each partition, and the log dir it is in."""

from __future__ import annotations

from anabranch.broker.log.log_directory import LogDirectory
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.protocol.types import TopicPartition


class CurrentLogs:
    """The open logs of a broker. A log that was deleted, or replaced by its moved copy, is not current any more."""

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}

    def get(self, partition: TopicPartition) -> PartitionLog | None:
        """The partition's log, None when there is none."""
        return self._logs.get(partition)

    def all(self) -> list[PartitionLog]:
        """Every log, in the order in which they were added."""
        return list(self._logs.values())

    def home(self, partition: TopicPartition) -> LogDirectory | None:
        """The log dir of a partition's log."""
        return self._homes.get(partition)

    def is_current(self, log: PartitionLog) -> bool:
        """Whether the log is still the log of its partition."""
        return self._logs.get(log.partition) is log

    def add(self, log: PartitionLog, directory: LogDirectory) -> None:
        """Make a log in ``directory`` the log of its partition, which must have no log."""
        self._logs[log.partition] = directory.logs[log.partition] = log
        self._homes[log.partition] = directory

    def remove(self, partition: TopicPartition) -> LogDirectory:
        """Remove the partition's log; returns the log dir it was in."""
        del self._logs[partition]
        directory = self._homes.pop(partition)
        del directory.logs[partition]
        return directory
