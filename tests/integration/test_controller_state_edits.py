"""States edited by hand into what cannot be: set aside until they are repaired, and nobody is told another layout."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.generated.leader_and_isr import LeaderAndIsrRequest
from tests.controller_world import World
from tests.resize_world import TOPIC, alter, finished, resized
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


async def edited_unseen(world: World, partition: int, **fields: Any) -> bytes:
    """Write fields of a state while no controller is in office, then have one take it; what the state was before."""
    world.kill_controller(1000)
    world.zk.end_session(world.sessions[1000].session_id)
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
        (5, {CREATED: {"1": 99}}, f"{CREATED} names leader epoch 99 of partition 1, which is at"),
        (5, {CREATED: {"0": 0, "1": 0}}, f"{CREATED} names 2 partitions"),
        (2, {DELETED: {"0": 0}}, f"{DELETED} is set, though the topic was created with 4 partitions"),
        (1, {"sealed_offset": 3}, f"sealed_offset is set without {DELETED}"),
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
