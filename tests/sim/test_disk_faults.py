"""A broker with a full disk, or without a log dir: other brokers lead and coordinate until the disk is repaired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from anabranch.client.admin.admin import Admin, NewTopic
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.producer.producer import Producer
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionState
from sim.scheduler import run_deterministic
from tests.sim.sim_cluster import SimCluster

TOPIC, PARTITIONS, GROUP = "t", 3, "g"
LIMIT_S = 120.0
SEED = 0
FAULTY = 1
"""The broker with the disk fault."""
BROKER_KEYS = {
    "min_insync_replicas": 2,
    "offsets_topic_num_partitions": 3,
    "offsets_topic_replication_factor": 3,
    "group_initial_rebalance_delay_ms": 0,
    "replica_lag_time_max_ms": 4000,
    "log_segment_bytes": 20_000,
    "log_dirs": "/logs/a,/logs/b",
}


class DiskScenario:
    """Three brokers, a producer that writes to every partition, and a consumer that commits."""

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
        """Wait until the condition holds for the state of every partition."""
        await self.until_each(lambda _tp, state: condition(state))

    async def until_each(self, condition: Callable[[TopicPartition, PartitionState], bool]) -> None:
        """``until`` for a condition that also takes the partition."""
        with trio.fail_after(LIMIT_S):
            while not all(condition(*item) for item in (await self.states()).items()):
                await trio.sleep(0.1)  # polls: virtual time

    async def progress(self) -> None:
        """Wait until further records are acknowledged, read and committed."""
        wanted = len(self.acknowledged) + 20
        with trio.fail_after(LIMIT_S):
            while min(len(self.acknowledged), len(self.read)) < wanted:
                await trio.sleep(0.1)  # polls: virtual time


Trouble = Callable[[SimCluster, DiskScenario], Awaitable[None]]


async def run_with(trouble: Trouble, seed: int) -> None:
    """Run load on a whole cluster, then ``trouble``. At the end all replicas must be in sync and all records read."""
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, seed)
        await cluster.start_controller(1000)
        for broker_id in (1, 2, 3):
            await cluster.start_broker(broker_id, **BROKER_KEYS)
        scenario = DiskScenario(cluster)
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
            await trouble(cluster, scenario)
            await scenario.until(lambda state: len(state.isr) == 3)
            await scenario.progress()
            nursery.cancel_scope.cancel()
        assert set(scenario.acknowledged[: len(scenario.read) // 2]) <= set(scenario.read)


async def full_disk(cluster: SimCluster, scenario: DiskScenario) -> None:
    disk = cluster.disks[f"broker{FAULTY}"]
    unlimited, disk.capacity_bytes = disk.capacity_bytes, disk.used_bytes
    await scenario.until(lambda state: state.leader != FAULTY)
    await scenario.progress()
    disk.capacity_bytes = unlimited


async def lost_directory(cluster: SimCluster, scenario: DiskScenario) -> None:
    """One of two log dirs is missing at a restart, and present again at the next restart."""
    name = f"broker{FAULTY}"
    disk = cluster.disks[name]
    lost = "/logs/b"
    homes = {path.split("/")[3] for path in disk.directories if path.startswith(lost + "/")}
    assert 0 < len(homes) < 2 * PARTITIONS, "each dir has some of the replicas"
    await cluster.kill(name)
    hidden = {path: disk.files.pop(path) for path in list(disk.files) if path.startswith(lost + "/")}
    directories = [path for path in disk.directories if path == lost or path.startswith(lost + "/")]
    for path in directories:
        del disk.directories[path]
    disk.mount().open(lost, create=True).close()
    await cluster.start_broker(FAULTY, **BROKER_KEYS)

    def without_lost(tp: TopicPartition, state: PartitionState) -> bool:
        return (FAULTY in state.isr) is (str(tp) not in homes) and state.leader >= 0

    await scenario.until_each(without_lost)
    await scenario.progress()
    assert all(str(tp) not in homes for tp, state in (await scenario.states()).items() if state.leader == FAULTY)
    await cluster.kill(name)
    del disk.files[lost]
    disk.files.update(hidden)
    disk.directories.update(dict.fromkeys(directories))
    await cluster.start_broker(FAULTY, **BROKER_KEYS)


@pytest.mark.parametrize("trouble", [full_disk, lost_directory])
def test_a_broker_with_a_disk_fault_loses_its_leaderships_until_the_disk_is_repaired(trouble: Trouble) -> None:
    run_deterministic(SEED, run_with, trouble, SEED)
