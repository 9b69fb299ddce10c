"""A topic is deleted during a resize and created again at once: it inherits nothing and begins above its old epochs."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import CreateTopicsResponse
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.delete_topic import DeleteTopic
from anabranch.zk_schemas.partition_state import LineageEntry, PartitionLayout
from tests.component.test_controller_resize_crashes import OPERATIONS, disturb_at_request, start
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import TOPIC, alter, creation, finished, resized

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
MOST_POINTS = 60


@pytest.fixture(autouse=True)
def small_multis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bump is a multi of its own."""
    monkeypatch.setattr("anabranch.controller.store.MAX_OPERATIONS", 1)


async def deleted(
    cluster: ControllerCluster, nursery: trio.Nursery, operation: str, number: int, *, killed: bool
) -> bool:
    """Delete the topic when the n-th request of a resize arrives. Returns False when the resize has fewer requests."""
    before = (await cluster.store.get(paths.topic(TOPIC))).czxid

    async def delete() -> None:
        await cluster.store.create(paths.delete_topic(TOPIC), DeleteTopic(TOPIC).encode(), make_parents=True)

    def disturb() -> None:
        nursery.start_soon(delete)
        if killed:
            cluster.vacate()

    async def ask() -> None:
        try:
            await cluster.request(alter(OPERATIONS[operation][-1]), controller_id=1000)
        except Exception:  # a client may get any error from a controller that dies
            return

    async def is_gone() -> bool:
        found = await cluster.store.exists(paths.topic(TOPIC))
        return found is None or found.czxid != before

    happened = disturb_at_request(cluster, number, disturb)
    nursery.start_soon(ask)
    with trio.move_on_after(30):
        await happened.wait()
    if happened.is_set():
        await cluster.until(is_gone)
    return happened.is_set()


async def created_again(cluster: ControllerCluster) -> None:
    """Request the topic until it is created: the request fails while the old topic is being deleted."""

    async def is_created() -> bool:
        response: CreateTopicsResponse = await cluster.request(creation(4, 1, 2, 3))
        return response.topics[0].error_code == ErrorCode.NONE

    await cluster.until(is_created)


def highest_epoch(cluster: ControllerCluster) -> int:
    """The highest leader epoch of any partition that a broker was told of."""
    return max(
        state.leader_epoch
        for broker in cluster.brokers.values()
        for request in broker.sent(LeaderAndIsrRequest)
        for topic in request.topic_states
        for state in topic.partition_states
    )


@pytest.mark.parametrize("killed", [False, True], ids=["", "controller-killed"])
@pytest.mark.parametrize("operation", ["grow", "shrink", "revive"])
async def test_a_topic_deleted_at_any_point_of_a_resize_is_created_again_as_a_new_one(
    operation: str, killed: bool
) -> None:
    for number in range(1, MOST_POINTS):
        async with trio.open_nursery() as nursery:
            cluster, _ = await start(nursery, operation)
            if not await deleted(cluster, nursery, operation, number, killed=killed):
                assert number > 8
                nursery.cancel_scope.cancel()
                return
            before = highest_epoch(cluster)
            await created_again(cluster)  # with four partitions, whatever the old topic had
            first = (await cluster.state(TOPIC, 0)).leader_epoch
            assert first > before
            await resized(cluster, 6)
            assert await finished(cluster, 6)
            states = [await cluster.state(TOPIC, index) for index in range(6)]
            assert [state.layout for state in states] == [PartitionLayout(6, 1)] * 6
            entries = [LineageEntry(first, {0: first}), LineageEntry(first, {1: first})]
            assert [state.lineage for state in states] == [(), (), (), (), *((entry,) for entry in entries)]
            assert (await cluster.topic(TOPIC)).last_leader_epochs == {}
            assert (await cluster.topic(TOPIC)).last_offsets == {}
            nursery.cancel_scope.cancel()
    raise AssertionError(f"{operation} has more than {MOST_POINTS} points")
