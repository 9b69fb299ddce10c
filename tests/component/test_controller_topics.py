"""Topics that a controller creates, grows and deletes, by request and by hand."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.types import ZERO_UUID
from anabranch.runtime.env import Watch
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.clusters import cluster_of, delete, states_sent
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio


def creation(name: str, partitions: int = 3, replication_factor: int = 1, **more: object) -> CreateTopicsRequest:
    request_fields = {key: more.pop(key) for key in ("timeout_ms", "validate_only") if key in more}
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication_factor, **more)
    return CreateTopicsRequest(topics=[topic], **request_fields)


@pytest.fixture
async def cluster(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    return await cluster_of(nursery, 3)


async def create(cluster: ControllerCluster, name: str, partitions: int = 3) -> TopicZnode:
    response = await cluster.request(creation(name, partitions))
    assert response.topics[0].error_code == ErrorCode.NONE, response.topics[0].error_message
    return await cluster.topic(name)


async def test_a_created_topic_is_served_by_every_broker_when_the_answer_comes(cluster: ControllerCluster) -> None:
    configs = [CreatableTopicConfig(name="retention.ms", value="5000")]
    response = await cluster.request(creation("events", 6, configs=configs))
    result = response.topics[0]
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 6, 1)
    shown = {config.name: (config.value, config.config_source) for config in result.configs}
    assert shown["retention.ms"] == ("5000", 1)
    assert shown["segment.bytes"] == ("1073741824", 5)
    topic = await cluster.topic("events")
    assert topic.topic_id == result.topic_id
    assert (topic.initial_partition_count, topic.undeleted_partition_count, topic.layout_version) == (6, 6, 0)
    leaders = {replicas[0] for replicas in topic.partitions.values()}
    assert leaders == {1, 2, 3}
    for broker in cluster.brokers.values():
        assert {index for name, index in broker.metadata() if name == "events"} == set(range(6))
        assert set(broker.led()) == {("events", i) for i, replicas in topic.partitions.items() if broker.id in replicas}
    state_znode = await cluster.store.get(paths.partition_state("events", 0))
    sent = cluster.brokers[topic.partitions[0][0]].sent(LeaderAndIsrRequest)[-1].topic_states[0].partition_states[0]
    assert (sent.initial_partition_count, sent.undeleted_partition_count, sent.layout_version) == (6, 6, 0)
    assert (sent.incarnation, sent.zk_version, sent.is_new) == (state_znode.czxid, 0, True)


async def test_a_broker_that_does_not_answer_makes_the_request_time_out(cluster: ControllerCluster) -> None:
    cluster.brokers[2].answering = trio.Event()
    response = await cluster.request(creation("slow", timeout_ms=1000))
    assert response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert (await cluster.topic("slow")).partitions.keys() == {0, 1, 2}


async def test_a_deletion_with_an_unreadable_state_does_not_delete_the_successor(cluster: ControllerCluster) -> None:
    """KIP-570: the replica's incarnation is unknown, so the StopReplica has the zxid of the deletion request."""
    await create(cluster, "t")
    await cluster.store.set(paths.partition_state("t", 0), b"{", -1)
    cluster.vacate()
    await cluster.start_controller(1001)
    await cluster.until(cluster.active)
    await delete(cluster)
    await create(cluster, "t")
    successor = await cluster.store.get(paths.partition_state("t", 0))
    stops = [
        (state.leader_epoch, state.delete_partition, 0 <= state.incarnation < successor.czxid)
        for state in states_sent(StopReplicaRequest, *cluster.brokers.values())
    ]
    assert set(stops) == {(-2, True, True)}


async def test_a_topic_that_the_controller_has_not_read_yet_is_deleted(
    cluster: ControllerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch event of the topic is queued when the request comes, and the request is decided after that event."""

    session, children = cluster.sessions[1000], cluster.sessions[1000].children

    async def create_before(path: str, watch: Watch | None = None) -> list[str]:
        if path == paths.TOPICS and watch is None:  # the read for the request
            monkeypatch.undo()
            await cluster.store.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1]}}')
        return await children(path, watch)

    monkeypatch.setattr(session, "children", create_before)
    assert (await delete(cluster)).topic_id != ZERO_UUID
    assert await cluster.store.children(paths.TOPICS) == await cluster.store.children(paths.DELETE_TOPICS) == []
