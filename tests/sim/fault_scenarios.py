"""Scenarios of resizes during faults of networks, disks and ZooKeeper. The scenarios do not check the result.

``test_fault_scenarios.py`` names a rule that each scenario needs.
"""

from __future__ import annotations

from functools import partial

import trio

from anabranch.zk_schemas.partition_state import PartitionLayout
from tests.sim.faults import BROKERS, CONTROLLERS
from tests.sim.resize_scenarios import LITTLE_S, begin
from tests.sim.scenes import TOPIC, Scene

CUT_S = 10.0
"""Longer than a session without a connection lasts."""
OLD, NEW = PartitionLayout(1, 0), PartitionLayout(2, 1)


async def write_both_sides(scene: Scene, leader: str) -> None:
    """Write the key's records by the new layout, and one more by the old layout to the leader of before the split."""
    key = scene.key(1, 2)
    await scene.produce(key, NEW, limit_s=LITTLE_S)
    await scene.produce(key, OLD, limit_s=LITTLE_S, acks=1, broker=leader)


async def split_while_a_leader_is_cut_from_the_controllers(scene: Scene) -> None:
    """The loser's leader gets no request of a controller, and no controller gets one of it. Clients reach it."""
    key, leader = scene.key(1, 2), scene.leader(0)
    await scene.produce(key, OLD)
    for controller in CONTROLLERS:
        scene.cluster.fabric.cut(f"controller{controller}", leader)
        scene.cluster.fabric.cut(leader, f"controller{controller}")
    await begin(scene, 2)
    await write_both_sides(scene, leader)
    await trio.sleep(CUT_S)  # pause: the broker's own requests fail meanwhile; virtual time
    scene.cluster.fabric.heal_all()
    assert await scene.until(lambda: scene.has_layout(1))
    await scene.produce(key, NEW)


async def split_while_a_leader_is_cut_from_zookeeper(scene: Scene) -> None:
    """The loser's leader loses ZooKeeper, and its session expires. Controllers, brokers and clients reach it."""
    key, leader = scene.key(1, 2), scene.leader(0)
    await scene.produce(key, OLD)
    session = scene.cluster.running[leader].session
    session.disconnect()
    session.freeze()
    await begin(scene, 2)
    await write_both_sides(scene, leader)
    assert await scene.until(lambda: scene.leader_or_none(0) not in ("", leader))
    for layout in (NEW, OLD):  # the broker has one of them
        await scene.produce(scene.key(0, 2), layout, limit_s=LITTLE_S, broker=leader)
    session.thaw()
    scene.cluster.reconnect(leader)
    assert await scene.until(lambda: scene.has_layout(1))
    await scene.produce(key, NEW)


async def split_while_a_leader_is_isolated(scene: Scene) -> None:
    """The loser's leader is cut from ZooKeeper, controllers and brokers. Only clients reach it, and write to it."""
    key, leader = scene.key(1, 2), scene.leader(0)
    await scene.produce(key, OLD)
    others = [f"broker{broker}" for broker in BROKERS if f"broker{broker}" != leader]
    for machine in (*others, *(f"controller{controller}" for controller in CONTROLLERS)):
        scene.cluster.fabric.cut(machine, leader)
        scene.cluster.fabric.cut(leader, machine)
    scene.cluster.running[leader].session.freeze()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(scene.produce, key, OLD, limit_s=CUT_S, broker=leader))
        await begin(scene, 2)
        assert await scene.until(lambda: scene.leader_or_none(0) not in ("", leader))
        assert await scene.until(lambda: scene.has_layout(1))
    await scene.produce(key, NEW)
    scene.cluster.running[leader].session.thaw()
    scene.cluster.fabric.heal_all()
    await scene.produce(key, NEW)


async def lose_the_only_replica_of_a_loser(scene: Scene) -> None:
    """The loser's leader, which has its only replica, is lost with its disk before it has answered the split.

    The broker comes back with an empty disk. The records of before are lost, so none of them was acknowledged by all.
    """
    key, leader = scene.key(1, 2), scene.leader(0)
    for _ in range(3):
        await scene.produce(key, OLD, acks=1)
    scene.cut_from_controllers(leader)
    await begin(scene, 2)
    await scene.cluster.crash(leader)
    del scene.cluster.disks[leader]
    assert await scene.until(lambda: scene.leader_or_none(0) == "")
    await scene.produce(key, NEW, limit_s=LITTLE_S)
    scene.cluster.fabric.heal_all()
    await scene.restart(leader)
    await scene.until(lambda: scene.has_layout(1), CUT_S)
    await scene.produce(key, NEW)


async def tear_the_last_batches(scene: Scene) -> None:
    """All machines lose power during a split, while batches are written: the last batch of each log is torn."""
    key = scene.key(1, 2)
    for _ in range(3):
        await scene.produce(key, OLD)
    await begin(scene, 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(scene.produce, key, NEW, limit_s=LITTLE_S))
        nursery.start_soon(partial(scene.produce, scene.key(0, 2), NEW, limit_s=LITTLE_S))
        await trio.sleep(0.02)  # pause: a batch is on its way; virtual time
        for broker in BROKERS:
            await scene.cluster.crash(f"broker{broker}")
            tear(scene, f"broker{broker}")
    for broker in BROKERS:
        await scene.restart(f"broker{broker}")
    assert await scene.until(lambda: scene.has_layout(1))
    for _ in range(3):
        await scene.produce(key, NEW)


def tear(scene: Scene, broker: str) -> None:
    """Write the first bytes of a further batch behind each log, whose other bytes did not get to the disk."""
    for path, inode in scene.cluster.disks[broker].files.items():
        if f"/{TOPIC}-" in path and path.endswith(".log") and inode.content:
            length = 12 + int.from_bytes(inode.content[8:12], "big")
            batch = bytearray(inode.content[:length])
            last = last_offset(bytes(inode.content))
            batch[0:8] = (last + 1).to_bytes(8, "big")
            inode.content += batch[: length - 5] + bytes(5)
            inode.synced(len(inode.content))


def last_offset(content: bytes) -> int:
    """The offset of the last record of a segment."""
    position, found = 0, -1
    while position + 61 <= len(content):
        size = int.from_bytes(content[position + 8 : position + 12], "big")
        if size <= 0 or position + 12 + size > len(content):
            break
        base = int.from_bytes(content[position : position + 8], "big")
        found = base + int.from_bytes(content[position + 23 : position + 27], "big")
        position += 12 + size
    return found
