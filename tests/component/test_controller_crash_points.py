"""A controller dies after any one of its writes, and its successor finishes from the znodes alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.generated.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.runtime.env import ZkOp
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
BROKERS = (1, 2, 3, 4)
PARTITIONS = 130
"""With this many partitions, a creation takes several multis, and so does a deletion."""


async def start(nursery: trio.Nursery) -> ControllerCluster:
    """One active controller, one standby, brokers that acknowledge all requests, and a topic ``t`` on 1, 2, 3."""
    cluster = ControllerCluster(nursery)
    await cluster.start_controller(1000)
    await cluster.until(cluster.active)
    await cluster.start_controller(1001)
    for broker_id in BROKERS:
        await cluster.start_broker(broker_id)
    await cluster.until(lambda: all(broker.sent(UpdateMetadataRequest) for broker in cluster.brokers.values()))
    await cluster.until(lambda: len(cluster.brokers[1].sent(UpdateMetadataRequest)[-1].live_brokers) == len(BROKERS))
    await cluster.request(creation("t", 1))
    return cluster


def creation(name: str, partitions: int = PARTITIONS) -> CreateTopicsRequest:
    assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=[1, 2, 3]) for i in range(partitions)]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000)


def die_after(cluster: ControllerCluster, writes: int) -> trio.Event:
    """Kill controller 1000 as soon as its ``writes``-th multi from now is done; then set the event."""
    session, dead = cluster.sessions[1000], trio.Event()
    multi, done = session.multi, 0

    async def counted(ops: Sequence[ZkOp]) -> list[int]:
        nonlocal done
        versions = await multi(ops)
        done += 1
        if done == writes:
            cluster.kill_controller(1000)
            cluster.zk.end_session(session.session_id)
            dead.set()
            await trio.sleep_forever()  # cancelled with the process
        return versions

    session.multi = counted  # type: ignore[method-assign]
    return dead


async def create(cluster: ControllerCluster) -> None:
    await cluster.request(creation("new"), controller_id=1000)


async def created(cluster: ControllerCluster) -> bool:
    if await cluster.store.exists(paths.topic("new")) is None:
        return False
    for index in range(PARTITIONS):
        if await cluster.store.exists(paths.partition_state("new", index)) is None:
            return False
    sent = cluster.brokers[4].metadata()
    return (
        sum(topic == "new" for topic, _ in sent) == PARTITIONS and ("new", PARTITIONS - 1) in cluster.brokers[1].led()
    )


async def delete(cluster: ControllerCluster) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="big")], timeout_ms=1000)
    await cluster.request(request, controller_id=1000)


async def deleted(cluster: ControllerCluster) -> bool:
    left = [paths.topic("big"), paths.delete_topic("big"), paths.topic_config("big")]
    return all([await cluster.store.exists(path) is None for path in left]) and (
        cluster.brokers[1].metadata()["big", 0] == -2
    )


async def move(cluster: ControllerCluster) -> None:
    partition = ReassignablePartition(partition_index=0, replicas=[4, 2, 3])
    topics = [ReassignableTopic(name="t", partitions=[partition])]
    await cluster.request(AlterPartitionReassignmentsRequest(topics=topics), controller_id=1000)
    await cluster.alter_isr("t", 0, [1, 2, 3, 4])


async def moved(cluster: ControllerCluster) -> bool:
    """Whether the move is done. Until then the ISR is requested again, as the leader's broker would."""
    state = await cluster.state("t", 0)
    topic = await cluster.topic("t")
    if topic.adding_replicas and 4 not in state.isr and await active_knows(cluster):
        await cluster.alter_isr("t", 0, [1, 2, 3, 4])
    return (
        (topic.partitions[0], topic.adding_replicas, topic.removing_replicas) == ([4, 2, 3], {}, {})
        and (state.leader, sorted(state.isr)) == (4, [2, 3, 4])
        and cluster.brokers[2].led()["t", 0] == (4, state.leader_epoch)
        and cluster.brokers[1].metadata()["t", 0] == 4
    )


async def active_knows(cluster: ControllerCluster) -> bool:
    """Whether the successor has sent LeaderAndIsr to every broker."""
    active = await cluster.active()
    return active is not None and all(
        any(request.controller_id == active.controller_id for request in broker.sent(LeaderAndIsrRequest))
        for broker in cluster.brokers.values()
    )


async def elect(cluster: ControllerCluster) -> None:
    await cluster.request(ElectLeadersRequest(topic_partitions=None, timeout_ms=1000), controller_id=1000)


async def elected(cluster: ControllerCluster) -> bool:
    state = await cluster.state("t", 0)
    return state.leader == 1 and cluster.brokers[2].led()["t", 0] == (1, state.leader_epoch)


async def lose_broker(cluster: ControllerCluster) -> None:
    cluster.brokers[1].leave()


async def shrunk(cluster: ControllerCluster) -> bool:
    states = [await cluster.state("big", index) for index in range(PARTITIONS)]
    return all((state.leader, state.isr, state.leader_epoch) == (2, [2, 3], 1) for state in states) and (
        cluster.brokers[4].metadata()["big", PARTITIONS - 1] == 2
    )


async def nothing(cluster: ControllerCluster) -> None:
    return None


async def big_topic(cluster: ControllerCluster) -> None:
    response = await cluster.request(creation("big"))
    assert response.topics[0].error_code == ErrorCode.NONE


async def another_leads(cluster: ControllerCluster) -> None:
    cluster.brokers[1].leave()
    await cluster.until(lambda: cluster.brokers[2].metadata()["t", 0] == 2)
    await cluster.brokers[1].register()
    await cluster.until(lambda: cluster.brokers[1].led().get(("t", 0)) == (2, 1))
    assert await cluster.alter_isr("t", 0, [2, 3, 1]) == ErrorCode.NONE


Step = Callable[[ControllerCluster], Awaitable[Any]]
OPERATIONS: dict[str, tuple[Step, Step, Step, int]] = {
    "create": (nothing, create, created, 3),
    "delete": (big_topic, delete, deleted, 4),
    "reassign": (nothing, move, moved, 3),
    "elect": (another_leads, elect, elected, 1),
    "broker-gone": (big_topic, lose_broker, shrunk, 1),
}
"""For each operation: the preparation, the request to the controller, the expected end, and the number of multis."""
POINTS = [(name, write) for name, (*_, writes) in OPERATIONS.items() for write in range(1, writes + 1)]


@pytest.mark.parametrize(("operation", "write"), POINTS, ids=[f"{name}-{write}" for name, write in POINTS])
async def test_the_next_controller_finishes_an_operation_interrupted_after_any_write(
    nursery: trio.Nursery, operation: str, write: int
) -> None:
    before, work, finished, _ = OPERATIONS[operation]
    cluster = await start(nursery)
    await before(cluster)
    dead = die_after(cluster, write)

    async def ask() -> None:
        try:
            await work(cluster)
        except Exception:  # a client may get any error from a controller that dies
            return

    nursery.start_soon(ask)
    with trio.fail_after(60):
        await dead.wait()
    await cluster.until(lambda: finished(cluster), within_s=120)

    async def succeeded() -> bool:
        active = await cluster.active()
        return active is not None and active.controller_id == 1001

    await cluster.until(succeeded)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_write_of_each_operation_is_interrupted(nursery: trio.Nursery, operation: str) -> None:
    before, work, finished, writes = OPERATIONS[operation]
    cluster = await start(nursery)
    await before(cluster)
    session, done = cluster.sessions[1000], 0
    multi = session.multi

    async def counted(ops: Sequence[ZkOp]) -> list[int]:
        nonlocal done
        done += 1
        return await multi(ops)

    session.multi = counted  # type: ignore[method-assign]
    await work(cluster)
    await cluster.until(lambda: finished(cluster), within_s=60)
    assert done == writes
