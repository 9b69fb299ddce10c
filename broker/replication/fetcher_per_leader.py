"""The fetchers of a broker: for each followed leader, one fetcher for internal topics and one for all other topics.

A fetcher reports its appends after it has appended a whole response. A group's commits are small, and a client waits
for each commit. So commits must not wait for the records of other topics.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from anabranch.broker.replication.fetcher import ReplicaFetcher
from anabranch.broker.replication.fetcher_config import FetcherConfig
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.throttle import ReplicationQuota
from anabranch.protocol.sentinels import NO_LEADER
from anabranch.protocol.topic_names import INTERNAL_TOPICS
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock, Network

_Key = tuple[int, bool]
"""The key of a fetcher: the leader's broker id, and whether the fetcher is for internal topics."""


class FetcherPerLeader:
    """Tasks run in ``nursery``. ``address(broker)``: the present address of a broker, None while it is not known."""

    def __init__(
        self,
        config: FetcherConfig,
        clock: Clock,
        network: Network,
        nursery: trio.Nursery,
        address: Callable[[int], tuple[str, int] | None],
        broker_epoch: Callable[[], int],
        throttle: ReplicationQuota,
        background: Background | None = None,
    ) -> None:
        self._background = background or Background()
        self._config = config
        self._clock = clock
        self._network = network
        self._nursery = nursery
        self._address = address
        self._broker_epoch = broker_epoch
        self._throttle = throttle
        self._fetchers: dict[_Key, ReplicaFetcher] = {}
        self._leader_of: dict[TopicPartition, int] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch from the partition's leader, in its present epoch, and from no other broker."""
        key, leader_id = partition.key, partition.leader_id
        if self._leader_of.get(key, leader_id) != leader_id:
            self.stop(key)
        if leader_id == NO_LEADER:
            return
        self._leader_of[key] = leader_id
        fetcher_key = _fetcher_key(leader_id, key)
        fetcher = self._fetchers.get(fetcher_key)
        if fetcher is not None:
            fetcher.follow(partition)
            return
        fetcher = self._fetchers[fetcher_key] = ReplicaFetcher(
            leader_id,
            self._config,
            self._clock,
            self._network,
            lambda: self._address(leader_id),
            self._broker_epoch,
            self._throttle,
        )
        fetcher.follow(partition)
        self._nursery.start_soon(self._run, fetcher_key, fetcher)

    def stop(self, key: TopicPartition) -> None:
        """Stop following a partition."""
        leader_id = self._leader_of.pop(key, None)
        fetcher = self._fetchers.get(_fetcher_key(leader_id, key)) if leader_id is not None else None
        if fetcher is not None:
            fetcher.unfollow(key)

    async def _run(self, key: _Key, fetcher: ReplicaFetcher) -> None:
        while True:
            await self._background.keep(f"replica-fetcher-{fetcher.leader_id}", fetcher.run)
            if fetcher.is_idle:
                break
        # No other task ran since the fetcher's last check, so the fetcher still has nothing to follow.
        del self._fetchers[key]


def _fetcher_key(leader_id: int, key: TopicPartition) -> _Key:
    return leader_id, key.topic in INTERNAL_TOPICS
