"""More rules of ordered resize, each with a play that needs it: the rule holds, or a check says what broke without it.

Those of the models' counterexamples that take several faults at once: a leader that hears nothing, a lost answer, a
controller that dies between two writes, an unclean election.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio

from broker.handlers.fetch_read import FetchRead
from client import Producer
from client.errors import KafkaError
from controller import request_batch
from controller.resize import ends, plan, removal
from controller.store import GuardedStore
from protocol.key_placement import parent
from runtime.env import DeleteOp
from tests.history.events import Acked, NotWritten, Sent
from tests.sim.faults import BROKERS
from tests.sim.recording import now_ms
from tests.sim.resize_mutations import (
    a_batch_of_a_partition_that_is_gone_is_placed_again,
    batches_of_any_epoch_are_delivered,
    nothing_waits_for_what_is_not_answered,
    offsets_of_any_incarnation_count,
)
from tests.sim.scenes import TOPIC, Scene, stage
from zk_schemas.partition_state import Layout

Patch = pytest.MonkeyPatch
LITTLE_S = 3.0
LONG = 60


# ---------------------------------------------------------------- ancestors are those of before the grow


async def grow_by_several_at_once(scene: Scene) -> None:
    """1 -> 4: 3 has 1 for a parent once both are there, but its keys come from 0 (hole 1)."""
    key = scene.key(3, 4)
    await scene.produce(key, Layout(1, 0))
    await scene.ask_for(4)
    await scene.produce(key, Layout(4, 1), limit_s=LITTLE_S)


def ancestors_of_the_new_count(patch: Patch) -> None:
    patch.setattr(plan, "ancestor_below", lambda partition, initial, _undeleted: parent(partition, initial))


# ---------------------------------------------------------------- a pair of epoch and layout


async def elect_a_survivor_while_a_marked_partition_hears_nothing(scene: Scene) -> None:
    """An election in the middle of a merge: the survivor's new leader must not know of the merge yet (hole 3)."""
    await scene.resize(2)
    key, old, new = scene.key(1, 2), Layout(2, 1), Layout(1, 2)
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


def leaders_are_told_the_topics_layout(patch: Patch) -> None:
    original = request_batch._leader_and_isr_state

    def told(index: int, topic: Any, *rest: Any) -> Any:
        state = original(index, topic, *rest)
        state.undeleted_partition_count = topic.znode.undeleted_partition_count
        state.layout_version = topic.znode.layout_version
        return state

    patch.setattr(request_batch, "_leader_and_isr_state", told)


# ---------------------------------------------------------------- a merge leaves the maps of the one before


async def merge_twice_into_one(scene: Scene) -> None:
    """2 -> 0, then 1 -> 0: what 0 got from 2 waits for 2, also once 0 has a higher epoch."""
    await scene.resize(3)
    key = scene.key(2, 3)
    for _ in range(LONG):
        await scene.produce(key, scene.layout)
    await scene.resize(2)
    await scene.produce(key, scene.layout)
    await scene.resize(1)


def a_merge_raises_the_maps_of_the_one_before(patch: Patch) -> None:
    original = plan.bumps_of_survivors

    def bumps(topic: Any, controller_epoch: int) -> list[plan.Change]:
        changes = original(topic, controller_epoch)
        for change in changes:
            before = topic.state(change.partition)
            for gone in plan.marked(topic):
                state = topic.state(gone)
                if change.partition in state.leader_epoch_before_deletion:
                    epochs = {change.partition: before.leader_epoch}
                    change.with_it[gone] = state.replace(leader_epoch_before_deletion=epochs)
        return changes

    patch.setattr(plan, "bumps_of_survivors", bumps)


# ---------------------------------------------------------------- an answer, not an absence


async def grow_while_a_loser_is_given_up(scene: Scene) -> None:
    """The only replica's broker lost its session, does not know it, and goes on taking records (hole 8)."""
    key, old, new = scene.key(1, 2), Layout(1, 0), Layout(2, 1)
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


def who_is_gone_has_answered(patch: Patch) -> None:
    def gainers_may_be_led(topic: Any, gainers: Sequence[int]) -> bool:
        ancestors = {a for gainer in gainers for a in topic.state(gainer).leader_epoch_after_creation}
        return all(topic.told(ancestor) or topic.state(ancestor).leader < 0 for ancestor in ancestors)

    patch.setattr(plan, "gainers_may_be_led", gainers_may_be_led)


# ---------------------------------------------------------------- parked fetches


async def merge_while_a_fetch_is_parked(scene: Scene) -> None:
    """The survivor takes its first record of the merge while a fetch of before it waits there (hole 16)."""
    await scene.resize(2)
    key, other, gone = scene.key(1, 2), scene.key(0, 2), scene.leader(1)
    assert gone != scene.leader(0)
    scene.read()
    await scene.produce(other, scene.layout)
    assert await scene.until(lambda: scene.is_delivered("play:1"))
    for member in ("one", "two"):
        scene.cluster.fabric.cut(gone, member)
    await scene.produce(key, scene.layout)
    await scene.ask_for(1)
    await scene.produce(key, Layout(1, 2), insist=True)
    await trio.sleep(LITTLE_S)  # pause: time to deliver what is to wait; virtual time


def a_parked_fetch_is_not_checked_again(patch: Patch) -> None:
    """Neither its layout nor the leader epoch it names; what came of an epoch nobody decided about is delivered."""
    original, check = FetchRead._read_partition, FetchRead._check_layout

    def read(self: Any, key: Any, state: Any) -> Any:
        if self.target.delayed is not None:
            state.current_leader_epoch = -1
        return original(self, key, state)

    def check_once(self: Any, key: Any, partition: Any) -> None:
        if self.target.delayed is None:
            check(self, key, partition)

    patch.setattr(FetchRead, "_read_partition", read)
    patch.setattr(FetchRead, "_check_layout", check_once)
    batches_of_any_epoch_are_delivered(patch)


# ---------------------------------------------------------------- seals and removals


async def lose_records_below_the_seal(scene: Scene) -> None:
    """The last replica in sync is lost after the seal, and one that lags becomes leader (hole 15)."""
    await scene.configure(unclean_leader_election_enable="true")
    await scene.resize(2)
    key, leader = scene.key(1, 2), scene.leader(1)
    await scene.produce(key, scene.layout)
    others = [f"broker{broker}" for broker in BROKERS if f"broker{broker}" != leader]
    for broker in others:
        await scene.cluster.kill(broker)
    assert await scene.until(lambda: scene.in_sync(1) == [leader])
    for _ in range(3):
        await scene.produce(key, Layout(2, 1), acks=1)
    await scene.resize(1)
    await scene.cluster.crash(leader)
    for broker in others:
        await scene.restart(broker)
    assert await scene.until(lambda: scene.leader_or_none(1) in others)
    await scene.restart(leader)
    await scene.produce(key, scene.layout)


def a_seal_is_never_lowered(patch: Patch) -> None:
    original = ends._take

    def take(context: Any, tp: Any, partition: Any, question: Any, offset: int) -> Any:
        offset = max(offset, partition.state.sealed_offset) if question is ends.OffsetQuestion.END else offset
        return original(context, tp, partition, question, offset)

    patch.setattr(ends, "_take", take)


async def die_while_a_partition_is_removed(scene: Scene) -> None:
    """The controller ends right after the write that takes a partition out of the assignment (hole 11)."""
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
    await scene.produce(key, Layout(2, 3), limit_s=LITTLE_S)


def a_removal_is_two_writes(patch: Patch) -> None:
    write = GuardedStore.write

    async def in_two(self: Any, ops: Any) -> list[int]:
        if not any(isinstance(op, DeleteOp) for op in ops):
            return await write(self, ops)
        versions = await write(self, ops[:1])
        await trio.sleep(1)  # pause: long enough to end in; virtual time
        return versions + await write(self, ops[1:])

    async def forget(context: Any, topic: Any, run: list[int]) -> None:
        patch.setattr(GuardedStore, "write", in_two)
        try:
            await original(context, topic, run)
        finally:
            patch.setattr(GuardedStore, "write", write)

    original = removal._forget
    patch.setattr(removal, "_forget", forget)


# ---------------------------------------------------------------- what is gone


async def send(scene: Scene, producer: Producer, key: str, value: str) -> Any:
    """Have a producer of ours send; the handle. What comes of it is recorded by ``outcome``."""
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
    """The batch was written, its answer lost, and the partition is gone before it is asked for again (hole 14)."""
    await scene.resize(2)
    key, leader = scene.key(1, 2), scene.leader(1)
    async with Producer(
        bootstrap_servers=scene.cluster.bootstrap_servers,
        env=scene.cluster.client_env("left"),
        request_timeout_ms=1000,
    ) as producer:
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
    """The next record of its key has a new partition, where nothing is in its way but the rule."""
    key, leader = scene.key(1, 2), scene.leader(0)
    async with Producer(
        bootstrap_servers=scene.cluster.bootstrap_servers,
        env=scene.cluster.client_env("left"),
        request_timeout_ms=1000,
        metadata_max_age_ms=500,
    ) as producer:
        await outcome(scene, await send(scene, producer, key, "left:1"), "left:1")
        scene.cluster.fabric.cut("left", leader)
        second = await send(scene, producer, key, "left:2")
        await scene.resize(2)
        assert scene.leader(1) != leader
        await trio.sleep(LITTLE_S)  # pause: time to hear of the split; virtual time
        third = await send(scene, producer, key, "left:3")
        await trio.sleep(LITTLE_S)  # pause: time to write what is to wait; virtual time
        scene.cluster.fabric.heal("left", leader)
        await outcome(scene, second, "left:2")
        await outcome(scene, third, "left:3")


async def create_a_partition_again(scene: Scene) -> None:
    """What the group committed for the partition before says nothing of the one there is now (hole 20)."""
    await scene.resize(2)
    key = scene.key(1, 2)
    for _ in range(5):
        await scene.produce(key, scene.layout)
    scene.read()
    await scene.resize(1)
    assert await scene.until(lambda: not scene.watch.unfinished())
    for broker in BROKERS:  # the group comes when there is something at the offset it had
        for member in ("one", "two"):
            scene.cluster.fabric.cut(member, f"broker{broker}")
    await scene.resize(2)
    for _ in range(20):
        await scene.produce(key, scene.layout)


Play = Callable[[Scene], Awaitable[None]]
PLAYS: list[tuple[Play, int, Callable[[Patch], None], str]] = [
    (grow_by_several_at_once, 3, ancestors_of_the_new_count, "unfinished"),
    (elect_a_survivor_while_a_marked_partition_hears_nothing, 3, leaders_are_told_the_topics_layout, "promise"),
    (merge_twice_into_one, 3, a_merge_raises_the_maps_of_the_one_before, "promise"),
    (grow_while_a_loser_is_given_up, 1, who_is_gone_has_answered, "promise"),
    (merge_while_a_fetch_is_parked, 3, a_parked_fetch_is_not_checked_again, "promise"),
    (lose_records_below_the_seal, 3, a_seal_is_never_lowered, "unseen"),
    (die_while_a_partition_is_removed, 3, a_removal_is_two_writes, "unfinished"),
    (
        remove_a_partition_with_a_batch_unresolved,
        3,
        a_batch_of_a_partition_that_is_gone_is_placed_again,
        "duplicates",
    ),
    (split_a_partition_with_a_batch_unresolved, 3, nothing_waits_for_what_is_not_answered, "key_order"),
    (create_a_partition_again, 3, offsets_of_any_incarnation_count, "unseen"),
]


@pytest.mark.parametrize(("play", "replicas"), [(play, replicas) for play, replicas, _, _ in PLAYS])
def test_the_rules_hold(play: Play, replicas: int) -> None:
    assert stage(play, 1, replication_factor=replicas) == []


@pytest.mark.parametrize(("play", "replicas", "switch_off", "found_by"), PLAYS)
def test_without_its_rule_a_play_ends_badly(
    play: Play, replicas: int, switch_off: Callable[[Patch], None], found_by: str, monkeypatch: Patch
) -> None:
    switch_off(monkeypatch)
    assert found_by in stage(play, 1, replication_factor=replicas)
