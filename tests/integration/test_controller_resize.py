"""Splits as the controller carries them out; of merges too, what is refused, and edits by hand; by hole of KIP-253."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from protocol.errors import ErrorCode
from protocol.generated.controlled_shutdown import ControlledShutdownRequest
from protocol.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from protocol.generated.update_metadata import UpdateMetadataRequest
from runtime.env import ZkOp
from tests.controller_world import World
from tests.resize_world import (
    BROKERS,
    TOPIC,
    alter,
    configure,
    edit,
    finished,
    hold_records,
    is_gone,
    led_by,
    refused,
    resized,
    started,
)
from zk_schemas import paths
from zk_schemas.partition_state import Layout
from zk_schemas.topic import LAYOUT_FIELDS

pytestmark = pytest.mark.trio

# ---------------------------------------------------------------- grow


async def test_the_example_of_the_design(world: World, autojump_clock: object) -> None:
    """4 -> 6 -> 4 with the epochs and offsets of the worked example, an election in between included."""
    await resized(world, 6)
    assert [(await world.state(TOPIC, p)).leader_epoch_after_creation for p in (4, 5)] == [{0: 0}, {1: 0}]
    assert [tuple((await world.state(TOPIC, p)).layout or ()) for p in range(6)] == [(6, 1)] * 6
    assert [(await world.state(TOPIC, p)).leader_epoch for p in range(6)] == [1, 1, 1, 1, 0, 0]
    hold_records(world, range(4, 6), 40)
    await resized(world, 4)
    topic, merged = await world.topic(TOPIC), await world.state(TOPIC, 5)
    assert (topic.undeleted_partition_count, topic.layout_version, len(topic.partitions)) == (4, 2, 6)
    assert (merged.leader_epoch_before_deletion, merged.sealed_offset, merged.layout) == ({1: 1}, 40, Layout(4, 2))
    assert [(await world.state(TOPIC, p)).leader_epoch for p in range(4)] == [2, 2, 2, 2]
    hold_records(world, range(4, 6), 40, 40)
    await world.until(lambda: finished(world, 4))
    after = await world.topic(TOPIC)
    assert after.last_leader_epochs == {4: 1, 5: 1}
    assert after.topic_id != topic.topic_id


async def test_a_new_partition_is_no_ancestor_of_another_new_one(world: World, autojump_clock: object) -> None:
    """Hole 1: 8 splits from 0, for 4 is new as well, although 4 is its parent once both are there."""
    await resized(world, 16)
    maps = {p: (await world.state(TOPIC, p)).leader_epoch_after_creation for p in range(4, 16)}
    assert maps == {p: {p % 4: 0} for p in range(4, 16)}


async def test_a_split_after_a_split_names_the_nearest_ancestor(world: World, autojump_clock: object) -> None:
    await resized(world, 8)
    await resized(world, 16)
    maps = {p: (await world.state(TOPIC, p)).leader_epoch_after_creation for p in range(8, 16)}
    assert maps == {p: {p - 8: 1 if p - 8 < 4 else 0} for p in range(8, 16)}


async def test_no_resize_while_a_gainer_has_no_leader(world: World, autojump_clock: object) -> None:
    """Hole 12: what looks like an unfinished grow is one; neither direction is begun."""
    wanted = CreatePartitionsTopic(name=TOPIC, count=5, assignments=[CreatePartitionsAssignment(broker_ids=[3, 2, 1])])
    for broker_id in BROKERS:
        world.brokers[broker_id].answering = trio.Event()
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=100)
    assert (await world.request(request)).results[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert (await world.state(TOPIC, 4)).never_led
    for count in (4, 6):
        code, why = await refused(world, count)
        assert code is ErrorCode.POLICY_VIOLATION
        assert "Partitions 4 have not had a leader yet" in why
    for broker in world.brokers.values():
        broker.answering.set()
    await world.until(lambda: finished(world, 5))


async def test_a_gainer_without_a_live_replica_gets_its_leader_when_one_comes(
    world: World, autojump_clock: object
) -> None:
    wanted = CreatePartitionsTopic(name=TOPIC, count=5, assignments=[CreatePartitionsAssignment(broker_ids=[3, 2, 1])])
    world.brokers[1].answering = trio.Event()
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=100)
    await world.request(request)
    for broker in world.brokers.values():
        broker.leave()
    world.brokers[1].answering.set()
    await world.until(lambda: _no_brokers(world))
    for broker in world.brokers.values():
        await broker.register()
    await world.until(lambda: finished(world, 5))


async def _no_brokers(world: World) -> bool:
    return not await world.store.children(paths.BROKER_IDS)


async def test_an_unclean_election_never_leads_a_partition_before_its_ancestors_answered(
    world: World, autojump_clock: object
) -> None:
    """A partition that was never led has no ISR; it must not be taken for one whose ISR is lost."""
    assert await configure(world, unclean_leader_election_enable="true") == ErrorCode.NONE
    world.brokers[1].answering = trio.Event()
    await world.request(alter(6, timeout_ms=100))
    world.brokers[3].leave()
    await world.until(lambda: 3 not in _led_brokers(world))
    assert (await world.state(TOPIC, 4)).never_led
    world.brokers[1].answering.set()
    await world.brokers[3].register()
    await world.until(lambda: finished(world, 6))


def _led_brokers(world: World) -> set[int]:
    return {broker.id for broker in world.brokers[2].sent(UpdateMetadataRequest)[-1].live_brokers}


async def test_whoever_asked_is_told_at_once_that_the_topic_was_deleted(
    world: World, autojump_clock: object, nursery: trio.Nursery
) -> None:
    world.brokers[1].answering = trio.Event()
    answers: list[Any] = []

    async def ask() -> None:
        answers.append((await world.request(alter(6, timeout_ms=10**6))).results[0])

    nursery.start_soon(ask)
    await world.until(lambda: world.brokers[2].led()[TOPIC, 0] == (1, 1))
    await world.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=100))
    await world.until(lambda: answers, within_s=5)
    assert answers[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "was deleted before" in answers[0].error_message
    world.brokers[1].answering.set()
    await world.until(lambda: is_gone(world))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (0, "at least one partition"),
        (-1, "at least one partition"),
        (-(2**31), "at least one partition"),
        (4, "already has 4 partitions"),
        (3, "created with 4 partitions and cannot have fewer"),
        (2**31 - 1, "the largest count that fits is"),
    ],
)
async def test_counts_that_are_never_right(world: World, autojump_clock: object, count: int, why: str) -> None:
    code, message = await refused(world, count)
    assert code is ErrorCode.INVALID_PARTITIONS
    assert why in message


async def test_a_count_that_is_never_right_is_so_at_a_bad_moment_too(world: World, autojump_clock: object) -> None:
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 5)
    code, message = await refused(world, 2**31 - 1)
    assert code is ErrorCode.INVALID_PARTITIONS
    assert "the largest count that fits is" in message


async def test_the_largest_count_that_fits_is_accepted(world: World, autojump_clock: object) -> None:
    message = (await refused(world, 2**31 - 1))[1]
    largest = int(message.rstrip(".").rpartition(" ")[2])
    assert (await world.request(alter(largest, validate_only=True))).results[0].error_code == ErrorCode.NONE
    assert (await refused(world, largest + 1))[0] is ErrorCode.INVALID_PARTITIONS
    assert largest > 2000


async def test_growing_while_partitions_are_marked_names_those_left(world: World, autojump_clock: object) -> None:
    """Hole 26."""
    await resized(world, 6)
    hold_records(world, range(4, 6), 40)
    await resized(world, 5)
    code, message = await refused(world, 6)
    assert code is ErrorCode.POLICY_VIOLATION
    assert "while partitions 5 are marked for deletion" in message


@pytest.mark.parametrize(
    ("config", "why"),
    [({"cleanup_policy": "compact"}, "is compacted"), ({"retention_ms": "-1"}, "never expire")],
    ids=["compacted", "never-expiring"],
)
async def test_a_shrink_that_would_never_drain_is_refused_with_the_way_out(
    world: World, autojump_clock: object, config: dict[str, str], why: str
) -> None:
    """Hole 23."""
    await resized(world, 6)
    assert await configure(world, **config) == ErrorCode.NONE
    code, message = await refused(world, 4)
    assert code is ErrorCode.POLICY_VIOLATION
    assert why in message and "delete.records.when.drained=true" in message
    assert await configure(world, delete_records_when_drained="true") == ErrorCode.NONE
    await resized(world, 4)


@pytest.mark.parametrize(("count", "again"), [(4, 6), (6, 5)], ids=["grow", "shrink"])
async def test_no_resize_while_a_partition_has_no_leader(
    world: World, autojump_clock: object, count: int, again: int
) -> None:
    """None of the new ones would be led, nor take the keys that healthy partitions give up, until it is back."""
    if count > 4:
        await resized(world, count)
    leader = (await world.state(TOPIC, 3)).leader
    assert await world.alter_isr(TOPIC, 3, [leader]) == ErrorCode.NONE
    world.brokers[leader].leave()
    await world.until(lambda: led_by(world, 3, -1))
    code, message = await refused(world, again)
    assert code is ErrorCode.POLICY_VIOLATION
    assert message.startswith("Partitions 3 have no leader")
    await world.brokers[leader].register()
    await world.until(lambda: led_by(world, 3, leader))
    await world.until(lambda: is_accepted(world, again))
    await world.until(lambda: finished(world, again))


async def is_accepted(world: World, count: int) -> bool:
    return bool((await world.request(alter(count))).results[0].error_code == ErrorCode.NONE)


async def test_a_live_broker_that_does_not_know_resizing_refuses_it(world: World, autojump_clock: object) -> None:
    world.brokers[2].leave()
    world.brokers[2].features = {}
    await world.brokers[2].register()
    await world.until(lambda: _isr(world, [1, 3]))
    await trio.sleep(1)  # virtual time: every partition's state is written
    code, message = await refused(world, 6)
    assert code is ErrorCode.POLICY_VIOLATION
    assert "Brokers 2 do not know ordered resize" in message


async def _isr(world: World, isr: list[int]) -> bool:
    return (await world.state(TOPIC, 3)).isr == isr


async def test_an_unknown_and_an_internal_topic_and_one_being_deleted(world: World, autojump_clock: object) -> None:
    async def code_for(name: str) -> int:
        topics = [CreatePartitionsTopic(name=name, count=60, assignments=None)]
        return int((await world.request(CreatePartitionsRequest(topics=topics, timeout_ms=100))).results[0].error_code)

    assert await code_for("nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await world.store.create(paths.topic("__consumer_offsets"), b'{"version":3,"partitions":{"0":[1]}}')
    await world.until(lambda: ("__consumer_offsets", 0) in world.brokers[1].led())
    assert await code_for("__consumer_offsets") == ErrorCode.INVALID_REQUEST
    world.brokers[2].answering = trio.Event()
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=100)
    await world.request(deletion)
    assert await code_for(TOPIC) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.brokers[2].answering.set()


async def test_of_two_in_one_moment_the_second_is_refused(world: World, autojump_clock: object) -> None:
    """Judged right after the first was written, when no step of it is done yet: it changes nothing."""
    answers: dict[int, CreatePartitionsTopicResult] = {}
    session = world.sessions[1000]
    multi = session.multi

    async def ask(count: int) -> None:
        answers[count] = (await world.request(alter(count))).results[0]

    async with trio.open_nursery() as both:

        async def slow(ops: Sequence[ZkOp]) -> list[int]:
            session.multi = multi  # type: ignore[method-assign]
            both.start_soon(ask, 9)
            await trio.sleep(1)  # virtual time: the second request waits in the queue
            return await multi(ops)

        session.multi = slow  # type: ignore[method-assign]
        both.start_soon(ask, 6)
    assert answers[6].error_code == ErrorCode.NONE
    assert answers[9].error_code == ErrorCode.POLICY_VIOLATION
    assert answers[9].error_message == "Another resize of t is unfinished: partitions 4, 5 are being created."
    await is_whole(world, 6, layout_version=1)


async def test_a_request_that_names_the_topic_twice_is_refused(world: World, autojump_clock: object) -> None:
    """Nobody can say which of the counts was meant, also of the same."""
    for counts in ((6, 8), (6, 6)):
        request = alter(counts[0])
        request.topics = [alter(count).topics[0] for count in counts]
        [result] = (await world.request(request)).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert result.error_message == "The topic is named more than once in the request."
    assert len((await world.topic(TOPIC)).partitions) == 4


@pytest.mark.parametrize("second", [4, 9], ids=["shrink", "grow"])
async def test_a_second_is_refused_until_the_leaders_of_new_partitions_have_answered(
    world: World, autojump_clock: object, second: int
) -> None:
    world.brokers[3].answering = trio.Event()
    placed = [CreatePartitionsAssignment(broker_ids=[3, 2, 1])] * 2
    first = CreatePartitionsTopic(name=TOPIC, count=6, assignments=placed)
    await world.request(CreatePartitionsRequest(topics=[first], timeout_ms=100))
    assert await led_by(world, 4, 3) and await led_by(world, 5, 3)
    code, message = await refused(world, second)
    assert code is ErrorCode.POLICY_VIOLATION
    assert message == "Another resize of t is unfinished: not every leader has acknowledged the layout."
    world.brokers[3].answering.set()
    await is_whole(world, 6, layout_version=1)


async def test_a_second_is_refused_while_what_the_first_marked_is_being_sealed(
    world: World, autojump_clock: object
) -> None:
    await resized(world, 6)
    leader = world.brokers[(await world.state(TOPIC, 5)).leader]
    leader.answering = trio.Event()
    await world.request(alter(5, timeout_ms=100))
    code, message = await refused(world, 4)
    assert code is ErrorCode.POLICY_VIOLATION
    assert message == "Another resize of t is unfinished: partitions 5 are being sealed."
    leader.answering.set()
    await is_whole(world, 5, layout_version=2)


async def is_whole(world: World, count: int, layout_version: int) -> None:
    """The topic comes to have so many partitions, and no other resize than the one to them goes on or begins."""
    await world.until(lambda: finished(world, count))
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert await finished(world, count)
    assert (await world.topic(TOPIC)).layout_version == layout_version


@pytest.mark.parametrize(("before", "count"), [(4, 6), (6, 4)], ids=["grow", "shrink"])
async def test_asking_again_for_what_is_under_way_waits_for_it(
    world: World, autojump_clock: object, nursery: trio.Nursery, before: int, count: int
) -> None:
    """As a client does whose answer was lost; it is one resize, and another one is refused."""
    if before > 4:
        await resized(world, before)
    version = (await world.topic(TOPIC)).layout_version
    world.brokers[1].answering = trio.Event()
    answers: list[int] = []

    async def ask() -> None:
        answers.append((await world.request(alter(count, timeout_ms=10**6))).results[0].error_code)

    for _ in range(2):
        nursery.start_soon(ask)
    await world.until(lambda: has_begun(world))
    assert answers == []
    assert (await world.request(alter(count, validate_only=True))).results[0].error_code != ErrorCode.NONE
    world.brokers[1].answering.set()
    await world.until(lambda: len(answers) == 2)
    assert answers == [ErrorCode.NONE] * 2
    await world.until(lambda: finished(world, count))
    assert (await world.topic(TOPIC)).layout_version == version + 1
    code, message = await refused(world, count)
    assert (code, message) == (ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partitions.")


async def has_begun(world: World) -> bool:
    """Whether another resize is refused for it: it is unfinished, its gainers have no leader, or it marked some."""
    return bool((await world.request(alter(5, validate_only=True))).results[0].error_code == ErrorCode.POLICY_VIOLATION)


async def test_what_was_accepted_is_not_undone_when_leaders_move_at_once(world: World, autojump_clock: object) -> None:
    """Judged a second time, as an edit, it would be refused: leaders have not answered their new epochs then."""
    await resized(world, 6)
    session = world.sessions[1000]
    multi = session.multi

    async def slow(ops: Sequence[ZkOp]) -> list[int]:
        session.multi = multi  # type: ignore[method-assign]
        world.nursery.start_soon(world.request, ControlledShutdownRequest(broker_id=1, broker_epoch=-1))
        await trio.sleep(1)  # virtual time: the request waits in the queue
        return await multi(ops)

    session.multi = slow  # type: ignore[method-assign]
    await resized(world, 5)
    assert (await world.topic(TOPIC)).undeleted_partition_count == 5


async def test_ordered_delivery_is_settled_by_the_first_resize(world: World, autojump_clock: object) -> None:
    assert await configure(world, enable_ordered_delivery="false") == ErrorCode.NONE
    assert await configure(world, enable_ordered_delivery="true") == ErrorCode.NONE
    await resized(world, 6)
    assert await configure(world, enable_ordered_delivery="false") == ErrorCode.INVALID_CONFIG
    assert await configure(world, retention_ms="1000") == ErrorCode.NONE


# ---------------------------------------------------------------- edits by hand


async def test_an_edit_by_hand_splits_and_merges(world: World, autojump_clock: object) -> None:
    """KIP-253's own path: the assignment grows, or undeleted_partition_count sinks; the version is the controller's."""
    partitions = {str(index): list(BROKERS) for index in range(6)}
    await edit(world, partitions=partitions)
    await world.until(lambda: finished(world, 6))
    assert (await world.topic(TOPIC)).layout_version == 1
    await edit(world, undeleted_partition_count=4)
    await world.until(lambda: finished(world, 4))
    assert (await world.topic(TOPIC)).layout_version == 2


async def test_an_edit_by_a_tool_that_does_not_know_our_fields(world: World, autojump_clock: object) -> None:
    await resized(world, 6)
    fields = dict.fromkeys(("initial_partition_count", "undeleted_partition_count", "layout_version"))
    present = (await world.topic(TOPIC)).partitions
    partitions = {str(index): present.get(index, list(BROKERS)) for index in range(8)}
    await edit(world, partitions=partitions, **fields, last_leader_epochs=None)
    await world.until(lambda: finished(world, 8))
    assert (await world.topic(TOPIC)).initial_partition_count == 4


async def test_counts_that_an_edit_takes_away_are_written_again(world: World, autojump_clock: object) -> None:
    await resized(world, 6)
    before = await world.topic(TOPIC)
    await edit(world, **dict.fromkeys(LAYOUT_FIELDS), topic_id=None)

    async def is_complete() -> bool:
        return not (await world.topic(TOPIC)).absent

    await world.until(is_complete)
    assert await world.topic(TOPIC) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"undeleted_partition_count": 3},
        {"undeleted_partition_count": 9},
        {"initial_partition_count": 2},
        {"layout_version": 7},
        {"last_leader_epochs": {"9": 1}},
        {"partitions": {str(index): [1, 2, 3] for index in range(5)}},
        {"partitions": {str(index): [1, 2, 3] for index in range(7)}, "undeleted_partition_count": 5},
        {"partitions": {**{str(index): [1, 2, 3] for index in range(6)}, "6": [1]}},
        {"partitions": {"0": "one"}},
    ],
    ids=lambda changes: "-".join(changes),
)
async def test_an_edit_that_the_rules_refuse_is_undone(
    world: World, autojump_clock: object, changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    await resized(world, 6)
    before = await world.topic(TOPIC)
    await edit(world, **changes)
    await world.until(lambda: "the edit is undone" in caplog.text)
    await world.until(lambda: _is_topic(world, before))
    assert await finished(world, 6)


async def _is_topic(world: World, expected: object) -> bool:
    return await world.topic(TOPIC) == expected


async def test_an_edit_that_no_controller_saw(nursery: trio.Nursery, autojump_clock: object) -> None:
    """A count unlike the stored layouts of its version gets a version of its own (hole 10)."""
    world = await started(nursery)
    await resized(world, 6)
    world.kill_controller(1000)
    world.zk.end_session(world.sessions[1000].session_id)
    await edit(world, undeleted_partition_count=5)
    await world.start_controller(1001)
    await world.until(lambda: finished(world, 5))
    assert (await world.topic(TOPIC)).layout_version == 2


async def test_a_controller_that_reads_counts_that_cannot_be_restores_them(
    nursery: trio.Nursery, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    world = await started(nursery)
    await resized(world, 6)
    world.kill_controller(1000)
    world.zk.end_session(world.sessions[1000].session_id)
    await edit(world, undeleted_partition_count=2)
    await world.start_controller(1001)
    await world.until(lambda: _undeleted(world, 6))
    assert "do not fit" in caplog.text
    await resized(world, 7)


@pytest.mark.parametrize("before", [(), (5,), (6, 4)], ids=["never-resized", "grown", "shrunk"])
async def test_a_count_that_was_raised_while_no_controller_looked(
    world: World, autojump_clock: object, before: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """What it adds is split off in order; what is marked stays so, for it is sealed and its map is written."""
    for count in before:
        await resized(world, count)
        hold_records(world, range(4, count), 40)
    known = await world.topic(TOPIC)
    world.kill_controller(1000)
    world.zk.end_session(world.sessions[1000].session_id)
    partitions = {str(index): known.partitions.get(index, list(BROKERS)) for index in range(6)}
    await edit(world, partitions=partitions, undeleted_partition_count=6)
    await world.start_controller(1001)
    await world.until(lambda: "the edit is undone" in caplog.text)
    if len(known.partitions) == 6:
        await world.until(lambda: _undeleted(world, 4))
        assert (await world.state(TOPIC, 5)).layout == Layout(4, 2)
    else:
        await world.until(lambda: finished(world, 6))
        assert (await world.state(TOPIC, 5)).leader_epoch_after_creation == {1: len(before)}


async def test_an_internal_topic_does_not_grow_by_an_edit_that_no_controller_saw(
    world: World, autojump_clock: object
) -> None:
    """Another count of partitions would give every group another coordinator, without its offsets."""
    path = paths.topic("__consumer_offsets")
    await world.store.create(path, b'{"version":3,"partitions":{"0":[1]}}')
    await world.until(lambda: ("__consumer_offsets", 0) in world.brokers[1].led())
    known = await world.topic("__consumer_offsets")
    world.kill_controller(1000)
    world.zk.end_session(world.sessions[1000].session_id)
    await world.store.set(path, known.replace(partitions={0: [1], 1: [2]}).encode())
    await world.start_controller(1001)
    await trio.sleep(5)  # virtual time: longer than anything waits
    assert await world.topic("__consumer_offsets") == known


async def _undeleted(world: World, count: int) -> bool:
    return (await world.topic(TOPIC)).undeleted_partition_count == count


# ---------------------------------------------------------------- size


async def test_a_thousand_partitions_become_two_thousand_in_one_resize(world: World, autojump_clock: object) -> None:
    """Partition znodes stay under 1 KiB, the topic's under 64 KiB."""
    await resized(world, 1000)
    await resized(world, 2000)
    assert await finished(world, 2000)
    assert len((await world.store.get(paths.topic(TOPIC))).data) < 64 * 1024
    sizes = [len((await world.store.get(paths.partition_state(TOPIC, index))).data) for index in range(2000)]
    assert max(sizes) < 1024
