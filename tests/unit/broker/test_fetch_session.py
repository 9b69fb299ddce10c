"""The cache of fetch sessions, and which session the cache evicts for a new session (KIP-227)."""

from __future__ import annotations

import random

from anabranch.broker.replication.fetch_session import EVICTION_S, MAX_EPOCH, FetchSession, FetchSessionCache
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.types import TopicPartition


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


def cache(slots: int) -> tuple[FetchSessionCache, Clock]:
    clock = Clock()
    purgatory = Purgatory.__new__(Purgatory)
    return FetchSessionCache(slots, clock, random.Random(1), purgatory), clock


def request(count: int) -> FetchRequest:
    partitions = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1) for index in range(count)]
    return FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)])


def made(sessions: FetchSessionCache, size: int) -> FetchSession:
    session = sessions.create(size)
    assert session is not None
    session.add(request(size))
    return session


def test_a_full_cache_keeps_sessions_in_use() -> None:
    sessions, clock = cache(1)
    first = made(sessions, 1)
    assert sessions.create(5) is None
    clock.now = EVICTION_S + 1
    sessions.touch(first)
    assert sessions.create(1) is None, "as large as the cached session"
    assert sessions.get(first.session_id) is first


def test_an_unused_session_is_evicted_for_a_new_one() -> None:
    sessions, clock = cache(2)
    first, second = made(sessions, 9), made(sessions, 1)
    clock.now = EVICTION_S + 1
    sessions.touch(second)
    made(sessions, 1)
    assert sessions.get(first.session_id) is None
    assert sessions.get(second.session_id) is second


def test_a_smaller_session_is_evicted_for_a_larger_one() -> None:
    sessions, clock = cache(2)
    small, large = made(sessions, 1), made(sessions, 9)
    clock.now = EVICTION_S + 1
    sessions.touch(small)
    sessions.touch(large)
    made(sessions, 5)
    assert sessions.get(small.session_id) is None
    assert sessions.get(large.session_id) is large


def test_epochs_wrap_to_1() -> None:
    sessions, _ = cache(1)
    session = made(sessions, 1)
    session.epoch = MAX_EPOCH
    session.next_epoch()
    assert session.epoch == 1


def test_partitions_that_a_session_forgets_are_removed_from_it() -> None:
    sessions, _ = cache(1)
    session = made(sessions, 3)
    session.forget([TopicPartition("t", 1), TopicPartition("t", 7)])
    assert list(session.partitions) == list(session.dirty) == [TopicPartition("t", 0), TopicPartition("t", 2)]
