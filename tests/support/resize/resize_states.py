"""Stops a simulated controller in the middle of a resize by silent brokers, and reads the topic's znodes."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from anabranch.protocol.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import Before, Layout, LineageEntry, PartitionState
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import TOPIC, alter

Entries = tuple[LineageEntry, ...]


def silence(world: ControllerCluster, *brokers: int) -> None:
    """Make these brokers send no response until ``release`` is called."""
    for broker in brokers:
        world.brokers[broker].answering = trio.Event()


def release(world: ControllerCluster) -> None:
    for broker in world.brokers.values():
        broker.answering.set()


async def begun(world: ControllerCluster, count: int) -> None:
    """Request a resize that is not acknowledged: broker 1 is silent, and leads the initial partitions."""
    silence(world, 1)
    await world.request(alter(count, timeout_ms=100))


def placed(count: int, added: int, replicas: list[int]) -> CreatePartitionsRequest:
    """A request for a count, with these replicas for each added partition."""
    given = [CreatePartitionsAssignment(broker_ids=replicas)] * added
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=TOPIC, count=count, assignments=given)], timeout_ms=30_000
    )


async def states(world: ControllerCluster, partitions: Iterable[int]) -> dict[int, PartitionState]:
    return {p: await world.state(TOPIC, p) for p in partitions}


async def lineages(world: ControllerCluster, partitions: Iterable[int]) -> dict[int, Entries]:
    return {p: state.lineage for p, state in (await states(world, partitions)).items()}


async def epochs(world: ControllerCluster, partitions: Iterable[int]) -> list[int]:
    return [state.leader_epoch for state in (await states(world, partitions)).values()]


async def layouts(world: ControllerCluster, partitions: Iterable[int]) -> set[Layout | None]:
    return {state.layout for state in (await states(world, partitions)).values()}


async def befores(world: ControllerCluster, partitions: Iterable[int]) -> dict[int, Before | None]:
    return {p: state.before for p, state in (await states(world, partitions)).items()}


async def has_layout(world: ControllerCluster, partition: int, *layout: int) -> bool:
    """Whether the partition exists and has the layout of this count and version."""
    if await world.store.exists(paths.partition_state(TOPIC, partition)) is None:
        return False
    return (await world.state(TOPIC, partition)).layout == layout


async def counts(world: ControllerCluster) -> tuple[int, int, int | None, int | None]:
    """The goal, its version, the previous count, and the requested next count."""
    topic = await world.topic(TOPIC)
    return (
        topic.undeleted_partition_count,
        topic.layout_version,
        topic.previous_undeleted_partition_count,
        topic.wanted,
    )


async def is_settled(world: ControllerCluster, *expected: int | None) -> bool:
    """Whether the counts are as expected, and every live broker knows the leaders of that layout's partitions.

    Marked partitions may exist.
    """
    if await counts(world) != expected:
        return False
    count, version, *_ = await counts(world)
    return all([await _is_known(world, p, (count, version)) for p in range(count)])


async def _is_known(world: ControllerCluster, partition: int, layout: tuple[int, int]) -> bool:
    if not await has_layout(world, partition, *layout):
        return False
    state = await world.state(TOPIC, partition)
    live = [world.brokers[int(id)] for id in await world.store.children(paths.BROKER_IDS)]
    return state.leader >= 0 and all(broker.metadata().get((TOPIC, partition)) == state.leader for broker in live)


def vacate(world: ControllerCluster, controller: int = 1000) -> None:
    """Kill the controller and end its session, so that there is no active controller."""
    world.kill_controller(controller)
    world.zk.end_session(world.sessions[controller].session_id)
