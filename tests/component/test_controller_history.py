"""Known bugs of Kafka's controller, each tested here under its number."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.clusters import cluster_of, create
from tests.support.controller.controller_cluster import ControllerCluster, FakeBroker

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
INCREMENTAL, FULL = 1, 2


@pytest.fixture
async def cluster(nursery: trio.Nursery) -> ControllerCluster:
    """Three brokers, and a topic ``t`` with one partition on all of them, led by 1."""
    cluster = await cluster_of(nursery, 3)
    await create(cluster, [[1, 2, 3]])
    return cluster


async def led_by(cluster: ControllerCluster, leader: int, name: str = "t") -> Any:
    async def led() -> Any:
        state = await cluster.state(name, 0)
        return state if state.leader == leader else None

    return await cluster.until(led)


def last_full(broker: FakeBroker) -> dict[str, Any]:
    """The topics, by name, of the last full LeaderAndIsr, which names all replicas of a broker."""
    full = [request for request in broker.sent(LeaderAndIsrRequest) if request.type == FULL]
    return {topic.topic_name: topic for topic in full[-1].topic_states} if full else {}


async def test_kafka_7235_a_bounce_between_two_reads_counts_as_a_failure_and_a_restart(
    cluster: ControllerCluster,
) -> None:
    """The set of broker ids is the same before and after; only the broker epoch shows the bounce."""
    cluster.brokers[1].leave()
    await cluster.brokers[1].register()
    state = await led_by(cluster, 2)
    assert (state.isr, state.leader_epoch) == ([2, 3], 1)
    await cluster.until(lambda: cluster.brokers[1].led()["t", 0] == (2, 1))


async def test_kafka_7235_a_bounce_without_an_active_controller_counts_as_a_failure_too(
    cluster: ControllerCluster,
) -> None:
    """The leader may have lost records that it had not synced, so it must not stay leader in the same epoch."""
    cluster.kill_controller(1000)
    cluster.brokers[1].leave()
    await cluster.brokers[1].register()
    cluster.zk.end_session(cluster.sessions[1000].session_id)
    await cluster.start_controller(1001)
    state = await led_by(cluster, 2)
    assert (state.isr, state.leader_epoch) == ([2, 3], 1)


async def test_a_fail_over_without_a_bounce_changes_no_leader(cluster: ControllerCluster) -> None:
    assert await cluster.alter_isr("t", 0, [1, 2]) == ErrorCode.NONE
    assert await cluster.alter_isr("t", 0, [1, 2, 3]) == ErrorCode.NONE
    before = await cluster.store.get(paths.partition_state("t", 0))
    cluster.vacate()
    await cluster.start_controller(1001)
    await cluster.until(lambda: cluster.brokers[1].sent(LeaderAndIsrRequest)[-1].controller_epoch == 2)
    await cluster.until(lambda: cluster.brokers[3].sent(UpdateMetadataRequest)[-1].controller_epoch == 2)
    assert (await cluster.store.get(paths.partition_state("t", 0))).version == before.version


async def test_kafka_9839_every_request_carries_the_epoch_of_the_registration_it_is_sent_to(
    cluster: ControllerCluster,
) -> None:
    broker = cluster.brokers[2]
    for _ in range(3):
        broker.requests.clear()
        broker.leave()
        await broker.register()
        epoch = (await cluster.store.get(paths.broker_id(2))).czxid
        await cluster.until(lambda: broker.sent(LeaderAndIsrRequest) and broker.sent(UpdateMetadataRequest))
        sent = [request for request in broker.requests if request.broker_epoch == epoch]
        assert sent and sent == broker.requests[-len(sent) :]


async def test_kafka_13407_a_restarted_controller_waits_for_the_end_of_its_earlier_session(
    cluster: ControllerCluster,
) -> None:
    cluster.kill_controller(1000)
    await trio.testing.wait_all_tasks_blocked()  # its listener is closed
    await cluster.start_controller(1000)
    earlier = cluster.sessions[1000]
    await cluster.until(lambda: cluster.brokers[1].sent(UpdateMetadataRequest)[-1].controller_epoch == 2, within_s=120)
    znode = await cluster.store.get(paths.CONTROLLER)
    assert znode.ephemeral_owner == earlier.session_id


async def test_kafka_14154_a_deposed_controller_answers_only_not_controller(cluster: ControllerCluster) -> None:
    """The request needs no write. The controller's image is outdated, so neither NONE nor a refusal would be right."""
    raised = await cluster.store.get(paths.CONTROLLER_EPOCH)
    for isr in ([1, 2, 3], [1, 2]):
        await cluster.store.set(paths.CONTROLLER_EPOCH, str(int(raised.data) + 10).encode())
        assert await cluster.alter_isr("t", 0, isr) == ErrorCode.NOT_CONTROLLER
    assert (await cluster.state("t", 0)).isr == [1, 2, 3]


async def test_kafka_12257_a_recreated_topic_has_a_new_id_and_incarnation_and_begins_above_its_old_epochs(
    cluster: ControllerCluster,
) -> None:
    cluster.brokers[1].leave()
    await led_by(cluster, 2)
    await cluster.brokers[1].register()
    first, first_state = await cluster.topic("t"), await cluster.store.get(paths.partition_state("t", 0))
    await cluster.until(lambda: ("t", 0) in cluster.brokers[1].led())
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
    assert (await cluster.request(request)).responses[0].error_code == ErrorCode.NONE
    assert cluster.brokers[3].metadata()["t", 0] == -2
    await create(cluster, [[3, 2, 1]])
    second, second_state = await cluster.topic("t"), await cluster.store.get(paths.partition_state("t", 0))
    assert second.topic_id != first.topic_id and second_state.czxid > first_state.czxid
    sent = cluster.brokers[3].sent(UpdateMetadataRequest)[-1].topic_states[0]
    old_epoch = PartitionState.decode(paths.partition_state("t", 0), first_state.data).leader_epoch
    assert (sent.topic_id, sent.partition_states[0].leader_epoch) == (second.topic_id, old_epoch + 1)
    ordered = cluster.brokers[1].sent(LeaderAndIsrRequest)[-1].topic_states[0]
    assert (ordered.topic_id, ordered.partition_states[0].incarnation) == (second.topic_id, second_state.czxid)


async def test_kafka_14616_a_returning_replica_gets_the_new_id_of_a_topic_recreated_meanwhile(
    cluster: ControllerCluster,
) -> None:
    """The topic is deleted and created by hand, so that no deletion waits for the stopped broker."""
    first = await cluster.topic("t")
    cluster.brokers[3].leave()
    await cluster.until(lambda: len(cluster.brokers[1].sent(UpdateMetadataRequest)[-1].live_brokers) == 2)
    for path in (
        paths.partition_state("t", 0),
        paths.partition("t", 0),
        paths.partitions("t"),
        paths.topic("t"),
    ):
        await cluster.store.delete(path)
    await cluster.store.create(paths.topic("t"), b'{"version":3,"partitions":{"0":[2,3]}}')

    async def made_again() -> TopicZnode | None:
        if await cluster.store.exists(paths.partition_state("t", 0)) is None:
            return None
        return await cluster.topic("t")

    second = await cluster.until(made_again)
    assert second.topic_id != first.topic_id
    incarnation = (await cluster.store.get(paths.partition_state("t", 0))).czxid
    await cluster.brokers[3].register()
    await cluster.until(lambda: last_full(cluster.brokers[3]).get("t"))
    sent = last_full(cluster.brokers[3])["t"]
    assert (sent.topic_id, sent.partition_states[0].incarnation) == (second.topic_id, incarnation)


async def test_kafka_10548_a_broker_that_registers_gets_the_list_of_its_replicas_and_no_others(
    cluster: ControllerCluster,
) -> None:
    """A log that is not in the list belongs to a topic that was deleted while the broker was stopped."""
    await create(cluster, [[1, 2]], "elsewhere")
    await create(cluster, [[3]], "here")
    cluster.brokers[3].leave()
    await cluster.until(lambda: cluster.brokers[1].metadata()["here", 0] == -1)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=100)
    await cluster.request(request)
    cluster.brokers[3].requests.clear()
    await cluster.brokers[3].register()
    await cluster.until(lambda: last_full(cluster.brokers[3]))
    assert set(last_full(cluster.brokers[3])) == {"here"}
    await cluster.until(lambda: cluster.brokers[3].sent(StopReplicaRequest))

    async def gone() -> bool:
        return await cluster.store.exists(paths.topic("t")) is None

    await cluster.until(gone)


async def repaired(cluster: ControllerCluster, intact: bytes) -> None:
    await cluster.store.set(paths.topic("t"), intact)


async def removed(cluster: ControllerCluster, _intact: bytes) -> None:
    for path in (paths.partition_state("t", 0), paths.partition("t", 0), paths.partitions("t"), paths.topic("t")):
        await cluster.store.delete(path)


@pytest.mark.parametrize("end", [repaired, removed])
async def test_a_list_of_replicas_is_not_sent_as_complete_while_a_znode_cannot_be_read(
    cluster: ControllerCluster, end: Callable[[ControllerCluster, bytes], Awaitable[None]]
) -> None:
    """KIP-570: a broker stops replicas that a full request does not name, so every znode must be readable first."""
    await create(cluster, [[3]], "fine")
    intact = (await cluster.store.get(paths.topic("t"))).data
    await cluster.store.set(paths.topic("t"), b"{")
    cluster.vacate()
    await cluster.start_controller(1001)

    def sent() -> LeaderAndIsrRequest | None:
        last: LeaderAndIsrRequest = cluster.brokers[3].sent(LeaderAndIsrRequest)[-1]
        return last if last.controller_epoch == 2 else None

    orders = await cluster.until(sent)
    assert ([topic.topic_name for topic in orders.topic_states], orders.type) == (["fine"], INCREMENTAL)
    await end(cluster, intact)
    await cluster.until(lambda: cluster.brokers[3].sent(LeaderAndIsrRequest)[-1].type == FULL)
    again: LeaderAndIsrRequest = cluster.brokers[3].sent(LeaderAndIsrRequest)[-1]
    assert again.controller_epoch == 2 and again.image_number > orders.image_number
