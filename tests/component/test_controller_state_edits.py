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


def pair(count: int, version: int) -> dict[str, int]:
    return {"undeleted_partition_count": count, "layout_version": version}


@pytest.mark.parametrize(
    ("partition", "fields", "why"),
    [
        (5, {"lineage": [[0, {"5": 0}]]}, "it names partition 5, itself."),
        (5, {"lineage": [[0, {"9": 0}]]}, "it names partition 9, which never existed."),
        (5, {"lineage": [[0, {"0": 0}]]}, "it names partition 0, which never has a key of partition 5."),
        (
            5,
            {"lineage": [[0, {"1": 9}]]},
            "it names partition 1, up to leader epoch 9, which has not ended: partition 1 is at leader epoch 1.",
        ),
        (
            1,
            {"leader": -1, "isr": []},
            "partition 1: isr is empty, but a partition that loses its leader keeps its ISR.",
        ),
        (
            1,
            {"leader": -2},
            "partition 1: leader -2 marks it as being removed, but undeleted_partition_count counts it.",
        ),
        (1, {"isr": [1, 9]}, "partition 1: broker 9 is in its isr, but not among its assigned replicas."),
        (2, {"layout": pair(5, 2)}, "partition 2: layout is 5 partitions in version 2, not the topic's"),
        (2, {"layout": pair(2, 1)}, "partition 2: layout is 2 partitions in version 1, fewer than the 4"),
        (2, {"before": {"layout": pair(5, 0), "leader_epoch": 0}}, "partition 2: before is 5 partitions in version 0"),
        (
            2,
            {"before": None},
            "partition 2: before is nothing, though the resize began with 4 partitions in version 0.",
        ),
        (2, {"initial_partition_count": 2}, "partition 2: initial_partition_count is 2, and the topic's is 4."),
    ],
    ids=[
        "itself",
        "unknown",
        "no-ancestor",
        "newer",
        "no-isr",
        "leader",
        "isr",
        "layout",
        "small",
        "before",
        "no-before",
        "initial",
    ],
)
async def test_a_state_that_contradicts_the_topic_freezes_it_until_it_is_repaired(
    world: ControllerCluster,
    autojump_clock: object,
    caplog: pytest.LogCaptureFixture,
    partition: int,
    fields: dict[str, Any],
    why: str,
) -> None:
    await resized(world, 6)
    topic = await world.topic(TOPIC)
    intact = await edited_unseen(world, partition, **fields)
    assert why in await why_frozen(world)
    assert "event=topic.frozen" in caplog.text
    assert await world.topic(TOPIC) == topic
    await repaired(world, partition, intact, 8)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"initial_partition_count": 2}, "partition 0: initial_partition_count is 4, and the topic's is 2."),
        ({"layout_version": 9}, "partition 0: layout is 6 partitions in version 1, not the topic's"),
        ({"previous_undeleted_partition_count": 5}, "though the resize began with 5 partitions in version 0."),
        ({"last_leader_epochs": {"5": 3}}, "partition 5: it has leader epoch 0, though last_leader_epochs"),
        ({"layout_version": None}, "layout_version is missing, and the topic was resized."),
        (
            {"partitions": {str(p): [1, 2, 3] for p in range(5)}},
            "undeleted_partition_count 6 and the 5 assigned partitions must be in ascending order.",
        ),
        (
            {"partitions": {str(p): [1, 2] for p in range(6)}},
            "partition 0: broker 3 is in its isr, but not among its assigned replicas.",
        ),
    ],
    ids=["initial", "version", "previous", "epochs", "dropped", "assignment", "replicas"],
)
async def test_a_topic_that_contradicts_its_states_is_frozen_until_it_is_repaired(
    world: ControllerCluster, autojump_clock: object, changes: dict[str, Any], why: str
) -> None:
    """No controller saw the edit. It is not overwritten from the other states, because they may be the wrong ones."""
    await resized(world, 6)
    intact = (await world.store.get(paths.topic(TOPIC))).data
    vacate(world)
    await edit(world, **changes)
    await succeeded(world)
    edited = (await world.store.get(paths.topic(TOPIC))).data
    assert why in await why_frozen(world)
    assert (await world.store.get(paths.topic(TOPIC))).data == edited
    await world.store.set(paths.topic(TOPIC), intact)
    await world.until(lambda: accepts(world, 8))
    await world.until(lambda: finished(world, 8))
    assert initial_counts_sent(world) == {4}


async def test_a_lineage_that_waits_for_itself_freezes_the_topic(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """4 waits for 0, and 0 waits for 4. Each entry alone would be possible."""
    for count in (6, 4, 8):
        await resized(world, count)
        hold_records(world, range(4, 8), 40)
    vacate(world)
    await set_field(world, 0, lineage=[[2, {"4": 1}]])
    intact = await set_field(world, 4, lineage=[[0, {"0": 0}], [1, {"0": 2}]])
    await succeeded(world)
    assert await why_frozen(world, 9) == (
        "lineage of partition 0: it waits for itself: 0 from leader epoch 2, then 4 from leader epoch 1,"
        " then 0 from leader epoch 2."
    )
    await repaired(world, 4, intact, 9)


async def test_an_impossible_state_of_a_marked_partition_freezes_the_topic(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """A marked partition has unread records that are nowhere else."""
    await draining(world)
    topic = await world.topic(TOPIC)
    intact = await edited_unseen(world, 5, layout=pair(6, 9))
    assert "partition 5: layout is 6 partitions in version 9, not the topic's" in await why_frozen(world)
    hold_records(world, range(4, 6), 40, 40)
    await trio.sleep(10)  # virtual time: several looks
    assert await world.topic(TOPIC) == topic
    await world.store.set(paths.partition_state(TOPIC, 5), intact)
    await world.until(lambda: finished(world, 4))


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
    await trio.sleep(5)  # virtual time: longer than anything waits
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
HUGE = json.dumps({"lineage": [[epoch, {"1": epoch}] for epoch in range(500_000)]}).encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (DEEP, "not JSON"),
        (HUGE, f"{len(HUGE)} bytes are more than the 1048576 of a znode"),
    ],
    ids=["deep", "huge"],
)
async def test_a_state_that_no_controller_can_read_holds_resizes_until_it_is_repaired(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture, data: bytes, why: str
) -> None:
    await resized(world, 6)
    path = paths.partition_state(TOPIC, 2)
    intact = (await world.store.get(path)).data
    vacate(world)
    world.zk.max_request_bytes = 2 * len(data)
    await world.store.set(path, data)
    await succeeded(world)
    assert f"znode {path}: {why}" in caplog.text
    assert "partitions 2 cannot be read" in (await world.request(alter(8))).results[0].error_message
    await repaired(world, 2, intact, 8)


@pytest.mark.parametrize(
    ("lineage", "why"),
    [
        ([[1, {"1": 0}]], "leader epoch 1 is above the partition's, 0"),
        ([[0, {}]], "the entry of leader epoch 0 names no partition"),
        ([[0, {"1": -1}]], "-1 is not a leader epoch"),
        ([[0, {"1": 0}], [0, {"1": 0}]], "leader epoch 0 comes after 0: leader epochs must ascend"),
    ],
    ids=["newer", "empty", "negative", "twice"],
)
async def test_a_lineage_that_contradicts_itself_holds_resizes_until_it_is_repaired(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture, lineage: list[Any], why: str
) -> None:
    await resized(world, 6)
    intact = await edited_unseen(world, 5, lineage=lineage)
    assert why in caplog.text
    assert "partitions 5 cannot be read" in (await world.request(alter(8))).results[0].error_message
    await repaired(world, 5, intact, 8)


@pytest.mark.parametrize("partition", [0, 5])
async def test_a_deleted_state_leaves_the_topic_znode_as_it_was(
    world: ControllerCluster, autojump_clock: object, caplog: pytest.LogCaptureFixture, partition: int
) -> None:
    """This holds for a marked partition too: its unread records are nowhere else."""
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
    assert (await world.state(TOPIC, 5)).leader_epoch == led.leader_epoch + 1, "that of the grow"


async def test_a_grow_that_was_accepted_goes_on_when_an_unrelated_state_is_repaired(
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
