"""States edited by hand into what cannot be: set aside until they are repaired, and nobody is told another layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from protocol.errors import ErrorCode
from protocol.generated.leader_and_isr import LeaderAndIsrRequest
from runtime.env import ZkOp
from tests.controller_world import World
from tests.resize_world import TOPIC, alter, finished, hold_records, resized
from zk_schemas import paths

pytestmark = pytest.mark.trio

CREATED, DELETED = "leaderEpochAfterCreation", "leaderEpochBeforeDeletion"


async def set_field(world: World, partition: int, **fields: Any) -> bytes:
    """Write fields of a state, or take them out where they are None; what it was before."""
    path = paths.partition_state(TOPIC, partition)
    before = (await world.store.get(path)).data
    edited = {name: value for name, value in (json.loads(before) | fields).items() if value is not None}
    await world.store.set(path, json.dumps(edited).encode())
    return before


def vacate(world: World) -> None:
    """No controller is in office."""
    world.kill_controller(1000)
    world.zk.end_session(world.sessions[1000].session_id)


async def edited_unseen(world: World, partition: int, **fields: Any) -> bytes:
    """Write fields of a state while no controller is in office, then have one take it; what the state was before."""
    vacate(world)
    before = await set_field(world, partition, **fields)
    await world.start_controller(1001)
    await world.until(world.active)
    return before


async def goes_on_when_repaired(world: World, partition: int, intact: bytes, count: int) -> None:
    """The topic can be resized to ``count`` then, and nobody was ever told another initial count."""
    await world.store.set(paths.partition_state(TOPIC, partition), intact)
    await world.until(lambda: accepts(world, count))
    await world.until(lambda: finished(world, count))
    assert told_initial(world) == {4}


def told_initial(world: World) -> set[int]:
    """The initial counts that brokers were told ever."""
    orders = [request for broker in world.brokers.values() for request in broker.sent(LeaderAndIsrRequest)]
    topics = [topic for request in orders for topic in request.topic_states]
    return {partition.initial_partition_count for topic in topics for partition in topic.partition_states}


async def accepts(world: World, count: int) -> bool:
    return bool((await world.request(alter(count))).results[0].error_code == ErrorCode.NONE)


@pytest.mark.parametrize(
    ("partition", "fields", "why"),
    [
        (4, {CREATED: None}, f"{CREATED} is missing, though the topic was created with 4 partitions"),
        (4, {CREATED: {}}, f"{CREATED} is missing, though the topic was created with 4 partitions"),
        (2, {CREATED: {"0": 0}}, f"{CREATED} is set, though the topic was created with 4 partitions"),
        (5, {CREATED: {"3": 0}}, f"{CREATED} names partition 3, which is no ancestor of 5"),
        (5, {CREATED: {"0": 0, "1": 0}}, f"{CREATED} names partition 0, which is no ancestor of 5"),
        (5, {"layout": None}, f"{CREATED} is set without layout"),
        (0, {CREATED: {"0": 0}}, f"{CREATED} is set, though the topic was created with 4 partitions"),
        (2, {DELETED: {"0": 0}}, f"{DELETED} is set, though the topic was created with 4 partitions"),
        (1, {"sealed_offset": 3}, f"sealed_offset is set without {DELETED}"),
        (1, {"leader": -2}, "leader is -2, that of a partition being removed, without sealed_offset"),
        (1, {"leader": -1, "isr": []}, "isr is empty, though the partition was led, at last in leader epoch 1"),
        (4, {"leader": -1, "isr": []}, "isr is empty, though the partition was led, at last in leader epoch 0"),
        (
            2,
            {"layout": {"undeleted_partition_count": 5, "layout_version": 2}},
            "layout is 5 partitions in version 2, that of the topic and of the others 6 partitions in",
        ),
    ],
)
async def test_one_state_at_odds_with_all_else_is_set_aside_until_it_is_repaired(
    world: World,
    autojump_clock: object,
    caplog: pytest.LogCaptureFixture,
    partition: int,
    fields: dict[str, Any],
    why: str,
) -> None:
    await resized(world, 6)
    topic = await world.topic(TOPIC)
    intact = await edited_unseen(world, partition, **fields)
    result = (await world.request(alter(8))).results[0]
    assert result.error_code == ErrorCode.POLICY_VIOLATION
    assert result.error_message == f"The states of partitions {partition} cannot be read: see the log."
    path = paths.partition_state(TOPIC, partition)
    assert f"znode {path}: {why}" in caplog.text
    assert await world.topic(TOPIC) == topic
    await goes_on_when_repaired(world, partition, intact, 8)


async def test_an_edit_under_a_controller_in_office_is_set_aside_when_it_is_found(
    world: World, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """By the first write of that state, which begins after the topic's."""
    await resized(world, 6)
    intact = await set_field(world, 4, **{CREATED: None})
    await world.request(alter(5, timeout_ms=5000))
    await world.until(lambda: f"{CREATED} is missing" in caplog.text)
    await world.store.set(paths.partition_state(TOPIC, 4), intact)
    await world.until(lambda: finished(world, 5))
    assert told_initial(world) == {4}


async def test_where_state_or_topic_may_be_wrong_nothing_is_decided(
    world: World, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """One partition was split off: without its map the topic might as well have been created with it."""
    await resized(world, 5)
    topic = await world.topic(TOPIC)
    intact = await edited_unseen(world, 4, **{CREATED: None})
    result = (await world.request(alter(6))).results[0]
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    state, of_topic = paths.partition_state(TOPIC, 4), paths.topic(TOPIC)
    assert f"znode {state}: {CREATED} is missing" in caplog.text
    assert f"that, or {of_topic}, is wrong; the topic is left as it is" in caplog.text
    assert await world.topic(TOPIC) == topic
    await goes_on_when_repaired(world, 4, intact, 6)


@pytest.mark.parametrize(("partition", "field", "value"), [(5, CREATED, {"1": 99}), (1, "leader_epoch", 0)])
async def test_of_two_states_at_odds_neither_is_believed(
    world: World, autojump_clock: object, caplog: pytest.LogCaptureFixture, partition: int, field: str, value: object
) -> None:
    """Whichever was edited: when it is repaired the topic goes on."""
    await resized(world, 5)
    await resized(world, 6)
    intact = await edited_unseen(world, partition, **{field: value})
    result = (await world.request(alter(8))).results[0]
    assert result.error_message == "The states of partitions 1, 5 cannot be read: see the log."
    known, named = (2, 99) if field == CREATED else (0, 1)
    assert f"{CREATED} names leader epoch {named} of partition 1, which is at {known}" in caplog.text
    assert f"leader_epoch is {known}, though {CREATED} of partition 5 names {named}" in caplog.text
    await goes_on_when_repaired(world, partition, intact, 8)


async def test_a_map_in_a_topic_that_was_never_resized_changes_no_count(world: World, autojump_clock: object) -> None:
    await world.until(lambda: is_online(world))
    topic = await world.topic(TOPIC)
    intact = await edited_unseen(world, 3, **{CREATED: {"0": 0}})
    await world.request(alter(6))
    assert await world.topic(TOPIC) == topic
    await goes_on_when_repaired(world, 3, intact, 6)


async def is_online(world: World) -> bool:
    return await world.store.exists(paths.partition_state(TOPIC, 3)) is not None


@pytest.mark.parametrize(("partition", "ancestor"), [(5, "1"), (4, "0")])
async def test_a_mark_that_no_shrink_set_removes_nothing(
    world: World, autojump_clock: object, caplog: pytest.LogCaptureFixture, partition: int, ancestor: str
) -> None:
    """A shrink begins with the topic; this may also be one whose topic was put back to what it was."""
    await resized(world, 6)
    topic = await world.topic(TOPIC)
    intact = await edited_unseen(world, partition, **{DELETED: {ancestor: 0}})
    result = (await world.request(alter(8))).results[0]
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert f"{DELETED} is set, though the topic counts the partition; that, or" in caplog.text
    assert await world.topic(TOPIC) == topic
    await goes_on_when_repaired(world, partition, intact, 8)


async def test_a_state_that_was_taken_away_is_not_made_anew_by_a_later_edit(
    world: World, autojump_clock: object
) -> None:
    """It would be another incarnation, before which brokers delete what they have."""
    await resized(world, 6)
    vacate(world)
    await world.store.delete(paths.partition_state(TOPIC, 2))
    await world.start_controller(1001)
    await world.until(world.active)
    edited = await world.store.get(paths.topic(TOPIC))
    version = await world.store.set(paths.topic(TOPIC), edited.data)
    assert version == edited.version + 1
    await world.request(alter(8))
    assert await world.store.exists(paths.partition_state(TOPIC, 2)) is None


async def draining(world: World) -> None:
    """The topic with partitions 4 and 5 sealed, their records unread."""
    await resized(world, 6)
    hold_records(world, range(6), 10)
    await resized(world, 4)
    await world.until(lambda: is_sealed(world))


async def is_sealed(world: World) -> bool:
    states = [await world.state(TOPIC, index) for index in range(6)]
    return all(state.layout == (4, 2) for state in states) and min(state.sealed_offset for state in states[4:]) == 10


@pytest.mark.parametrize("partition", [0, 5])
async def test_a_state_that_was_taken_away_leaves_its_topic_as_it_was(
    world: World, autojump_clock: object, caplog: pytest.LogCaptureFixture, partition: int
) -> None:
    """Of a marked partition too: its unread records are nowhere else."""
    await draining(world)
    topic, path = await world.topic(TOPIC), paths.partition_state(TOPIC, partition)
    vacate(world)
    await world.store.delete(path)
    await world.start_controller(1001)
    await world.until(world.active)
    assert f"znode {path} is gone; the partition is left as it is" in caplog.text
    assert await world.topic(TOPIC) == topic
    assert await world.store.exists(path) is None


async def test_a_state_of_a_new_topic_is_not_made_anew_either(world: World, autojump_clock: object) -> None:
    """Nor one that is taken away because it could not be read: brokers would delete what they have."""
    await world.until(lambda: is_online(world))
    path = paths.partition_state(TOPIC, 3)
    await edited_unseen(world, 3, sealed_offset=3)
    await world.store.delete(path)
    await world.until(lambda: accepts_none(world))
    assert await world.store.exists(path) is None


async def test_no_state_is_made_anew_when_all_were_taken_away(world: World, autojump_clock: object) -> None:
    await world.until(lambda: is_online(world))
    vacate(world)
    states = [paths.partition_state(TOPIC, index) for index in range(4)]
    for path in states:
        await world.store.delete(path)
    await world.start_controller(1001)
    await world.until(world.active)
    await world.request(alter(6))
    assert not any([await exists(world, path) for path in states])


async def accepts_none(world: World) -> bool:
    return "partitions 3 cannot be read" in ((await world.request(alter(6))).results[0].error_message or "")


@pytest.mark.parametrize("layout", [(6, 9), (5, 9), (5, 3), (4, 3), (3, 9)], ids=str)
async def test_a_layout_of_a_marked_partition_resizes_nothing(
    world: World, autojump_clock: object, caplog: pytest.LogCaptureFixture, layout: tuple[int, int]
) -> None:
    await draining(world)
    topic = await world.topic(TOPIC)
    states = [await world.state(TOPIC, index) for index in range(5)]
    await edited_unseen(world, 5, layout={"undeleted_partition_count": layout[0], "layout_version": layout[1]})
    assert f"layout is {layout[0]} partitions in version {layout[1]}, that of the topic" in caplog.text
    assert await world.topic(TOPIC) == topic
    assert [(await world.state(TOPIC, index)).layout for index in range(5)] == [state.layout for state in states]


async def test_a_tool_that_drops_our_fields_of_a_drained_topic_ends_no_controller(
    world: World, autojump_clock: object
) -> None:
    """All counts are the first one then, as if it was never resized; the states know the version."""
    await resized(world, 6)
    await resized(world, 4)
    await world.until(lambda: is_drained(world))
    topic = await world.topic(TOPIC)
    vacate(world)
    known = json.loads((await world.store.get(paths.topic(TOPIC))).data)
    plain = {
        name: known[name] for name in ("version", "topic_id", "partitions", "adding_replicas", "removing_replicas")
    }
    await world.store.set(paths.topic(TOPIC), json.dumps(plain).encode())
    await world.start_controller(1001)
    await world.until(lambda: accepts(world, 6))
    await world.until(lambda: finished(world, 6))
    assert (await world.topic(TOPIC)).layout_version == topic.layout_version + 1


async def is_drained(world: World) -> bool:
    return len((await world.topic(TOPIC)).partitions) == 4


async def test_with_a_state_that_cannot_be_read_an_edit_adds_no_partition(world: World, autojump_clock: object) -> None:
    """It would be led at once, without an ancestor: nobody knows then what is new."""
    await resized(world, 6)
    vacate(world)
    await world.store.set(paths.partition_state(TOPIC, 2), b"{")
    topic = json.loads((await world.store.get(paths.topic(TOPIC))).data)
    topic["partitions"] |= {"6": [1, 2, 3], "7": [1, 2, 3]}
    await world.store.set(paths.topic(TOPIC), json.dumps(topic | {"undeleted_partition_count": 8}).encode())
    await world.start_controller(1001)
    await world.until(world.active)
    await world.request(alter(9))
    assert await world.store.exists(paths.partition_state(TOPIC, 6)) is None


async def test_a_topic_that_kafkas_controller_was_about_to_begin_is_led(world: World, autojump_clock: object) -> None:
    """It makes the znodes above a state in requests of their own."""
    vacate(world)
    assignment = json.dumps({"version": 1, "partitions": {"0": [1, 2, 3]}}).encode()
    for path, data in ((paths.topic("u"), assignment), (paths.partitions("u"), b""), (paths.partition("u", 0), b"")):
        await world.store.create(path, data)
    await world.start_controller(1001)
    await world.until(lambda: exists(world, paths.partition_state("u", 0)))


async def exists(world: World, path: str) -> bool:
    return await world.store.exists(path) is not None


async def test_json_without_end_in_a_state_ends_no_controller(
    world: World, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    await resized(world, 6)
    path = paths.partition_state(TOPIC, 2)
    intact = (await world.store.get(path)).data
    vacate(world)
    await world.store.set(path, b'{"theirs":' + b"[" * 5000 + b"]" * 5000 + b"}")
    await world.start_controller(1001)
    await world.until(world.active)
    assert f"znode {path}: not JSON" in caplog.text
    await goes_on_when_repaired(world, 2, intact, 8)


async def test_a_repaired_state_is_as_any_other_when_the_cluster_is_read_again(
    world: World, autojump_clock: object
) -> None:
    """It was led anew once, for nobody saw who had restarted; not with every reading."""
    await resized(world, 6)
    before = await world.state(TOPIC, 5)
    intact = await edited_unseen(world, 5, **{CREATED: {"0": 0}})
    await world.store.set(paths.partition_state(TOPIC, 5), intact)
    await world.until(lambda: is_led_anew(world, before.leader_epoch))
    led = await world.state(TOPIC, 5)
    other = await set_field(world, 2, sealed_offset=3)
    await world.alter_isr(TOPIC, 2, [1, 2])
    await world.store.set(paths.partition_state(TOPIC, 2), other)
    await world.until(lambda: accepts(world, 8))
    await world.until(lambda: finished(world, 8))
    assert (await world.state(TOPIC, 5)).leader_epoch == led.leader_epoch + 1, "that of the grow"


async def test_who_restarted_while_a_state_was_set_aside_does_not_lead_on(world: World, autojump_clock: object) -> None:
    """The state is repaired after the broker is back: its time of writing tells nothing."""
    await resized(world, 6)
    before = await world.state(TOPIC, 5)
    intact = await edited_unseen(world, 5, **{CREATED: {"0": 0}})
    leader = world.brokers[before.leader]
    leader.leave()
    await world.until(lambda: is_dropped(world, before.leader))
    await leader.register()
    await world.store.set(paths.partition_state(TOPIC, 5), intact)
    await world.until(lambda: is_led_anew(world, before.leader_epoch))


async def is_dropped(world: World, broker: int) -> bool:
    """By the states that are not set aside."""
    return all([broker not in (await world.state(TOPIC, index)).isr for index in range(5)])


async def is_led_anew(world: World, epoch: int) -> bool:
    return (await world.state(TOPIC, 5)).leader_epoch > epoch


async def test_a_grow_that_was_accepted_goes_on_when_an_unrelated_state_is_repaired(
    world: World, autojump_clock: object
) -> None:
    """Nothing of it was recorded yet but in the assignment."""
    await world.until(lambda: is_online(world))
    await stopped_before_states(world)
    topic = await world.topic(TOPIC)
    assert len(topic.partitions) == 6
    intact = await edited_unseen(world, 2, sealed_offset=3)
    assert (await world.request(alter(8))).results[0].error_code == ErrorCode.POLICY_VIOLATION
    assert await world.topic(TOPIC) == topic
    await world.store.set(paths.partition_state(TOPIC, 2), intact)
    await world.until(lambda: finished(world, 6))
    assert told_initial(world) == {4}


async def stopped_before_states(world: World) -> None:
    """Ask for 6 partitions, with the controller held before it writes a state of a new one."""
    session, held = world.sessions[1000], trio.Event()
    write = session.multi

    async def multi(ops: Sequence[ZkOp]) -> Any:
        if any(op.path.startswith(paths.partition(TOPIC, 4)) for op in ops):
            held.set()
            await trio.sleep_forever()
        return await write(ops)

    session.multi = multi  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.request, alter(6, timeout_ms=100))
        await held.wait()
        nursery.cancel_scope.cancel()
