"""Removes expired offsets, and the offsets of deleted partitions, from the groups of all loaded partitions.

There may be very many groups, so the decisions are made in slices. The next slice is decided once the writes of this
slice are committed or lost. So at most one slice waits for a lagging follower, and at most one slice is committed when
it catches up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import trio

from anabranch.broker.coordinator import expiry
from anabranch.broker.coordinator.broker_services import Topics
from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.deletions import PartitionDeletion, RecentDeletions, as_of
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.log.slices import TimeSlice
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock


class Sweeps:
    """Two tasks: ``run_expiry`` visits all groups at each interval, ``run_removal`` some groups after a deletion.

    One partition is visited at a time: fifty partitions with a slice each would block tasks for 0.1 s.
    """

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        topics: Topics,
        loaded: Mapping[int, LoadedPartition],
        background: Background,
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._loaded = loaded
        self._background = background
        self._turn = trio.Lock()
        self._wanted = trio.Event()
        self._just_deleted: dict[TopicPartition, int] = {}
        """Partitions whose offsets have to be removed, each with its last incarnation."""
        self._just_loaded: dict[LoadedPartition, None] = {}
        """Partitions of the offsets topic that may hold offsets of recently deleted partitions."""
        self.deletions = RecentDeletions()

    def on_deleted(self, partitions: Mapping[TopicPartition, int]) -> None:
        """Remove the offsets of deleted partitions. Incarnation -1 means that it is not known."""
        self.deletions.add(partitions)
        self._just_deleted.update(partitions)
        self._wanted.set()

    def on_loaded(self, loaded: LoadedPartition) -> None:
        """Remove the offsets that the previous coordinator may not have removed."""
        self._just_loaded[loaded] = None
        self._wanted.set()

    async def run_removal(self) -> None:
        """Remove the offsets of deleted partitions until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self._remove_wanted()

    async def run_expiry(self) -> None:
        """Remove expired offsets at each interval until cancelled."""
        while True:
            await trio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            await self._expire_in_all()
            self.deletions.age()

    # Functions of their own: while a task waits, its variables would keep unloaded partitions in memory.

    async def _remove_wanted(self) -> None:
        just_deleted, self._just_deleted = as_of(self._just_deleted, self._topics), {}
        just_loaded, self._just_loaded = self._just_loaded, {}
        async with trio.open_nursery() as nursery:  # a partition that waits for its replicas delays no other
            for loaded in self._loaded.values():
                if loaded not in just_loaded:
                    nursery.start_soon(self._remove, loaded, just_deleted)
            if just_loaded:
                deleted = as_of(self.deletions.known(), self._topics)
                for loaded in just_loaded:
                    nursery.start_soon(self._remove, loaded, deleted)

    async def _expire_in_all(self) -> None:
        deleted = as_of(self.deletions.known(), self._topics)
        async with trio.open_nursery() as nursery:
            for loaded in self._loaded.values():
                nursery.start_soon(self._expire, loaded, deleted)

    async def _expire(self, loaded: LoadedPartition, deleted: Mapping[TopicPartition, PartitionDeletion]) -> None:
        await self._visit("offset-expiry", loaded, list(loaded.shard.groups), expiry.expire_offsets)
        await self._remove(loaded, deleted)  # tombstones may have been missed, or lost

    async def _remove(self, loaded: LoadedPartition, deleted: Mapping[TopicPartition, PartitionDeletion]) -> None:
        """Write tombstones for the offsets of partitions that were deleted."""
        group_ids = loaded.committers_of({tp.topic: None for tp in deleted}) if deleted else []
        await self._visit(
            "offset-removal", loaded, group_ids, lambda turn, group: expiry.remove_partitions(turn, group, deleted)
        )

    async def _visit(
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
