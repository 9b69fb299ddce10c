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


def cache(slots: int, max_partitions: int = 1_000) -> tuple[FetchSessionCache, Clock]:
    clock = Clock()
    purgatory = Purgatory.__new__(Purgatory)
    return FetchSessionCache(slots, max_partitions, clock, random.Random(1), purgatory), clock


def request(count: int) -> FetchRequest:
    partitions = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1) for index in range(count)]
    return FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)])


def made(
    sessions: FetchSessionCache, size: int, *, is_follower: bool = False, owner: set[int] | None = None
) -> FetchSession:
    session = sessions.create(size, is_follower=is_follower)
    assert session is not None
    sessions.touch(session, set() if owner is None else owner)
    session.add(request(size))
    assert sessions.count(session)
    return session


def touch(sessions: FetchSessionCache, session: FetchSession) -> None:
    sessions.touch(session, session.owner)


def test_a_full_cache_keeps_sessions_in_use() -> None:
    sessions, clock = cache(1)
    first = made(sessions, 1)
    assert sessions.create(5) is None
    clock.now = EVICTION_S + 1
    touch(sessions, first)
    assert sessions.create(1) is None, "as large as the cached session"
    assert sessions.get(first.session_id) is first


def test_an_unused_session_is_evicted_for_a_new_one() -> None:
    sessions, clock = cache(2)
    first, second = made(sessions, 9), made(sessions, 1)
    clock.now = EVICTION_S + 1
    touch(sessions, second)
    made(sessions, 1)
    assert sessions.get(first.session_id) is None
    assert sessions.get(second.session_id) is second


def test_a_smaller_session_is_evicted_for_a_larger_one() -> None:
    sessions, clock = cache(2)
    small, large = made(sessions, 1), made(sessions, 9)
    clock.now = EVICTION_S + 1
    touch(sessions, small)
    touch(sessions, large)
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


def test_sessions_are_limited_by_the_partitions_of_all_sessions() -> None:
    sessions, _ = cache(10, max_partitions=5)
    first = made(sessions, 3)
    assert sessions.create(3) is None
    made(sessions, 2)
    assert sessions.partitions == 5
    sessions.remove(first.session_id)
    assert sessions.partitions == 2
    made(sessions, 3)


def test_unused_sessions_are_evicted_for_their_partitions() -> None:
    sessions, clock = cache(10, max_partitions=5)
    unused = [made(sessions, 2), made(sessions, 2)]
    clock.now = EVICTION_S + 1
    large = made(sessions, 5)
    assert [sessions.get(session.session_id) for session in [*unused, large]] == [None, None, large]
    assert sessions.partitions == 5


def test_a_session_larger_than_the_cache_evicts_nothing() -> None:
    sessions, clock = cache(10, max_partitions=5)
    first = made(sessions, 2)
    clock.now = EVICTION_S + 1
    assert sessions.create(6) is None
    assert sessions.get(first.session_id) is first


def test_a_follower_takes_the_partitions_of_consumers_but_not_of_followers() -> None:
    sessions, _ = cache(10, max_partitions=4)
    consumer, follower = made(sessions, 2), made(sessions, 2, is_follower=True)
    made(sessions, 2, is_follower=True)
    assert sessions.get(consumer.session_id) is None
    assert sessions.create(1, is_follower=True) is None
    assert sessions.get(follower.session_id) is follower


def test_a_session_that_grows_beyond_the_limit_ends() -> None:
    sessions, _ = cache(10, max_partitions=4)
    session = made(sessions, 2)
    session.add(request(4))
    assert sessions.count(session)
    session.add(request(5))
    assert not sessions.count(session)
    assert sessions.get(session.session_id) is None
    assert sessions.partitions == 0


def test_a_session_ends_with_the_connection_of_its_last_fetch() -> None:
    sessions, _ = cache(10)
    first, second = set[int](), set[int]()
    stays, goes = made(sessions, 1, owner=first), made(sessions, 1, owner=first)
    sessions.touch(stays, second)
    sessions.connection_ended(first)
    assert sessions.get(goes.session_id) is None
    assert sessions.get(stays.session_id) is stays
    sessions.connection_ended(second)
    assert len(sessions) == sessions.partitions == 0


def test_a_session_that_ended_while_its_partitions_were_added_does_not_count() -> None:
    """The partitions of a large fetch are added in steps, and its connection may end in between."""
    sessions, _ = cache(2, max_partitions=10)
    session, owner = sessions.create(8), set[int]()
    assert session is not None
    sessions.touch(session, owner)
    sessions.connection_ended(owner)
    session.add(request(8))
    assert not sessions.count(session)
    assert sessions.partitions == 0
    made(sessions, 10)
