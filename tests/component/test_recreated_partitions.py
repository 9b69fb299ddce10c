"""The controller keeps the end of a removed partition for its next incarnation (see ``test_recreated_logs``)."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from tests.component.test_controller_resize_crashes import kill_active
from tests.support.controller.controller_cluster import ControllerCluster, Log
from tests.support.resize.resize_rules import TOPIC, edit, finished, hold_records, resized

pytestmark = pytest.mark.trio


def bases_sent(world: ControllerCluster, partition: int) -> set[int]:
    """The base offsets in LeaderAndIsr requests for the newest incarnation in them."""
    sent = [
        state
        for broker in world.brokers.values()
        for request in broker.sent(LeaderAndIsrRequest)
        for topic in request.topic_states
        for state in topic.partition_states
        if state.partition_index == partition
    ]
    newest = max(state.incarnation for state in sent)
    return {state.base_offset for state in sent if state.incarnation == newest}


async def removed(world: ControllerCluster, end: int) -> None:
    """Create partition 4, let it have ``end`` records, and remove it by a merge."""
    await resized(world, 5)
    hold_records(world, range(4, 5), end)
    await resized(world, 4)
    hold_records(world, range(4, 5), end, end)
    await world.until(lambda: finished(world, 4))


async def test_the_controller_keeps_the_end_of_a_removed_partition(
    world: ControllerCluster, autojump_clock: object
) -> None:
    await resized(world, 5)
    assert bases_sent(world, 4) == {0}
    hold_records(world, range(4, 5), 40)
    await resized(world, 4)
    hold_records(world, range(4, 5), 40, 40)
    await world.until(lambda: finished(world, 4))
    assert (await world.topic(TOPIC)).last_offsets == {4: 40}
    await resized(world, 6)
    assert (bases_sent(world, 4), bases_sent(world, 5)) == ({40}, {0})
    assert (await world.topic(TOPIC)).last_offsets == {4: 40}, "the end is kept as long as the topic exists"


async def test_the_highest_reported_end_counts(world: ControllerCluster, autojump_clock: object) -> None:
    """Transaction markers may follow the last record. Replicas out of sync may have fewer or more records."""
    await resized(world, 5)
    hold_records(world, range(4, 5), 40)
    await resized(world, 4)
    world.brokers[2].logs[TOPIC, 4] = Log(43, 40, 40)
    for other in (1, 3):
        world.brokers[other].logs[TOPIC, 4] = Log(41, 40, 40)
    await world.until(lambda: finished(world, 4))
    assert (await world.topic(TOPIC)).last_offsets == {4: 43}


async def test_the_end_that_the_leader_reported_is_kept_if_no_replica_knows_it_any_more(
    world: ControllerCluster, autojump_clock: object
) -> None:
    """The replicas deleted the log, restarted, and are asked again."""
    for broker in world.brokers.values():
        broker.forgets_ends = True
    await removed(world, 40)
    assert (await world.topic(TOPIC)).last_offsets == {4: 40}


async def test_the_recorded_end_never_falls(world: ControllerCluster, autojump_clock: object) -> None:
    await removed(world, 40)
    await removed(world, 40)  # created again at 40, without new records
    assert (await world.topic(TOPIC)).last_offsets == {4: 40}
    await removed(world, 12)  # on brokers whose log began at 0
    assert (await world.topic(TOPIC)).last_offsets == {4: 40}
    await removed(world, 55)
    assert (await world.topic(TOPIC)).last_offsets == {4: 55}


async def test_a_removal_that_another_controller_completes_keeps_the_end(
    world: ControllerCluster, autojump_clock: object
) -> None:
    await world.start_controller(1001)
    await resized(world, 5)
    hold_records(world, range(4, 5), 40)
    killed = trio.Event()

    def kill_at_the_first(_broker: object, request: object) -> None:
        if isinstance(request, StopReplicaRequest) and not killed.is_set():
            killed.set()
            kill_active(world)

    world.received = kill_at_the_first
    await resized(world, 4)
    hold_records(world, range(4, 5), 40, 40)
    await world.until(lambda: finished(world, 4), within_s=120)
    assert killed.is_set()
    assert (await world.topic(TOPIC)).last_offsets == {4: 40}


@pytest.mark.parametrize("changes", [{"last_offsets": {"4": 3}}, {"last_offsets": {"4": 40, "9": 1}}])
async def test_an_edit_by_hand_does_not_change_the_recorded_end(
    world: ControllerCluster, autojump_clock: object, changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    await removed(world, 40)
    await edit(world, **changes)
    await world.until(lambda: "Only the controller may change last_offsets" in caplog.text)
    await world.until(lambda: _ends(world, {4: 40}))


async def test_a_recorded_end_that_an_edit_drops_is_written_again(
    world: ControllerCluster, autojump_clock: object
) -> None:
    await removed(world, 40)
    await edit(world, last_offsets=None)
    await world.until(lambda: _ends(world, {4: 40}))


async def _ends(world: ControllerCluster, expected: dict[int, int]) -> bool:
    return (await world.topic(TOPIC)).last_offsets == expected
