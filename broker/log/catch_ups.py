"""Rebuilds the producer state of logs up to their ends in the background, after truncations."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.producer_rebuild import catch_up
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background

TASK = "producer-catch-up"
_AGAIN_S = 1.0


class CatchUps:
    """The logs whose producer state is behind the log end. After a transient error a log is tried again after a pause.

    ``is_current`` decides whether a log is still the log of its partition; any other log is skipped.
    """

    def __init__(self, background: Background, is_current: Callable[[PartitionLog], bool]) -> None:
        self._background = background
        self._is_current = is_current
        self._behind: dict[TopicPartition, PartitionLog] = {}
        self._woken = trio.Event()

    def want(self, log: PartitionLog) -> None:
        """Note that the producer state of the log is behind the log end."""
        self._behind[log.partition] = log
        self._woken.set()

    async def run(self) -> None:
        """Catch up the noted logs, until cancelled."""
        while True:
            with trio.move_on_after(_AGAIN_S if self._behind else math.inf):
                await self._woken.wait()
            self._woken = trio.Event()
            behind, self._behind = self._behind, {}
            for log in behind.values():
                if self._background.due(TASK, log.partition) and self._is_due(log):
                    with self._background.guard(TASK, log.partition):
                        await catch_up(log)
                if self._is_due(log):
                    self._behind[log.partition] = log

    def _is_due(self, log: PartitionLog) -> bool:
        return log.rebuild is not None and not log.is_broken and self._is_current(log)
