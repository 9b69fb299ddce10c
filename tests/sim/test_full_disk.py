"""A broker whose disk is full: others lead and coordinate, and it comes back without a restart once there is room."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from client.admin import Admin, NewTopic
from client.consumer import Consumer
from client.producer import Producer
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition
from runtime.sim_scheduler import run_deterministic
from tests.sim_cluster import SimCluster
from zk_schemas.partition_state import PartitionState

TOPIC, PARTITIONS, GROUP = "t", 3, "g"
LIMIT_S = 120.0
FULL = 1
"""The broker whose disk is full."""
BROKER_KEYS = {
    "min_insync_replicas": 2,
    "offsets_topic_num_partitions": 3,
    "offsets_topic_replication_factor": 3,
    "group_initial_rebalance_delay_ms": 0,
    "replica_lag_time_max_ms": 4000,
    "log_segment_bytes": 20_000,
}


class FullDiskScenario:
    """Three brokers, a producer that writes to every partition and a consumer that commits what it read."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.acknowledged: list[bytes] = []
        self.read: list[bytes] = []
        self._paused = trio.Event()

    async def write(self, producer: Producer) -> None:
        number = 0
        while not self._paused.is_set():
            value = b"%d" % number
            await producer.send_and_wait(TOPIC, key=value, value=value + bytes(500))
            self.acknowledged.append(value)
            number += 1
            await trio.sleep(0.02)  # pause: the load; virtual time

    async def consume(self, consumer: Consumer) -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                self.read += [record.value.rstrip(b"\0") for record in records]
            await consumer.commit()

    async def states(self) -> dict[TopicPartition, PartitionState]:
        session = self._cluster.zk.session()
        try:
            found = {}
            for topic in (TOPIC, OFFSETS_TOPIC):
                for index in range(PARTITIONS):
                    path = PartitionState.path(topic, index)
                    found[TopicPartition(topic, index)] = PartitionState.decode(path, (await session.get(path)).data)
            return found
        finally:
            session.close()

    async def until(self, condition: Callable[[PartitionState], bool]) -> None:
        """Until it holds for the state of every partition."""
        with trio.fail_after(LIMIT_S):
            while not all(condition(state) for state in (await self.states()).values()):
                await trio.sleep(0.1)  # polls: virtual time

    async def progress(self) -> None:
        """Until something new was acknowledged, read and committed."""
        wanted = len(self.acknowledged) + 20
        with trio.fail_after(LIMIT_S):
            while min(len(self.acknowledged), len(self.read)) < wanted:
                await trio.sleep(0.1)  # polls: virtual time


async def fill_and_free(seed: int) -> None:
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, seed)
        await cluster.start_controller(1000)
        for broker_id in (1, 2, 3):
            await cluster.start_broker(broker_id, **BROKER_KEYS)
        scenario = FullDiskScenario(cluster)
        servers = cluster.bootstrap_servers
        async with Admin(bootstrap_servers=servers, env=cluster.client_env("admin")) as admin:
            await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
        consumer = Consumer(
            bootstrap_servers=servers,
            group_id=GROUP,
            auto_offset_reset="earliest",
            env=cluster.client_env("consumer"),
        )
        async with Producer(bootstrap_servers=servers, env=cluster.client_env("producer")) as producer, consumer:
            consumer.subscribe([TOPIC])
            nursery.start_soon(scenario.write, producer)
            nursery.start_soon(scenario.consume, consumer)
            await scenario.progress()
            await scenario.until(lambda state: len(state.isr) == 3)
            disk = cluster.disks[f"broker{FULL}"]
            unlimited, disk.capacity_bytes = disk.capacity_bytes, disk.used_bytes
            await scenario.until(lambda state: state.leader != FULL)
            await scenario.progress()
            disk.capacity_bytes = unlimited
            await scenario.until(lambda state: len(state.isr) == 3)
            await scenario.progress()
            nursery.cancel_scope.cancel()
        assert set(scenario.acknowledged[: len(scenario.read) // 2]) <= set(scenario.read)


@pytest.mark.parametrize("seed", range(2))
def test_a_full_disk_costs_its_broker_the_leaderships_until_there_is_room(seed: int) -> None:
    run_deterministic(seed, fill_and_free, seed)
