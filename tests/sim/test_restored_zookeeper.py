"""If ZooKeeper's data are older than the logs, the partitions are refused by name, and no log changes."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import structlog
import trio

from anabranch.client.admin.admin import NewTopic
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp
from anabranch.zk_schemas.partition_state import PartitionLayout
from sim.scheduler import run_deterministic
from sim.zk_tree import ZnodeTree
from tests.history.checks import check_history
from tests.sim.faults import BROKERS, CONTROLLERS
from tests.sim.recording import stored_values
from tests.sim.scenes import TOPIC, Scene
from tests.sim.sim_cluster import SimCluster

SEEDS = range(5)
OLD, NEW = PartitionLayout(1, 0), PartitionLayout(2, 1)
ELECTIONS = 4
LITTLE_S = 3.0
EVENT = "replica.newer_than_zookeeper"
pytestmark = pytest.mark.parametrize("seed", SEEDS)


def run(scenario: Callable[[Scene], Awaitable[None]], seed: int) -> list[dict[str, Any]]:
    """Run a scenario. Returns its log events."""

    async def stage() -> None:
        async with trio.open_nursery() as nursery:
            cluster = SimCluster(nursery, seed)
            scene = Scene(cluster, nursery)
            try:
                await scene.start(1)
                await scenario(scene)
            finally:
                with trio.CancelScope(shield=True):
                    scene.stop()
                    await cluster.end()

    with structlog.testing.capture_logs() as logs:
        run_deterministic(seed, stage)
    return [dict(entry) for entry in logs]


def snapshot(scene: Scene) -> ZnodeTree:
    """A backup of ZooKeeper. The sessions in a real backup end soon after it is restored."""
    tree = copy.deepcopy(scene.cluster.zk.tree)
    for process in scene.cluster.running.values():
        for path in tree.ephemerals(process.session.session_id):
            tree.multi([DeleteOp(path)], 0)
    return tree


async def kill_all(scene: Scene) -> None:
    for machine in sorted(scene.cluster.running):
        await scene.cluster.kill(machine)


async def start_all(scene: Scene, tree: ZnodeTree) -> None:
    """Start all processes, in an order that the seed decides, with ZooKeeper's data from ``tree``."""
    scene.cluster.zk.tree = tree
    machines = [f"controller{id}" for id in CONTROLLERS] + [f"broker{id}" for id in BROKERS]
    scene.cluster.rng.shuffle(machines)
    for machine in machines:
        if machine.startswith("controller"):
            await scene.cluster.start_controller(int(machine.removeprefix("controller")))
        else:
            await scene.restart(machine)


def values(scene: Scene, partition: int) -> dict[str, set[str]]:
    """The records of each broker's log of a partition."""
    tp = TopicPartition(TOPIC, partition)
    return {name: stored_values(disk, tp) for name, disk in sorted(scene.cluster.disks.items())}


async def expect_refusal(scene: Scene, partition: int, expected: str) -> None:
    """Partition ``partition`` is set aside with the sentence, has no leader, and the topic is not resized."""

    def refused() -> str:
        state = scene.watch.state(partition)
        return state.newer_log if state is not None and state.leader < 0 else ""

    assert await scene.until(lambda: bool(refused()))
    assert expected in refused()
    refusal = await scene.ask_for(scene.layout.undeleted_partition_count + 1)
    assert "POLICY_VIOLATION" in refusal and expected in refusal and "older than the log" in refusal
    await trio.sleep(20)  # pause: nothing may change meanwhile; virtual time
    await scene.cluster.kill(await scene.cluster.active_controller())
    await scene.cluster.active_controller()
    await trio.sleep(20)  # pause: as above, under another controller
    assert expected in refused()
    error, _ = await scene.produce(scene.key(partition, partition + 1), scene.layout, limit_s=LITTLE_S)
    assert error == "no leader"


def test_a_topic_that_was_split_after_the_backup_is_refused(seed: int) -> None:
    async def scenario(scene: Scene) -> None:
        key = scene.key(1, 2)
        await scene.produce(key, OLD)
        older = snapshot(scene)
        await scene.resize(2)
        for _ in range(3):
            await scene.produce(key, NEW)
        await kill_all(scene)
        before = [values(scene, p) for p in range(2)]
        assert len(set.union(*before[1].values())) == 3
        await start_all(scene, older)
        await expect_refusal(scene, 0, "layout version 1, and ZooKeeper has 0")
        assert [values(scene, p) for p in range(2)] == before

    logs = [entry for entry in run(scenario, seed) if entry["event"] == EVENT]
    named = [(entry["reason"].split()[1], entry["partition"]) for entry in logs]
    assert sorted(set(named)) == [(str(broker), f"{TOPIC}-0") for broker in BROKERS]
    assert len(named) == len(BROKERS)  # once each


def test_a_partition_with_later_leader_epochs_than_the_backup_is_refused(seed: int) -> None:
    async def scenario(scene: Scene) -> None:
        key = scene.key(0, 1)
        await scene.produce(key, OLD)
        older = snapshot(scene)
        for _ in range(ELECTIONS):
            leader = scene.leader(0)
            await scene.cluster.kill(leader)
            assert await scene.until(lambda leader=leader: scene.leader_or_none(0) not in ("", leader))
            await scene.produce(key, OLD)
            await scene.restart(leader)
            assert await scene.until(lambda: len(scene.in_sync(0)) == len(BROKERS))
        await kill_all(scene)
        before = values(scene, 0)
        await start_all(scene, older)
        await expect_refusal(scene, 0, "leader epoch ")
        assert values(scene, 0) == before

    run(scenario, seed)


def test_the_logs_of_a_topic_that_the_backup_lacks_stay_also_when_the_topic_is_created(seed: int) -> None:
    async def scenario(scene: Scene) -> None:
        key = scene.key(0, 1)
        for _ in range(3):
            await scene.produce(key, OLD)
        older = snapshot(scene)
        below = [path for path in sorted(older._nodes, reverse=True) if path.startswith(f"/brokers/topics/{TOPIC}")]
        older.multi([DeleteOp(path) for path in below], 0)
        await kill_all(scene)
        before = values(scene, 0)
        await start_all(scene, older)
        await trio.sleep(20)  # pause: longer than a log that no znode names would take to be deleted; virtual time
        assert values(scene, 0) == before
        async with scene._admin() as admin:
            with suppress(KafkaError):  # no leader answers in time
                await admin.create_topics([NewTopic(TOPIC, 1, 3)])
        await expect_refusal(scene, 0, "incarnation")
        assert values(scene, 0) == before

    assert "replica.stray" in [entry["event"] for entry in run(scenario, seed)]


def test_the_data_of_before_the_restore_end_the_refusal(seed: int) -> None:
    async def scenario(scene: Scene) -> None:
        key = scene.key(1, 2)
        await scene.produce(key, OLD)
        older = snapshot(scene)
        await scene.resize(2)
        await scene.produce(key, NEW)
        newest = snapshot(scene)
        await kill_all(scene)
        await start_all(scene, older)
        assert await scene.until(lambda: bool(scene.state(0).newer_log))
        await kill_all(scene)
        await start_all(scene, newest)
        assert await scene.until(lambda: scene.has_layout(0) and scene.has_layout(1))
        await scene.produce(key, NEW)
        await scene.finish()
        assert [violation.check for violation in check_history(scene.recorder.events)] == []

    run(partial(scenario), seed)
