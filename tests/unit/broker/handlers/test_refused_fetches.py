"""A consumer's fetch that has nothing but errors to answer, again: its answer is delayed, others are not."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.deferred import Deferred
from anabranch.broker.handlers import fetch
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.broker.replication.waiting_fetches import WaitingFetches
from anabranch.broker.stock.client_session import ClientSession
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from anabranch.protocol.types import TopicPartition
from tests.support.broker.replica_cluster import ReplicaCluster

REMOVED = 5
"""A partition that does not exist, as those after it."""


class Replicas:
    """The replicas of a broker that does not host ``REMOVED``."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def leader(self, key: TopicPartition, current_leader_epoch: int) -> Any:
        if key.partition >= REMOVED:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._broker.leader(key, current_leader_epoch)

    def hosted(self, key: TopicPartition) -> Any:
        return None if key.partition >= REMOVED else self._broker.hosted(key)


class Reader:
    """One connection that fetches from a broker, which leads partition 0 of ``t``."""

    def __init__(self, delay_ms: int = 50, waiting: WaitingFetches[Any] | None = None) -> None:
        self.cluster = ReplicaCluster(1)
        self.cluster.elect(1, 1, [1])
        self.purgatory = Purgatory(self.cluster.clock)
        node = SimpleNamespace(
            replicas=Replicas(self.cluster[1]),
            metrics=self.cluster.metrics,
            purgatory=self.purgatory,
            hosted=SimpleNamespace(
                leader_throttle=self.cluster.throttle,
                waiting_fetches=WaitingFetches(-1) if waiting is None else waiting,
                fetch_sessions=None,
            ),
            config=SimpleNamespace(values=SimpleNamespace(fetch_error_delay_ms=delay_ms, fetch_max_bytes=1 << 20)),
            env=SimpleNamespace(clock=self.cluster.clock, rng=random.Random(1)),
        )
        self.ctx: Any = SimpleNamespace(
            node=node, api_version=4, session=ClientSession(10), keeps_order=True, request_bytes=100
        )

    def fetch(self, *partitions: int, max_wait_ms: int = 500, replica_id: int = -1) -> list[int] | None:
        """The error code of each partition in the answer; None if there is no answer yet."""
        asked = [FetchPartition(partition=p, fetch_offset=0, partition_max_bytes=1 << 20) for p in partitions]
        request = FetchRequest(
            replica_id=replica_id, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20,
            topics=[FetchTopic(topic="t", partitions=asked)],
        )  # fmt: skip
        answer = fetch.handle(self.ctx, request)
        self.answers: list[FetchResponse] = []
        if isinstance(answer, Deferred):
            answer.then(self.answers.append)
        else:
            assert isinstance(answer, FetchResponse)
            self.answers.append(answer)
        return self.codes()

    def codes(self) -> list[int] | None:
        if not self.answers:
            return None
        return [part.error_code for topic in self.answers[0].responses for part in topic.partitions]

    @property
    def delayed(self) -> DelayedOperation:
        (operation,) = self.purgatory.waiting()
        return operation


UNKNOWN = [int(ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_the_first_error_is_answered_at_once_and_the_same_again_after_a_delay() -> None:
    reader = Reader()
    assert reader.fetch(REMOVED) == UNKNOWN
    assert reader.fetch(REMOVED) is None
    assert 0.05 <= reader.delayed.deadline - reader.cluster.clock.monotonic() <= 0.1
    reader.delayed.expire()
    assert reader.codes() == UNKNOWN


def test_records_of_another_partition_end_the_delay() -> None:
    reader = Reader()
    assert reader.fetch(0, REMOVED) == [0, *UNKNOWN]
    assert reader.fetch(0, REMOVED) is None
    operation = reader.delayed
    operation.try_complete()
    assert reader.codes() is None
    reader.cluster.append(1, b"a")
    operation.try_complete()
    assert reader.codes() == [0, *UNKNOWN]
    assert reader.fetch(0, REMOVED) == [0, *UNKNOWN], "with records the answer has more than errors"


def test_another_answer_in_between_makes_the_next_error_the_first_again() -> None:
    reader = Reader()
    reader.cluster.append(1, b"a")
    for _ in range(3):
        assert reader.fetch(REMOVED) == UNKNOWN
        assert reader.fetch(0) == [0]


def test_the_delay_is_not_above_the_time_that_the_client_waits() -> None:
    reader = Reader(delay_ms=10_000)
    assert reader.fetch(REMOVED, max_wait_ms=20) == UNKNOWN
    assert reader.fetch(REMOVED, max_wait_ms=20) is None
    assert reader.delayed.deadline - reader.cluster.clock.monotonic() == pytest.approx(0.02)


@pytest.mark.parametrize(("delay_ms", "max_wait_ms", "replica_id"), [(0, 500, -1), (50, 0, -1), (50, 500, 2)])
def test_followers_and_clients_that_do_not_wait_are_not_delayed(
    delay_ms: int, max_wait_ms: int, replica_id: int
) -> None:
    reader = Reader(delay_ms)
    for _ in range(3):
        assert reader.fetch(REMOVED, max_wait_ms=max_wait_ms, replica_id=replica_id) == UNKNOWN


def test_a_fetch_of_very_many_partitions_is_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a delayed fetch is made in one pass of the event loop."""
    monkeypatch.setattr(fetch, "MOST_DELAYED", 2)
    reader = Reader()
    for _ in range(3):
        assert reader.fetch(REMOVED, REMOVED + 1, REMOVED + 2) is not None
    assert reader.fetch(REMOVED, REMOVED + 1) is None
