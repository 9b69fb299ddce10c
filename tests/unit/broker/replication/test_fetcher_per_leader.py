"""The assignment of partitions to fetchers."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from anabranch.broker.replication import fetcher_per_leader as module
from anabranch.broker.replication.fetcher_per_leader import FetcherPerLeader
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition

pytestmark = pytest.mark.trio

COMMITS, RECORDS, OTHER = TopicPartition(OFFSETS_TOPIC, 0), TopicPartition("t", 0), TopicPartition("t", 1)


class Followed:
    def __init__(self, key: TopicPartition, leader_id: int) -> None:
        self.key, self.leader_id = key, leader_id


class Fetcher:
    """Runs until it follows no partition."""

    made: list[Fetcher]

    def __init__(self, leader_id: int, *_: object) -> None:
        self.leader_id = leader_id
        self.keys: set[TopicPartition] = set()
        self.left = trio.Event()
        self.made.append(self)

    def follow(self, partition: Followed) -> None:
        self.keys.add(partition.key)

    def unfollow(self, key: TopicPartition) -> None:
        self.keys.discard(key)
        if not self.keys:
            self.left.set()

    @property
    def is_idle(self) -> bool:
        return not self.keys

    async def run(self) -> None:
        await self.left.wait()


async def test_internal_topics_of_a_leader_have_a_fetcher_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because internal topics have their own fetcher, a commit does not wait for the leader's other partitions."""
    Fetcher.made = []
    monkeypatch.setattr(module, "ReplicaFetcher", Fetcher)
    nothing: object = None
    async with trio.open_nursery() as nursery:
        fetchers = FetcherPerLeader(nothing, nothing, nothing, nursery, nothing, nothing, nothing)  # type: ignore[arg-type]
        for key in (COMMITS, RECORDS, OTHER):
            fetchers.follow(Followed(key, 1))  # type: ignore[arg-type]
        assert [(one.leader_id, one.keys) for one in Fetcher.made] == [(1, {COMMITS}), (1, {RECORDS, OTHER})]
        fetchers.follow(Followed(COMMITS, 2))  # type: ignore[arg-type]
        fetchers.stop(OTHER)
        assert [(one.leader_id, one.keys) for one in Fetcher.made] == [(1, set()), (1, {RECORDS}), (2, {COMMITS})]
        await trio.testing.wait_all_tasks_blocked()
        fetchers.follow(Followed(COMMITS, 1))  # type: ignore[arg-type]
        assert [(one.leader_id, one.keys) for one in Fetcher.made[2:]] == [(2, set()), (1, {COMMITS})]
        nursery.cancel_scope.cancel()
