"""Decisions about very many groups of a partition: what has expired, and what was committed for deleted partitions.

They are made in slices. A slice is written before the next one is decided, so that a lagging follower holds up one
slice at most, and commits one slice at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import trio

from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.loaded import LoadedPartition
from anabranch.broker.coordinator.shard import Turn
from anabranch.broker.log.slices import TimeSlice
from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock


class Sweeps:
    """Visits groups, those of one partition at a time: fifty slices in a row would be one of a tenth of a second."""

    def __init__(self, clock: Clock, background: Background) -> None:
        self._clock = clock
        self._background = background
        self._turn = trio.Lock()

    async def visit(
        self, task: str, loaded: LoadedPartition, group_ids: Iterable[str], decide: Callable[[Turn, Group], None]
    ) -> None:
        """Return when ``decide`` was called for each of the groups that is there, and all that it wrote has a fate.

        It ends early when the partition is closed. One group's failure keeps no other from its turn.
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
