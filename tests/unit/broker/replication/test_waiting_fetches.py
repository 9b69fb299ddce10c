"""Fetches without a session that wait take bounded memory (``waiting.fetches.max.bytes``)."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from anabranch.broker.deferred import Deferred
from anabranch.broker.handlers import fetch
from anabranch.broker.handlers.fetch_read import FetchRead
from anabranch.broker.replication.purgatory import ITEMS_AT_ONCE
from anabranch.broker.replication.waiting_fetches import FETCH_BYTES, PARTITION_BYTES, WaitingFetches
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.unit.broker.handlers.test_refused_fetches import Reader

FETCHES = 1_000
OF_ONE = FETCH_BYTES + PARTITION_BYTES
DAYS_MS = 2**31 - 1


class Client(Reader):
    """Keeps its answers; each waits up to 24 days."""

    def __init__(self, limit_bytes: int) -> None:
        self.waiting: WaitingFetches[Any] = WaitingFetches(limit_bytes)
        super().__init__(waiting=self.waiting)
        self.answered: list[int] = []
        self.sent: list[Deferred[FetchResponse]] = []

    def send(self) -> None:
        number = len(self.sent)
        asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="t", partitions=[asked])]
        answer = fetch.handle(
            self.ctx, FetchRequest(max_wait_ms=DAYS_MS, min_bytes=1, max_bytes=1 << 20, topics=topics)
        )
        assert isinstance(answer, Deferred)
        self.sent.append(answer)
        answer.then(lambda _: self.answered.append(number))


def test_many_fetches_that_wait_take_bounded_memory() -> None:
    client = Client(100 * OF_ONE)
    for _ in range(FETCHES):
        client.send()
    assert client.waiting.parked_bytes == 100 * OF_ONE
    assert client.answered == [], "that many answers in one pass would hold the event loop"
    pieces = list(client.purgatory._end())
    assert len(pieces) >= (FETCHES - 100) // ITEMS_AT_ONCE
    assert client.answered == list(range(FETCHES - 100)), "those that have waited longest"
    assert client.waiting.ended == FETCHES - 100
    client.cluster.append(1, b"a")
    for operation in list(client.purgatory.waiting()):
        operation.try_complete()
    assert len(client.answered) == FETCHES
    assert (client.waiting.parked_bytes, len(client.waiting)) == (0, 0)


def test_nothing_is_kept_of_a_fetch_whose_client_is_gone() -> None:
    """The purgatory keeps the operation up to its deadline, which the client chose."""
    client = Client(-1)
    for _ in range(10):
        client.send()
    for answer in client.sent:
        assert answer.on_abandoned is not None
        answer.on_abandoned()
    assert client.purgatory.size == 10
    assert client.waiting.parked_bytes == 0
    assert not client.cluster[1].partition.readers
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, FetchRead)]


def test_nothing_is_kept_of_a_fetch_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(-1)
    client.send()

    def broken(_read: FetchRead) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(FetchRead, "run", broken)
    (operation,) = client.purgatory.waiting()
    client.purgatory.changed(operation)
    list(client.purgatory._deliver())
    assert operation.completed
    assert client.waiting.parked_bytes == 0


def test_one_fetch_may_exceed_the_limit() -> None:
    client = Client(1)
    client.send()
    assert client.answered == []
    client.send()
    list(client.purgatory._end())
    assert client.answered == [0]


def test_the_connection_that_keeps_the_most_ends_its_own_fetches() -> None:
    waiting: WaitingFetches[tuple[str, int]] = WaitingFetches(100 * OF_ONE)
    small = [("small", number) for number in range(50)]
    for one in small:
        assert waiting.add(one, 1, client=one) == []
    greedy = [("greedy", number) for number in range(1_000)]
    ended = [ended for one in greedy for ended in waiting.add(one, 1, client="greedy")]
    assert ended == greedy[:950], "its oldest, and none of the others"
    assert waiting.add(("late", 0), 1, client="late") == [greedy[950]]


def test_a_fetch_above_the_limit_does_not_end_those_of_others() -> None:
    waiting: WaitingFetches[str] = WaitingFetches(10 * OF_ONE)
    waiting.add("small", 1, client=1)
    assert waiting.add("giant", 1_000, client=2) == ["giant"]
    assert waiting.parked_bytes == OF_ONE


@pytest.mark.parametrize("seed", range(20))
def test_the_counts_are_those_of_the_fetches_that_wait(seed: int) -> None:
    rng = random.Random(seed)
    waiting: WaitingFetches[int] = WaitingFetches(rng.choice([-1, 0, 1, 50 * OF_ONE]))
    sizes: dict[int, int] = {}
    for number in range(500):
        partitions = rng.choice([0, 1, 3, 40])
        sizes[number] = FETCH_BYTES + PARTITION_BYTES * partitions
        for ended in waiting.add(number, partitions, client=rng.randrange(10)):
            del sizes[ended]
        if rng.random() < 0.4:
            gone = rng.randrange(number + 1)
            waiting.remove(gone)
            sizes.pop(gone, None)
        assert (waiting.parked_bytes, len(waiting)) == (sum(sizes.values()), len(sizes))
    for number in list(sizes):
        waiting.remove(number)
    assert (waiting.parked_bytes, len(waiting)) == (0, 0)
    assert not waiting._clients and not waiting._levels
