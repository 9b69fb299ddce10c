"""What a fetcher does before it asks, and while its leader has nothing to say."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from broker.replication.fetcher import FetcherConfig, ReplicaFetcher
from protocol.generated.fetch import FetchRequest, FetchResponse
from runtime.real_trio import RealNetwork
from tests.replica_world import KEY, ReplicaWorld

CONFIG = FetcherConfig(2, 1 << 20, 1, 1 << 20, 500, 1.0, 30.0, flushes=True)


@pytest.mark.trio
async def test_what_another_process_or_epoch_left_unsynced_is_synced_before_it_is_claimed() -> None:
    """With ``log.flush=ack`` a fetch from offset n says that everything below n is on the follower's disk."""
    world = ReplicaWorld(flushes_on_ack=True)
    world.elect(1, 0, [1, 2])
    world.append(1, b"a")
    world.catch_up(1, 2)  # by a fetcher that does not sync
    fetcher = ReplicaFetcher(1, CONFIG, world.clock, RealNetwork(), lambda: None, lambda: 1, world.throttle)
    fetcher.follow(world[2].partition)
    unsynced = fetcher._unsynced()
    assert [one.partition.key for one in unsynced] == [KEY]
    await fetcher._flush(unsynced)
    assert fetcher._unsynced() == [] and world[2].log.recovery_point == 1


class Leader:
    """Has nothing to send: holds a fetch that may be held until it reads the next one of the session."""

    def __init__(self) -> None:
        self.seen: list[FetchRequest] = []
        self.next_read = trio.Event()

    async def request(self, body: FetchRequest, *, version: int, timeout_s: float) -> FetchResponse:
        self.seen.append(body)
        next_read, self.next_read = self.next_read, trio.Event()
        next_read.set()
        if body.session_epoch > 0 and body.max_wait_ms > 0:
            await self.next_read.wait()
        return FetchResponse(session_id=7)


@pytest.mark.trio
async def test_a_new_leader_epoch_is_followed_while_the_leader_holds_a_fetch() -> None:
    """Else nobody replicates the partition, and nothing is acknowledged, for replica.fetch.wait.max.ms."""
    world = ReplicaWorld()
    world.elect(1, 0, [1, 2])
    config = FetcherConfig(2, 1 << 20, 1, 1 << 20, 3_600_000, 1.0, 30.0, flushes=False)
    fetcher = ReplicaFetcher(1, config, world.clock, RealNetwork(), lambda: None, lambda: 1, world.throttle)
    leader: Any = Leader()
    fetcher.follow(world[2].partition)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher._serve, leader)
        await trio.testing.wait_all_tasks_blocked()
        assert [body.session_epoch for body in leader.seen] == [0, 1]
        world.elect(1, 1, [1, 2])
        fetcher.follow(world[2].partition)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    named = [[p.current_leader_epoch for t in body.topics for p in t.partitions] for body in leader.seen]
    assert named == [[0], [], [], [1]]
    assert [(body.session_epoch, body.max_wait_ms > 0) for body in leader.seen[1:]] == [
        (1, True),
        (2, False),
        (3, True),
    ]
