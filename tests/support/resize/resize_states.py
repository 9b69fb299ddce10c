"""Uses silent brokers to stop a simulated controller in the middle of a resize, and reads the topic's znodes."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from anabranch.protocol.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import Before, LineageEntry, PartitionLayout, PartitionState
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import TOPIC, alter

Entries = tuple[LineageEntry, ...]


def silence(cluster: ControllerCluster, *brokers: int) -> None:
    """Make these brokers send no response until ``release`` is called."""
    for broker in brokers:
        cluster.brokers[broker].answering = trio.Event()


def release(cluster: ControllerCluster) -> None:
    for broker in cluster.brokers.values():
        broker.answering.set()


async def begun(cluster: ControllerCluster, count: int) -> None:
    """Request a resize that is not acknowledged: broker 1 is silent, and leads the initial partitions."""
    silence(cluster, 1)
    await cluster.request(alter(count, timeout_ms=100))


def placed(count: int, added: int, replicas: list[int]) -> CreatePartitionsRequest:
    """A request for a count, with these replicas for each added partition."""
    given = [CreatePartitionsAssignment(broker_ids=replicas)] * added
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=TOPIC, count=count, assignments=given)], timeout_ms=30_000
    )


async def states(cluster: ControllerCluster, partitions: Iterable[int]) -> dict[int, PartitionState]:
    return {p: await cluster.state(TOPIC, p) for p in partitions}


async def lineages(cluster: ControllerCluster, partitions: Iterable[int]) -> dict[int, Entries]:
    return {p: state.lineage for p, state in (await states(cluster, partitions)).items()}


async def epochs(cluster: ControllerCluster, partitions: Iterable[int]) -> list[int]:
    return [state.leader_epoch for state in (await states(cluster, partitions)).values()]


async def layouts(cluster: ControllerCluster, partitions: Iterable[int]) -> set[PartitionLayout | None]:
    return {state.layout for state in (await states(cluster, partitions)).values()}


async def befores(cluster: ControllerCluster, partitions: Iterable[int]) -> dict[int, Before | None]:
    return {p: state.before for p, state in (await states(cluster, partitions)).items()}


async def has_layout(cluster: ControllerCluster, partition: int, *layout: int) -> bool:
    """Whether the partition exists and has the layout of this count and version."""
    if await cluster.store.exists(paths.partition_state(TOPIC, partition)) is None:
        return False
    return (await cluster.state(TOPIC, partition)).layout == layout


async def counts(cluster: ControllerCluster) -> tuple[int, int, int | None, int | None]:
    """The goal, its version, the previous count, and the requested next count."""
    topic = await cluster.topic(TOPIC)
    return (
        topic.undeleted_partition_count,
        topic.layout_version,
        topic.previous_undeleted_partition_count,
        topic.wanted,
    )


async def is_settled(cluster: ControllerCluster, *expected: int | None) -> bool:
    """Whether the counts are as expected, and every live broker knows the leaders of the layout's partitions.

    Marked partitions may exist.
    """
    if await counts(cluster) != expected:
        return False
    count, version, *_ = await counts(cluster)
    return all([await _is_known(cluster, p, (count, version)) for p in range(count)])


async def _is_known(cluster: ControllerCluster, partition: int, layout: tuple[int, int]) -> bool:
    if not await has_layout(cluster, partition, *layout):
        return False
    state = await cluster.state(TOPIC, partition)
    live = [cluster.brokers[int(id)] for id in await cluster.store.children(paths.BROKER_IDS)]
    return state.leader >= 0 and all(broker.metadata().get((TOPIC, partition)) == state.leader for broker in live)
