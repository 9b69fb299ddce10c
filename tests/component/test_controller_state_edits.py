"""Znodes edited by hand into impossible states: the topic is frozen, and is served until it is repaired."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import TOPIC, alter, edit, finished, hold_records, led_by, resized
from tests.support.resize.resize_states import begun, release, vacate

pytestmark = pytest.mark.trio


async def set_field(world: ControllerCluster, partition: int, **fields: Any) -> bytes:
    """Write fields of a state, or remove those that are None. Returns the state before."""
    path = paths.partition_state(TOPIC, partition)
    before = (await world.store.get(path)).data
    edited = {name: value for name, value in (json.loads(before) | fields).items() if value is not None}
    await world.store.set(path, json.dumps(edited).encode())
    return before


async def succeeded(world: ControllerCluster) -> None:
    await world.start_controller(1001)
    await world.until(world.active)


async def edited_unseen(world: ControllerCluster, partition: int, **fields: Any) -> bytes:
    """Write fields of a state while no controller is active, then start one. Returns the state before."""
    vacate(world)
    before = await set_field(world, partition, **fields)
    await succeeded(world)
    return before


async def repaired(world: ControllerCluster, partition: int, intact: bytes, count: int) -> None:
    """Repair the state, resize the topic to ``count``, and check that brokers never got another initial count."""
    await world.store.set(paths.partition_state(TOPIC, partition), intact)
    await world.until(lambda: accepts(world, count))
    await world.until(lambda: finished(world, count))
    assert initial_counts_sent(world) == {4}


def initial_counts_sent(world: ControllerCluster) -> set[int]:
    """All initial counts in the brokers' LeaderAndIsr requests."""
    orders = [request for broker in world.brokers.values() for request in broker.sent(LeaderAndIsrRequest)]
    topics = [topic for request in orders for topic in request.topic_states]
    return {partition.initial_partition_count for topic in topics for partition in topic.partition_states}


async def accepts(world: ControllerCluster, count: int) -> bool:
    return bool((await world.request(alter(count))).results[0].error_code == ErrorCode.NONE)


async def why_frozen(world: ControllerCluster, count: int = 8) -> str:
    result = (await world.request(alter(count))).results[0]
    assert result.error_code == ErrorCode.POLICY_VIOLATION
    message: str = result.error_message
    assert message.startswith("The topic is frozen: ")
    return message.removeprefix("The topic is frozen: ")


async def test_a_state_that_contradicts_the_topic_freezes_it_until_it_is_repaired(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    await resized(world, 6)
    topic = await world.topic(TOPIC)
    intact = await edited_unseen(world, 5, lineage=[[0, {"5": 0}]])
    assert "it names partition 5, itself." in await why_frozen(world)
    assert "event=topic.frozen" in caplog.text
    assert await world.topic(TOPIC) == topic
    await repaired(world, 5, intact, 8)


async def draining(world: ControllerCluster) -> None:
    """Close partitions 4 and 5 of the topic, with unread records."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 4)


async def test_an_edit_under_an_active_controller_is_found_by_its_next_write_and_stops_the_resize(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The goal is in another znode. Once the state is repaired, the resize continues where it stopped."""
    await resized(world, 6)
    intact = await set_field(world, 1, initial_partition_count=2)
    await world.request(alter(8, timeout_ms=5000))
    await world.until(lambda: "event=topic.frozen" in caplog.text)
    await trio.sleep(5)  # virtual time: longer than every time-out
    assert await world.store.exists(paths.partition_state(TOPIC, 6)) is None
    await world.store.set(paths.partition_state(TOPIC, 1), intact)
    await world.until(lambda: finished(world, 8))
    assert initial_counts_sent(world) == {4}


async def test_a_frozen_topic_is_still_served(world: ControllerCluster, autojump_clock: object) -> None:
    """Leaders are elected and ISRs change, without reading the cluster again."""
    await resized(world, 6)
    intact = (await world.store.get(paths.topic(TOPIC))).data
    vacate(world)
    await edit(world, initial_partition_count=2)
    await succeeded(world)
    why = "partition 0: initial_partition_count is 4, and the topic's is 2."
    assert await why_frozen(world) == why
    sent = sum(len(broker.requests) for broker in world.brokers.values())
    assert await world.alter_isr(TOPIC, 3, [1, 2]) == ErrorCode.NONE
    world.brokers[1].leave()
    await world.until(lambda: led_by(world, 3, 2))
    await world.brokers[1].register()
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert sent < sum(len(broker.requests) for broker in world.brokers.values()) < sent + 60
    assert await why_frozen(world) == why
    await world.store.set(paths.topic(TOPIC), intact)
    await world.until(lambda: accepts(world, 8))
    await world.until(lambda: finished(world, 8))
    assert initial_counts_sent(world) == {4}


async def test_no_partition_of_a_frozen_topic_is_removed(world: ControllerCluster, autojump_clock: object) -> None:
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 4)
    intact = await edited_unseen(world, 2, initial_partition_count=2)
    hold_records(world, range(4, 6), 40, 40)
    await trio.sleep(20)  # virtual time: longer than anything waits
    assert len((await world.topic(TOPIC)).partitions) == 6
    assert not (await world.state(TOPIC, 5)).being_removed
    await world.store.set(paths.partition_state(TOPIC, 2), intact)
    await world.until(lambda: finished(world, 4))


async def test_a_deleted_state_of_a_topic_that_was_never_resized_is_not_created_again(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """A new state would be another incarnation of the partition: brokers would delete their logs of it."""
    vacate(world)
    await world.store.delete(paths.partition_state(TOPIC, 2))
    await succeeded(world)
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert await world.store.exists(paths.partition_state(TOPIC, 2)) is None
    result = (await world.request(alter(8))).results[0]
    assert result.error_message == "The states of partitions 2 cannot be read: see the log."


async def test_a_partition_znode_deleted_from_a_resized_topic_freezes_it(
    world: ControllerCluster, autojump_clock: object
) -> None:
    await resized(world, 6)
    vacate(world)
    await world.store.delete(paths.partition_state(TOPIC, 2))
    await world.store.delete(paths.partition(TOPIC, 2))
    await succeeded(world)
    assert await why_frozen(world) == "partition 2: it is counted and has no state."
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert await world.store.exists(paths.partition_state(TOPIC, 2)) is None


# ---------------------------------------------------------------- states that cannot be read


DEEP = b'{"theirs":' + b"[" * 5000 + b"]" * 5000 + b"}"


async def test_a_state_that_no_controller_can_read_holds_resizes_until_it_is_repaired(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    await resized(world, 6)
    path = paths.partition_state(TOPIC, 2)
    intact = (await world.store.get(path)).data
    vacate(world)
    await world.store.set(path, DEEP)
    await succeeded(world)
    assert f"znode {path}: not JSON" in caplog.text
    assert "partitions 2 cannot be read" in (await world.request(alter(8))).results[0].error_message
    await repaired(world, 2, intact, 8)


@pytest.mark.parametrize("partition", [0, 5])
async def test_a_deleted_state_leaves_the_topic_znode_as_it_was(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture, partition: int
) -> None:
    """This holds for a marked partition too: no other partition has its unread records."""
    await draining(world)
    topic, path = await world.topic(TOPIC), paths.partition_state(TOPIC, partition)
    vacate(world)
    await world.store.delete(path)
    await succeeded(world)
    assert f"event=partition_state.lost path={path}" in caplog.text
    assert await world.topic(TOPIC) == topic
    assert await world.store.exists(path) is None


async def test_no_state_is_created_again_when_all_were_deleted(
    world: ControllerCluster, autojump_clock: object
) -> None:
    await world.until(lambda: exists(world, paths.partition_state(TOPIC, 3)))
    vacate(world)
    states = [paths.partition_state(TOPIC, index) for index in range(4)]
    for path in states:
        await world.store.delete(path)
    await succeeded(world)
    await world.request(alter(6))
    assert not any([await exists(world, path) for path in states])


async def exists(world: ControllerCluster, path: str) -> bool:
    return await world.store.exists(path) is not None


async def test_an_edit_adds_no_partition_while_a_state_cannot_be_read(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """The added partition would be led at once, without losers: it is unknown which partitions are new."""
    await resized(world, 6)
    vacate(world)
    await world.store.set(paths.partition_state(TOPIC, 2), b"{")
    topic = json.loads((await world.store.get(paths.topic(TOPIC))).data)
    topic["partitions"] |= {"6": [1, 2, 3], "7": [1, 2, 3]}
    await world.store.set(paths.topic(TOPIC), json.dumps(topic | {"undeleted_partition_count": 8}).encode())
    await succeeded(world)
    await world.request(alter(9))
    assert not await exists(world, paths.partition_state(TOPIC, 6))


async def test_a_topic_that_kafkas_controller_only_began_to_create_is_led(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """Kafka's controller creates the parent znodes of a state in separate requests."""
    vacate(world)
    assignment = json.dumps({"version": 1, "partitions": {"0": [1, 2, 3]}}).encode()
    for path, data in ((paths.topic("u"), assignment), (paths.partitions("u"), b""), (paths.partition("u", 0), b"")):
        await world.store.create(path, data)
    await succeeded(world)
    await world.until(lambda: exists(world, paths.partition_state("u", 0)))


async def test_a_broker_that_restarted_while_a_state_was_unreadable_does_not_keep_its_epoch(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """The state is repaired after the broker is back, so the time of its last write does not show the restart."""
    await resized(world, 6)
    before = await world.state(TOPIC, 5)
    intact = await edited_unseen(world, 5, lineage=[[0, {}]])
    leader = world.brokers[before.leader]
    leader.leave()
    await world.until(lambda: is_dropped(world, before.leader))
    await leader.register()
    await world.store.set(paths.partition_state(TOPIC, 5), intact)
    await world.until(lambda: is_led_anew(world, before.leader_epoch))


async def is_dropped(world: ControllerCluster, broker: int) -> bool:
    """Whether the broker is in no ISR of the readable states."""
    return all([broker not in (await world.state(TOPIC, index)).isr for index in range(5)])


async def is_led_anew(world: ControllerCluster, epoch: int) -> bool:
    return (await world.state(TOPIC, 5)).leader_epoch > epoch


async def test_a_partition_with_a_repaired_state_elects_a_leader_once(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """It is unknown which brokers restarted before the repair. Later readings of the cluster do not elect again."""
    await resized(world, 6)
    before = await world.state(TOPIC, 5)
    intact = await edited_unseen(world, 5, lineage=[[0, {}]])
    await world.store.set(paths.partition_state(TOPIC, 5), intact)
    await world.until(lambda: is_led_anew(world, before.leader_epoch))
    led = await world.state(TOPIC, 5)
    other = await set_field(world, 2, lineage=[[0, {}]])
    await world.alter_isr(TOPIC, 3, [1, 2], (await world.store.get(paths.partition_state(TOPIC, 3))).version)
    await world.request(alter(8, timeout_ms=2000))
    await world.store.set(paths.partition_state(TOPIC, 2), other)
    await world.until(lambda: finished(world, 8))
    assert (await world.state(TOPIC, 5)).leader_epoch == led.leader_epoch + 1, "the only new epoch is that of the grow"


async def test_a_grow_that_was_accepted_continues_when_an_unrelated_state_is_repaired(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """The grow stops while a state is unreadable, after its goal and some bumps are written."""
    await begun(world, 6)
    intact = await edited_unseen(world, 2, lineage=[[0, {}]])
    release(world)
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert not await exists(world, paths.partition_state(TOPIC, 4))
    await world.store.set(paths.partition_state(TOPIC, 2), intact)
    await world.until(lambda: finished(world, 6))
    assert initial_counts_sent(world) == {4}
