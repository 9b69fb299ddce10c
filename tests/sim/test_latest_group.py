"""A new group with ``auto_offset_reset="latest"`` reads no records from before its start, also after a split."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio

from anabranch.client import Consumer
from sim.scheduler import run_deterministic
from tests.sim.group_scenarios import CHILD, PARENT, GroupScene
from tests.sim.scenes import TOPIC
from tests.sim.sim_cluster import SimCluster

NEWCOMERS = "newcomers"
Written = tuple[list[str], list[str], list[str]]
"""The records written before the group's start, the records written later, and the records that its members read."""


class Newcomer:
    """A member that does not commit by itself, and that can crash."""

    def __init__(self, scene: GroupScene, name: str) -> None:
        self._scene = scene
        self._name = name
        self._power = trio.CancelScope()
        self.consumer: Consumer | None = None
        self.read: list[str] = []

    @property
    def is_settled(self) -> bool:
        """Whether the member has positions in its assigned partitions."""
        return self.consumer is not None and len(self.consumer._subscription.positions()) > 0

    def has(self, *partitions: Any) -> bool:
        return self.consumer is not None and self.consumer.assignment() == set(partitions) and self.is_settled

    async def run(self) -> None:
        with self._power:
            async with Consumer(
                bootstrap_servers=self._scene.cluster.bootstrap_servers,
                env=self._scene.cluster.client_env(self._name),
                client_id=self._name,
                group_id=NEWCOMERS,
                auto_offset_reset="latest",
                enable_auto_commit=False,
                session_timeout_ms=8000,
                heartbeat_interval_ms=500,
                metadata_max_age_ms=2000,
            ) as self.consumer:
                self.consumer.subscribe([TOPIC])
                while True:
                    for records in (await self.consumer.getmany(timeout_ms=50)).values():
                        self.read += [(record.value or b"").decode() for record in records]

    def crash(self) -> None:
        self._scene.cluster.fabric.kill(self._name)
        self._power.cancel()


async def crash_before_the_first_commit(scene: GroupScene, tasks: trio.Nursery) -> Written:
    """A member crashes before its first commit. Its partition goes to a member with commits, then to a new member."""
    await scene.resize(2)
    keys = scene.key(0, 2), scene.key(1, 2)
    before = [await scene.write(key) for key in keys * 3]
    stays, crashes = Newcomer(scene, "a"), Newcomer(scene, "b")
    tasks.start_soon(stays.run)
    tasks.start_soon(crashes.run)
    assert await scene.until(lambda: stays.has(PARENT) and crashes.has(CHILD))
    since = [await scene.write(keys[0])]
    assert await scene.until(lambda: stays.read == since)
    assert stays.consumer is not None
    await stays.consumer.commit()
    crashes.crash()
    assert await scene.until(lambda: stays.has(PARENT, CHILD))
    since.append(await scene.write(keys[1]))
    assert await scene.until(lambda: since[-1] in stays.read)
    again = Newcomer(scene, "b2")
    tasks.start_soon(again.run)
    assert await scene.until(lambda: stays.has(PARENT) and again.has(CHILD))
    since.append(await scene.write(keys[1]))
    assert await scene.until(lambda: since[-1] in again.read)
    return before, since, stays.read + again.read


async def _stage(seed: int) -> Written:
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, seed)
        scene = GroupScene(cluster, nursery)
        try:
            await scene.start(1, replication_factor=1)
            return await crash_before_the_first_commit(scene, nursery)
        finally:
            with trio.CancelScope(shield=True):
                scene.stop()
                await cluster.end()
            nursery.cancel_scope.cancel()


def test_after_a_crash_before_the_first_commit_a_group_with_latest_reads_no_partition_from_its_start() -> None:
    """The other member has committed, so the group seems to be older than the split."""
    before, since, read = run_deterministic(0, partial(_stage, 0))
    assert set(read) >= set(since)
    assert not set(read) & set(before)
