"""A partition is merged after retention has removed records that its owner has delivered but not flushed."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from sim.scheduler import run_deterministic
from tests.history.checks import check_history
from tests.sim.resize_mutations import an_empty_partition_is_removed_unflushed
from tests.sim.sim_cluster import SimCluster
from tests.sim.test_unseen_merge import LITTLE_S, LONG_S, MARKED, SURVIVOR, UnseenMerge

TRIES = 20
"""The most schedules to run. About every second schedule shows the fault."""


async def merge_an_expired_partition(scene: UnseenMerge) -> None:
    """The child's owner is slow to flush, and the child's records expire before the merge."""
    await scene.resize(2)
    await scene.begin()
    key = scene.key(1, 2)
    await scene.deliver(key)
    assert await scene.until(lambda: scene.is_committed(MARKED, 1))
    async with scene._admin() as admin:
        assert await admin.delete_records({MARKED: -1}) == {MARKED: 1}
    scene.leader.flushes = trio.Event()
    scene.leader.stops_metadata()  # else a rebalance would revoke the child before the coordinator asks for a flush
    await scene.resize(1)
    value = scene.sends(key)
    await scene.produce(key, scene.layout, value=value)
    await scene.until(lambda: value in scene.delivered, LITTLE_S)
    assert scene.watch.tps() == [SURVIVOR, MARKED] or value in scene.delivered
    scene.leader.flushes.set()
    scene.leader.sees_metadata.set()
    assert await scene.until(lambda: value in scene.delivered)
    assert await scene.until(lambda: scene.watch.tps() == [SURVIVOR], LONG_S), scene.watch.unfinished()


def staged(seed: int = 1) -> list[str]:
    async def run() -> list[str]:
        async with trio.open_nursery() as nursery:
            cluster = SimCluster(nursery, seed)
            scene = UnseenMerge(cluster, nursery)
            try:
                await scene.start(1, replication_factor=1)
                await merge_an_expired_partition(scene)
                await scene.finish()
            finally:
                with trio.CancelScope(shield=True):
                    await cluster.end()
                nursery.cancel_scope.cancel()
        return [violation.check for violation in check_history(scene.recorder.events)]

    return run_deterministic(seed, partial(run))


def test_a_merge_of_an_expired_partition_ends_and_keeps_the_order() -> None:
    assert staged() == []


def test_a_check_fails_if_the_partition_is_removed_before_its_owner_has_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    an_empty_partition_is_removed_unflushed(monkeypatch)
    assert any("promise" in staged(seed) for seed in range(TRIES))
