"""Computes the lag of groups in records and in seconds for Prometheus, from the facts of their coordinator.

A coordinator knows the committed offsets of its groups. Its broker knows the ends of the partitions that it leads, and
from time to time asks other leaders for the ends of the other partitions. The coordinator remembers how each end moved.
So it knows when the first record after a committed offset was appended. The lag in seconds is the age of that record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import structlog
import trio

from anabranch.broker.coordinator.service import GroupCoordinator
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.broker.replication.replica_manager import ReplicaManager
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.offset_requests import ANY_LEADER_EPOCH
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock
from anabranch.runtime.progress_reader import ProgressReader

logger = structlog.get_logger(__name__)

_MOST_POINTS = 128
_ASKED_AT_ONCE = 1000


class Lag(NamedTuple):
    """What a group has yet to read after its commit."""

    records: int
    """The records that can be read."""
    seconds: float
    """The age of the first of them; 0 without any."""
    expired: int
    """The records that were removed before the group had committed them."""


class EndHistory:
    """The end offsets of a partition at some moments. Older moments are kept less densely."""

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []

    @property
    def end(self) -> int:
        """The last end known."""
        return self._ends[-1]

    def add(self, now: float, end: int) -> None:
        times, ends = self._times, self._ends
        if ends and end < ends[-1]:  # another log of the same name, or records were lost
            times.clear()
            ends.clear()
        if len(ends) >= 2 and ends[-1] == ends[-2] == end:
            times[-1] = now  # the end did not move in between
            return
        times.append(now)
        ends.append(end)
        if len(times) > _MOST_POINTS:
            half = _MOST_POINTS // 2
            times[:half] = times[:half:2]
            ends[:half] = ends[:half:2]

    def behind_s(self, offset: int, now: float) -> float:
        """The age of the record at ``offset``, 0 if there is no record. Older than the history: a lower bound."""
        at = bisect_right(self._ends, offset)
        if at == len(self._ends):
            return 0.0
        if at == 0:
            return now - self._times[0]
        before, after = self._ends[at - 1], self._ends[at]
        part = (offset + 1 - before) / (after - before)
        return now - (self._times[at - 1] + part * (self._times[at] - self._times[at - 1]))


class GroupLag:
    """The task that follows the ends of partitions, and the lags computed from them."""

    def __init__(
        self,
        clock: Clock,
        groups: GroupCoordinator,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        reader: ProgressReader,
        *,
        interval_s: float,
        most: int,
    ) -> None:
        """``most``: the greatest number of partitions whose ends are followed."""
        self._clock = clock
        self._groups = groups
        self._metadata = metadata
        self._replicas = replicas
        self._reader = reader
        self._interval_s = interval_s
        self._most = most
        self._histories: dict[TopicPartition, EndHistory] = {}
        self._starts: dict[TopicPartition, int] = {}
        """The log start offsets of partitions that other brokers lead."""

    async def run(self) -> None:
        """Follow the ends until cancelled."""
        async with trio.open_nursery() as nursery:
            self._reader.open(nursery)
            while True:
                await self.look()
                await trio.sleep(self._interval_s)

    async def look(self) -> None:
        """Note the present end of each partition for which groups have committed offsets."""
        wanted = self._wanted()
        self._histories = {tp: known for tp, known in self._histories.items() if tp in wanted}
        self._starts = {tp: start for tp, start in self._starts.items() if tp in wanted}
        now = self._clock.monotonic()
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in wanted:
            partition = self._replicas.hosted(tp)
            if partition is not None and partition.is_leader:
                self._add(tp, now, partition.log.high_watermark)
            elif (info := self._metadata.partition(tp)) is not None and info.leader in self._metadata.brokers:
                by_leader.setdefault(info.leader, []).append(tp)
        async with trio.open_nursery() as asking:
            for leader, partitions in by_leader.items():
                asking.start_soon(self._ask, leader, partitions)

    def _wanted(self) -> dict[TopicPartition, None]:
        wanted: dict[TopicPartition, None] = {}
        for shard in self._groups.shards():
            for offsets in shard.durable.offsets.values():
                wanted.update(dict.fromkeys(offsets))
                if len(wanted) >= self._most:
                    return dict.fromkeys(list(wanted)[: self._most])
        return wanted

    async def _ask(self, leader: int, partitions: list[TopicPartition]) -> None:
        try:
            for at in range(0, len(partitions), _ASKED_AT_ONCE):
                some = partitions[at : at + _ASKED_AT_ONCE]
                starts = await self._offsets(leader, some, EARLIEST_TIMESTAMP)
                self._starts.update(starts)
                ends = await self._offsets(leader, list(starts), LATEST_TIMESTAMP)
                now = self._clock.monotonic()
                for tp, end in ends.items():
                    self._add(tp, now, end)
        except (OSError, KafkaError) as error:
            logger.debug("group_lag.leader_not_asked", broker=leader, error=str(error))

    async def _offsets(
        self, leader: int, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        asked: dict[str, list[tuple[int, int]]] = {}
        for name, index in partitions:
            asked.setdefault(name, []).append((index, ANY_LEADER_EPOCH))
        return await self._reader.offsets(leader, asked, timestamp)

    def _add(self, tp: TopicPartition, now: float, end: int) -> None:
        self._histories.setdefault(tp, EndHistory()).add(now, end)

    # ------------------------------------------------------------ reading

    def of(self, tp: TopicPartition, committed: int) -> Lag | None:
        """The lag of a group that committed this offset; None if it is not known."""
        history = self._histories.get(tp)
        partition = self._replicas.hosted(tp)
        if partition is not None and partition.is_leader:
            start, end = partition.log.log_start_offset, partition.log.high_watermark
        elif history is not None:
            start, end = self._starts.get(tp, 0), history.end
        else:
            return None
        first = max(committed, start)
        lag = max(0, end - first)
        seconds = history.behind_s(first, self._clock.monotonic()) if history is not None and lag else 0.0
        return Lag(lag, seconds, max(0, min(start, end) - committed))
