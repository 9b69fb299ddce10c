"""Makes decisions about very many groups of a partition: on expired offsets, and on offsets of deleted partitions.

The decisions are made in slices. The next slice is decided once the writes of this slice are committed or lost. So at
most one slice waits for a lagging follower, and at most one slice is committed when it catches up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import trio

from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.log.slices import TimeSlice
from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock


class Sweeps:
    """Visits the groups of one partition at a time: fifty partitions with a slice each would block tasks for 0.1 s."""

    def __init__(self, clock: Clock, background: Background) -> None:
        self._clock = clock
        self._background = background
        self._turn = trio.Lock()

    async def visit(
        self, task: str, loaded: LoadedPartition, group_ids: Iterable[str], decide: Callable[[Turn, Group], None]
    ) -> None:
        """Call ``decide`` for each group that exists; return when all writes of these calls are committed or lost.

        The visit ends early if the partition is closed. If the decision for one group fails, the others are still made.
        """
        waiting = deque(group_ids)
        while waiting and not loaded.is_closed:
            async with self._turn:
                work = TimeSlice(self._clock)
                while waiting and not loaded.is_closed:
                    with self._background.guard(task, waiting[0]):
                        _visit(loaded, waiting.popleft(), decide)
                    if work.due():
                        break
            await loaded.written().value()


def _visit(loaded: LoadedPartition, group_id: str, decide: Callable[[Turn, Group], None]) -> None:
    group = loaded.shard.groups.get(group_id)
    if group is not None:
        turn = loaded.turn()
        decide(turn, group)
        loaded.carry_out(turn, group_id)
