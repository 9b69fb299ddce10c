"""What a fetcher does before it asks."""

from __future__ import annotations

import pytest

from broker.replication.fetcher import FetcherConfig, ReplicaFetcher
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
