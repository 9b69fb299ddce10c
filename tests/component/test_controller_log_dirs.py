"""A broker with a failed disk: the controller asks for its replicas, and elects other leaders (KIP-112)."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.log_dir_event import LogDirEvent
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio


@pytest.mark.parametrize("notice", [LogDirEvent(1).encode(), b"not json", LogDirEvent(9).encode()])
async def test_a_broker_that_cannot_serve_a_replica_loses_its_leadership(
    nursery: trio.Nursery, autojump_clock: object, notice: bytes
) -> None:
    cluster = ControllerCluster(nursery)
    await cluster.start_controller()
    for broker_id in (1, 2):
        await cluster.start_broker(broker_id)
    await cluster.until(lambda: all(broker.sent(UpdateMetadataRequest) for broker in cluster.brokers.values()))
    assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=[1, 2]) for index in range(2)]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
    await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    cluster.brokers[1].errors["t", 0] = ErrorCode.KAFKA_STORAGE_ERROR
    await cluster.store.create(paths.LOG_DIR_EVENT_PREFIX, notice, sequence=True)

    async def read() -> bool:
        return not await cluster.store.children(paths.LOG_DIR_EVENTS)

    await cluster.until(read)
    if notice != LogDirEvent(1).encode():
        assert (await cluster.state("t", 0)).leader == 1
        return

    async def moved() -> bool:
        return (await cluster.state("t", 0)).leader == 2

    await cluster.until(moved)
    assert (await cluster.state("t", 0)).isr == [2]
    assert ((await cluster.state("t", 1)).leader, (await cluster.state("t", 1)).isr) == (1, [1, 2])


async def test_a_replica_that_is_served_again_may_lead(nursery: trio.Nursery, autojump_clock: object) -> None:
    """The disk was full, so the replica could not be created or opened. Now the disk has space again."""
    cluster = ControllerCluster(nursery)
    await cluster.start_controller()
    await cluster.start_broker(1)
    await cluster.until(lambda: bool(cluster.brokers[1].sent(UpdateMetadataRequest)))
    cluster.brokers[1].errors["t", 0] = ErrorCode.KAFKA_STORAGE_ERROR
    await cluster.request(
        CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=1000)
    )

    async def led_by(leader: int) -> bool:
        return (await cluster.state("t", 0)).leader == leader

    await cluster.until(lambda: led_by(-1))
    cluster.brokers[1].errors.clear()
    await cluster.store.create(paths.LOG_DIR_EVENT_PREFIX, LogDirEvent(1).encode(), sequence=True)
    await cluster.until(lambda: led_by(1))
