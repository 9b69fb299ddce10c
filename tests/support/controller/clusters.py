"""Clusters that controller tests begin with, and the requests that most of them make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.protocol.generated.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from tests.support.controller.controller_cluster import ControllerCluster, FakeBroker


async def cluster_of(nursery: trio.Nursery, brokers: int, **keys: object) -> ControllerCluster:
    """Start a controller with these config keys, and brokers 1 to ``brokers``. Each of them knows all."""
    cluster = ControllerCluster(nursery)
    await cluster.start_controller(**keys)
    for broker_id in range(1, brokers + 1):
        await cluster.start_broker(broker_id)
    await all_known(cluster)
    return cluster


async def all_known(cluster: ControllerCluster) -> None:
    """Wait until each broker's metadata has all brokers."""

    def is_known(broker: FakeBroker) -> bool:
        sent = broker.sent(UpdateMetadataRequest)
        return bool(sent) and len(sent[-1].live_brokers) == len(cluster.brokers)

    await cluster.until(lambda: all(map(is_known, cluster.brokers.values())))


async def create(
    cluster: ControllerCluster, replicas: Sequence[Sequence[int]], name: str = "t", **configs: str
) -> None:
    """Create a topic with these replicas of its partitions. Names of configs have underscores for dots."""
    assignments = [
        CreatableReplicaAssignment(partition_index=i, broker_ids=list(ids)) for i, ids in enumerate(replicas)
    ]
    entries = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=entries
    )
    (result,) = (await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))).topics
    assert result.error_code == ErrorCode.NONE, result.error_message


async def delete(cluster: ControllerCluster, name: str = "t") -> DeletableTopicResult:
    """Delete a topic, and return the result when the topic is gone."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
    (result,) = (await cluster.request(request)).responses
    assert result.error_code == ErrorCode.NONE, result.error_message
    return result  # type: ignore[no-any-return]


def states_sent(kind: type, *brokers: FakeBroker, topics: Iterable[str] = "t") -> list[Any]:
    """The states of the topics' partitions in all requests of this kind that the brokers received, in order."""
    return [
        state
        for broker in brokers
        for request in broker.sent(kind)
        for topic in request.topic_states
        if topic.topic_name in topics
        for state in topic.partition_states
    ]
