"""Flushes logs in the background, one after another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock


class LogFlusher:
    """Flushes logs that need it and syncs the identity files of logs with a first record.

    ``is_current`` decides whether a log is still the log of its partition; any other log is skipped.
    """

    def __init__(self, clock: Clock, background: Background, is_current: Callable[[PartitionLog], bool]) -> None:
        self._clock = clock
        self._background = background
        self._is_current = is_current
        self._wanted: dict[TopicPartition, PartitionLog] = {}
        self._begun: list[PartitionLog] = []
        self._woken = trio.Event()

    def want(self, log: PartitionLog) -> None:
        """Flush the log soon; several calls before the flush have the effect of one."""
        self._wanted[log.partition] = log
        self._woken.set()

    def want_identity(self, log: PartitionLog) -> None:
        """Sync the identity file of a log that got its first record."""
        self._begun.append(log)
        self._woken.set()

    def forget(self, partition: TopicPartition) -> None:
        """Do not flush the log of this partition, because the log was deleted."""
        self._wanted.pop(partition, None)

    async def run(self) -> None:
        """Flush the wanted logs, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            begun, self._begun = self._begun, []
            wanted, self._wanted = self._wanted, {}
            for log in begun:
                await self._flush(log, log.sync_identity)
            for log in wanted.values():
                await self._flush(log, log.flush)
                await self._flush(log, partial(log.snapshots.write_begun, self._clock))

    async def _flush(self, log: PartitionLog, flush: Callable[[], Awaitable[None]]) -> None:
        if self._is_current(log):
            with self._background.guard("log-flush", log.partition):
                await flush()
