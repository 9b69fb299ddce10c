"""Scenarios for the rules of ordered resize that matter only after a fault. The scenarios do not check the result.

The faults are a leader that gets no requests, a lost response, a controller that dies between two writes, an unclean
election, and a group that starts late. ``test_resize_scenarios.py`` names the rule of each scenario.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any

import trio

from anabranch.client import Producer
from anabranch.client.errors import KafkaError
from anabranch.zk_schemas.partition_state import PartitionLayout
from tests.history.events import Acked, NotWritten, Sent
from tests.sim.faults import BROKERS, CONTROLLERS
from tests.sim.recording import now_ms
from tests.sim.scenes import LIMIT_S, TOPIC, Scene

LITTLE_S = 3.0
LONG = 60

# ---------------------------------------------------------------- one resize, and a group that starts after it


async def split_with_much_to_read(scene: Scene) -> None:
    """Partition 0 has many unread records of a key, and its child has one record, the key's newest."""
    key = scene.key(1, 2)
    for _ in range(LONG):
        await scene.produce(key, PartitionLayout(1, 0))
    await scene.resize(2)
    await scene.produce(key, scene.layout)


async def merge_with_much_to_read(scene: Scene) -> None:
    """The marked partition has many records of the key, and the survivor has one newer record."""
    await scene.resize(2)
    key = scene.key(1, 2)
    for _ in range(LONG):
        await scene.produce(key, scene.layout)
    await scene.resize(1)
    await scene.produce(key, scene.layout)


async def write_by_the_previous_layout(scene: Scene) -> None:
    """A producer that does not know of the split yet writes with the old layout."""
    key = scene.key(1, 2)
    await scene.resize(2)
    await scene.produce(key, PartitionLayout(1, 0))


async def write_to_a_marked_partition(scene: Scene) -> None:
    """A producer that does not know of the merge yet writes to a closed partition (hole 6)."""
    await scene.resize(2)
    key = scene.key(1, 2)
    await scene.produce(key, scene.layout)
    await scene.resize(1)
    await scene.produce(key, PartitionLayout(2, 1))


async def write_late_by_an_earlier_layout_of_the_same_count(scene: Scene) -> None:
    """1 -> 2 -> 1: a record of the first layout arrives after a record of the third layout (hole 10)."""
    key, first = scene.key(1, 2), PartitionLayout(1, 0)
    late = scene.sends(key)
    await scene.resize(2)
    await scene.resize(1)
    await scene.produce(key, PartitionLayout(1, 2))
    await scene.produce(key, first, value=late)


async def merge_two_while_one_gets_no_requests(scene: Scene) -> None:
    """Partition 1 still accepts records when 0's broker closes partition 3: 0 must not gain 1's keys yet (hole 4)."""
    await scene.resize(4)
    key, old, new, gone = scene.key(1, 4), PartitionLayout(4, 1), PartitionLayout(1, 2), scene.leader(1)
    assert scene.leader(3) == scene.leader(0) != gone
    await scene.produce(key, old)
    scene.cut_from_controllers(gone)
    await scene.ask_for(1)
    await scene.until(lambda: scene.state(3).layout == new)
    await trio.sleep(LITTLE_S)  # pause: UpdateMetadata arrives (virtual time)
    await scene.produce(key, new, limit_s=LITTLE_S)
    await scene.produce(key, old, limit_s=LITTLE_S)


# ---------------------------------------------------------------- resizes during faults of controllers and leaders


async def grow_by_several_at_once(scene: Scene) -> None:
    """1 -> 4: partition 3's parent, 1, is new as well, so the keys of 3 come from partition 0 (hole 1)."""
    key = scene.key(3, 4)
    await scene.produce(key, PartitionLayout(1, 0))
    await scene.ask_for(4)
    await scene.produce(key, PartitionLayout(4, 1), limit_s=LITTLE_S)


async def die_when_the_goal_is_written(scene: Scene, leader: str) -> str:
    """Request the split, and kill controller and leader once the new count is written. Returns the controller."""
    controller = await scene.cluster.active_controller()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask_for, 2)
        while scene.layout.undeleted_partition_count != 2:
            await trio.sleep(0.0001)  # polls: virtual time
        await scene.cluster.kill(controller)
        await scene.cluster.kill(leader)
    return controller


async def grow_while_controller_and_leader_die(scene: Scene) -> None:
    """Controller and leader die after the goal is written. The election raises the loser's epoch (hole 2)."""
    key, old, new, leader = scene.key(1, 2), PartitionLayout(1, 0), PartitionLayout(2, 1), scene.leader(0)
    await scene.produce(key, old)
    controller = await die_when_the_goal_is_written(scene, leader)
    await scene.cluster.start_controller(int(controller.removeprefix("controller")))
    for broker in BROKERS:  # the new leader's responses are slow enough to write to it meanwhile
        for to in CONTROLLERS:
            scene.cluster.fabric.slow_down(f"broker{broker}", f"controller{to}", LITTLE_S)
    assert await scene.until(lambda: scene.leader_or_none(0) not in ("", leader))
    for _ in range(LONG):
        await scene.produce(key, old, limit_s=LITTLE_S)
    assert await scene.until(lambda: scene.has_layout(1))
    await scene.produce(key, new)
    await scene.restart(leader)


async def grow_while_only_an_election_gets_through(scene: Scene) -> None:
    """Controller and leader die. The next controller loses ZooKeeper between the election and the bump.

    So the loser takes records in two leader epochs under the old layout.
    """
    key, old, new, leader = scene.key(1, 2), PartitionLayout(1, 0), PartitionLayout(2, 1), scene.leader(0)
    await scene.produce(key, old)
    controller = await die_when_the_goal_is_written(scene, leader)
    assert await scene.until(lambda: scene.leader_or_none(0) not in ("", leader), interval_s=0.001)
    error, _ = await scene.produce(key, old, limit_s=LITTLE_S, insist=True)
    assert error == "", "the new leader takes no record before the bump"
    scene.cluster.zk.stop()
    for _ in range(LONG):
        await scene.produce(key, old, limit_s=LITTLE_S)
    scene.cluster.zk.start()
    await scene.cluster.start_controller(int(controller.removeprefix("controller")))
    assert await scene.until(lambda: scene.has_layout(1))
    await scene.produce(key, new)
    await scene.restart(leader)


async def begin(scene: Scene, count: int) -> None:
    """Request a count until the goal is written. One of the requests may go to a broker that is cut off."""
    with trio.fail_after(LIMIT_S):
        while scene.layout.undeleted_partition_count != count:
            await scene.ask_for(count)
    scene.expect(count)


async def queue(scene: Scene, count: int) -> None:
    """Request a count until it is queued."""
    with trio.fail_after(LIMIT_S):
        while scene.znode.wanted != count:
            await scene.ask_for(count)
    scene.expect(count)


async def grow_again_while_a_grow_is_unfinished(scene: Scene) -> None:
    """The next grow is requested before the loser's leader has responded. The next grow's gainers have other losers."""
    scene.cut_from_controllers(scene.leader(0))
    await begin(scene, 2)
    await scene.ask_for(4)
    scene.cluster.fabric.heal_all()
    await scene.until(lambda: not scene.watch.unfinished())
    # A broker that was cut off may deliver its request for 2 only now. Then 2 is the latest requested count.
    await begin(scene, 4)


async def cancel_a_grow(scene: Scene) -> None:
    """A grow is cancelled before any partition has gained keys, so the grow has no effect."""
    key, old = scene.key(1, 2), PartitionLayout(1, 0)
    await scene.produce(key, old)
    scene.cut_from_controllers(scene.leader(0))
    await begin(scene, 2)
    await begin(scene, 1)
    scene.cluster.fabric.heal_all()
    assert await scene.until(lambda: not scene.watch.unfinished())
    assert len(scene.znode.partitions) == 1
    await scene.produce(key, scene.layout)


async def cancel_a_grow_after_a_partition_has_gained(scene: Scene) -> None:
    """Partition 2 has gained its keys, partition 3 waits for 1: the grow must be complete before a shrink begins."""
    await scene.resize(2)
    key, old, new, cut = scene.key(2, 4), PartitionLayout(2, 1), PartitionLayout(4, 2), scene.leader(1)
    assert scene.leader(0) != cut
    await scene.produce(key, old)
    scene.cut_from_controllers(cut)
    await begin(scene, 4)
    assert await scene.until(lambda: scene.has_layout(2))
    assert scene.leader(2) != cut
    for _ in range(LONG):
        await scene.produce(key, new)
    await scene.ask_for(2)
    scene.expect(2)
    await scene.until(lambda: scene.znode.wanted is None, LITTLE_S)
    await scene.produce(key, PartitionLayout(2, 3), limit_s=LITTLE_S)


# ---------------------------------------------------------------- closed partitions that take records again


async def grow_while_a_merged_partition_is_unread(scene: Scene) -> None:
    """1 -> 2 -> 1 -> 2: partition 1 is closed and revived. Meanwhile many records of the key go to partition 0."""
    await scene.resize(2)
    key = scene.key(1, 2)
    await scene.produce(key, scene.layout)
    await scene.resize(1)
    for _ in range(LONG):
        await scene.produce(key, scene.layout)
    await scene.resize(2)
    await scene.produce(key, scene.layout)


async def merge_a_revived_partition(scene: Scene) -> None:
    """1 -> 2 -> 1 -> 2 -> 1: partition 1 is in use twice, and partition 0's last record waits for both uses."""
    await scene.resize(2)
    key = scene.key(1, 2)
    for _ in range(LONG):
        await scene.produce(key, scene.layout)
    await scene.resize(1)
    await scene.resize(2)
    for _ in range(LONG):
        await scene.produce(key, scene.layout)
    await scene.resize(1)
    await scene.produce(key, scene.layout)


async def queue_a_resize(scene: Scene) -> None:
    """A resize that is requested during another resize begins after it. Of several requests, the last one counts."""
    key, old = scene.key(1, 2), PartitionLayout(1, 0)
    await scene.produce(key, old)
    scene.cut_from_controllers(scene.leader(0))
    await begin(scene, 2)
    await queue(scene, 4)
    await queue(scene, 3)
    scene.cluster.fabric.heal_all()
    assert await scene.until(lambda: not scene.watch.unfinished())
    assert scene.layout == PartitionLayout(3, 2)
    await scene.produce(key, scene.layout)


async def elect_a_survivor_while_a_marked_partition_gets_no_requests(scene: Scene) -> None:
    """An election in the middle of a merge: the survivor's new leader must not have the merge's layout yet (hole 3)."""
    await scene.resize(2)
    key, old, new = scene.key(1, 2), PartitionLayout(2, 1), PartitionLayout(1, 2)
    survivor, gone = scene.leader(0), scene.leader(1)
    assert survivor != gone
    await scene.produce(key, old)
    scene.cut_from_controllers(gone)
    await scene.ask_for(1)
    await scene.cluster.kill(survivor)
    assert await scene.until(lambda: scene.leader_or_none(0) not in ("", survivor))
    await scene.produce(key, new, limit_s=LITTLE_S)
    await scene.produce(key, old, limit_s=LITTLE_S, broker=gone)
    await scene.restart(survivor)


async def merge_twice_into_one(scene: Scene) -> None:
    """Partition 2 is merged into 0, then 1 into 0. After that, records of the keys of 2 still wait for partition 2."""
    await scene.resize(3)
    key = scene.key(2, 3)
    for _ in range(LONG):
        await scene.produce(key, scene.layout)
    await scene.resize(2)
    await scene.produce(key, scene.layout)
    await scene.resize(1)


async def grow_while_a_loser_is_given_up(scene: Scene) -> None:
    """The loser's broker has lost its session without noticing, and continues to accept records (hole 8)."""
    key, old, new = scene.key(1, 2), PartitionLayout(1, 0), PartitionLayout(2, 1)
    given_up = scene.leader(0)
    await scene.produce(key, old)
    scene.cut_from_controllers(given_up)
    await scene.ask_for(2)
    await scene.until(lambda: scene.layout == new)
    scene.cluster.running[given_up].session.freeze()
    await scene.until(lambda: scene.leader_or_none(0) == "")
    await scene.until(lambda: scene.has_layout(1), LITTLE_S)
    await scene.produce(key, new, limit_s=LITTLE_S)
    await scene.produce(key, old, limit_s=LITTLE_S, broker=given_up)
    scene.cluster.running[given_up].session.thaw()


async def merge_while_a_fetch_is_parked(scene: Scene) -> None:
    """A fetch that was parked before the merge gets the survivor's first record after the merge (hole 16)."""
    await scene.resize(2)
    key, other, gone = scene.key(1, 2), scene.key(0, 2), scene.leader(1)
    assert gone != scene.leader(0)
    scene.read()
    await scene.produce(other, scene.layout)
    assert await scene.until(lambda: scene.is_delivered("scenario:1"))
    for member in ("one", "two"):
        scene.cluster.fabric.cut(gone, member)
    await scene.produce(key, scene.layout)
    await scene.ask_for(1)
    await scene.produce(key, PartitionLayout(1, 2), insist=True)
    await trio.sleep(LITTLE_S)  # pause: time to deliver the record that has to wait; virtual time


# ---------------------------------------------------------------- ends and removals


async def lose_records_of_a_closed_partition(scene: Scene) -> None:
    """The last in-sync replica is lost after the merge, and a replica that lags is elected (hole 15)."""
    await scene.configure(unclean_leader_election_enable="true")
    await scene.resize(2)
    key, leader = scene.key(1, 2), scene.leader(1)
    await scene.produce(key, scene.layout)
    others = [f"broker{broker}" for broker in BROKERS if f"broker{broker}" != leader]
    for broker in others:
        await scene.cluster.kill(broker)
    assert await scene.until(lambda: scene.in_sync(1) == [leader])
    for _ in range(3):
        await scene.produce(key, PartitionLayout(2, 1), acks=1)
    await scene.resize(1)
    await scene.cluster.crash(leader)
    for broker in others:
        await scene.restart(broker)
    assert await scene.until(lambda: scene.leader_or_none(1) in others)
    await scene.restart(leader)
    await scene.produce(key, scene.layout)


async def depose(scene: Scene, partition: int) -> str:
    """Make the last replica leader, cut it off, and let the first replica be elected. Returns the last replica.

    The deposed leader does not know of the election, and is still in the ISR.
    """
    *_, last = names = [f"broker{broker}" for broker in scene.znode.partitions[partition]]
    others = [name for name in names if name != last]
    for broker in others:
        await scene.cluster.kill(broker)
    assert await scene.until(lambda: scene.leader_or_none(partition) == last)
    for broker in others:
        await scene.restart(broker)
    assert await scene.until(lambda: scene.in_sync(partition) == sorted(names))
    await trio.sleep(LITTLE_S)  # pause: followers learn the high watermark (virtual time)
    scene.cut_from_controllers(last)
    for broker in others:
        scene.cluster.fabric.cut(last, broker)
    await scene.elect_preferred(partition)
    return last


async def elect_again(scene: Scene, partition: int, deposed: str) -> None:
    """Let the deposed broker be elected again: it is in the ISR, and the other brokers die before it fetches."""
    assert deposed in scene.in_sync(partition)
    others = [broker for broker in scene.in_sync(partition) if broker != deposed]
    for broker in others:
        await scene.cluster.kill(broker)
    scene.cluster.fabric.heal_all()
    assert await scene.until(lambda: scene.leader_or_none(partition) == deposed)
    for broker in others:
        await scene.restart(broker)


async def split_before_all_have_followed(scene: Scene) -> None:
    """A leader does not know that it is deposed, appends a record, and leads again once the child is read (hole 30).

    Each partition has two replicas, so the child and the group's offsets may be on brokers without a fault.
    """
    key, old = scene.key(2, 3), scene.layout
    deposed = await depose(scene, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(scene.produce, key, old, broker=deposed, limit_s=LIMIT_S))
        assert await scene.until(lambda: scene.has(deposed, 0, "scenario:1"))
        scene.read()
        await scene.resize(3)
        await scene.produce(key, scene.layout)
        await scene.until(lambda: scene.is_delivered("scenario:2"), 5 * LITTLE_S)
        await elect_again(scene, 0, deposed)


async def merge_before_all_have_followed(scene: Scene) -> None:
    """A deposed leader appends a record to a closed partition, behind the reported end of the epoch (hole 30)."""
    await scene.resize(2)
    key, old = scene.key(1, 2), PartitionLayout(2, 1)
    await scene.produce(key, old)
    deposed = await depose(scene, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(scene.produce, key, old, broker=deposed, limit_s=LIMIT_S))
        assert await scene.until(lambda: scene.has(deposed, 1, "scenario:2"))
        await scene.ask_for(1)
        await scene.until(lambda: scene.state(1).layout == PartitionLayout(1, 2), LITTLE_S)
        await elect_again(scene, 1, deposed)


async def die_while_a_partition_is_removed(scene: Scene) -> None:
    """The controller dies right after the write that removes a partition from the assignment (hole 11)."""
    await scene.resize(2)
    key = scene.key(1, 2)
    await scene.produce(key, scene.layout)
    await scene.ask_for(1)
    scene.read()
    assert await scene.until(lambda: len(scene.znode.partitions) == 1)
    controller = await scene.cluster.active_controller()
    await scene.cluster.kill(controller)
    assert await scene.until(lambda: controller not in scene.cluster.running)
    await scene.cluster.start_controller(int(controller.removeprefix("controller")))
    await scene.ask_a_new_controller_for(2)
    await scene.produce(key, PartitionLayout(2, 3), limit_s=LITTLE_S)


# ---------------------------------------------------------------- batches without a known outcome


def left_producer(scene: Scene, **config: int) -> Producer:
    """A producer of Anabranch's client. It soon repeats a request that got no response."""
    return Producer(
        bootstrap_servers=scene.cluster.bootstrap_servers,
        env=scene.cluster.client_env("left"),
        request_timeout_ms=1000,
        **config,
    )


async def send(scene: Scene, producer: Producer, key: str, value: str) -> Any:
    """Send a record with Anabranch's client. Returns the handle; ``outcome`` records its result."""
    scene.recorder.add(Sent(now_ms(), "left", TOPIC, key, value))
    return await producer.send(TOPIC, key=key.encode(), value=value.encode())


async def outcome(scene: Scene, handle: Awaitable[Any], value: str) -> None:
    try:
        metadata = await handle
    except KafkaError as error:
        scene.recorder.add(NotWritten(now_ms(), "left", value, "unknown", str(error)))
    else:
        scene.recorder.add(Acked(now_ms(), "left", metadata.topic_partition, metadata.offset, value))


async def remove_a_partition_with_a_batch_unresolved(scene: Scene) -> None:
    """A batch is written, its response is lost, and the partition is removed before the producer retries (hole 14)."""
    await scene.resize(2)
    key, leader = scene.key(1, 2), scene.leader(1)
    async with left_producer(scene) as producer:
        await outcome(scene, await send(scene, producer, key, "left:1"), "left:1")
        scene.cluster.fabric.cut(leader, "left")
        handle = await send(scene, producer, key, "left:2")
        scene.read()
        assert await scene.until(lambda: scene.is_delivered("left:2"))
        await scene.resize(1)
        assert await scene.until(lambda: not scene.watch.unfinished())
        scene.cluster.fabric.heal(leader, "left")
        await outcome(scene, handle, "left:2")


async def split_a_partition_with_a_batch_unresolved(scene: Scene) -> None:
    """The key's next record belongs in a new partition. Only the rule makes it wait for the unacknowledged batch."""
    key, leader = scene.key(1, 2), scene.leader(0)
    async with left_producer(scene, metadata_max_age_ms=500) as producer:
        await outcome(scene, await send(scene, producer, key, "left:1"), "left:1")
        scene.cluster.fabric.cut("left", leader)
        second = await send(scene, producer, key, "left:2")
        await scene.resize(2)
        assert scene.leader(1) != leader
        await trio.sleep(LITTLE_S)  # pause: the producer learns of the split (virtual time)
        third = await send(scene, producer, key, "left:3")
        await trio.sleep(LITTLE_S)  # pause: the record that has to wait is written (virtual time)
        scene.cluster.fabric.heal("left", leader)
        await outcome(scene, second, "left:2")
        await outcome(scene, third, "left:3")


async def refuse_before_all_have_followed(scene: Scene) -> None:
    """The new leader refuses a batch that the deposed leader has, and the deposed leader leads again (hole 30)."""
    key = scene.key(1, 2)
    deposed = await depose(scene, 0)
    others = [broker for broker in scene.in_sync(0) if broker != deposed]
    for broker in others:
        scene.cluster.fabric.cut("left", broker)
    async with left_producer(scene, metadata_max_age_ms=500) as producer:
        handle = await send(scene, producer, key, "left:1")
        assert await scene.until(lambda: scene.has(deposed, 0, "left:1"))
        for broker in others:
            scene.cluster.fabric.heal("left", broker)
        scene.cluster.fabric.cut("left", deposed)
        await scene.resize(2)
        await trio.sleep(LITTLE_S)  # pause: the producer places its batch by the split (virtual time)
        await elect_again(scene, 0, deposed)
        await outcome(scene, handle, "left:1")


# ---------------------------------------------------------------- a partition created again


async def create_a_partition_again(scene: Scene) -> None:
    """The group's commits for the old partition must not skip records of the new partition (hole 20)."""
    await scene.resize(2)
    key = scene.key(1, 2)
    for _ in range(5):
        await scene.produce(key, scene.layout)
    scene.read()
    await scene.resize(1)
    assert await scene.until(lambda: not scene.watch.unfinished())
    for broker in BROKERS:  # the group starts when its old offset has a record
        for member in ("one", "two"):
            scene.cluster.fabric.cut(member, f"broker{broker}")
    await scene.resize(2)
    for _ in range(20):
        await scene.produce(key, scene.layout)
