"""A broker with a failed disk: the controller asks for its replicas, and elects other leaders (KIP-112)."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.log_dir_event import LogDirEvent
from tests.support.controller.clusters import cluster_of, create

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


@pytest.mark.parametrize("notice", [LogDirEvent(1).encode(), b"not json", LogDirEvent(9).encode()])
async def test_a_broker_that_cannot_serve_a_replica_loses_its_leadership(nursery: trio.Nursery, notice: bytes) -> None:
    cluster = await cluster_of(nursery, 2)
    await create(cluster, [[1, 2], [1, 2]])
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


async def test_a_replica_that_is_served_again_may_lead(nursery: trio.Nursery) -> None:
    """The disk was full, so the replica could not be created or opened. Now the disk has space again."""
    cluster = await cluster_of(nursery, 1)
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
