"""The workload of a simulated cluster: idempotent producers, requests for watermarks, created and deleted topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from anabranch.client import NewTopic, Producer
from anabranch.client.admin.admin import Admin
from anabranch.client.errors import KafkaError
from anabranch.client.producer.producer_batch import RecordHandle
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from anabranch.zk_schemas import paths
from tests.history.events import Acked, NotWritten, Sent, WatermarkSeen
from tests.sim.members import GroupLoad
from tests.sim.recording import Recorder, now_ms
from tests.sim.sim_cluster import BROKER_PORT, SimCluster

_LIST_OFFSETS_VERSION = 6
_LATEST = -1
_PROBE_LIMIT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """The amount of the workload, and the clients' timeouts."""

    topic: str = "t"
    partitions: int = 3
    producers: tuple[str, ...] = ("left", "right")
    records: int = 120
    keys: int = 4
    pause_s: float = 0.6
    """The longest pause between two records of a producer."""
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    topic_configs: tuple[tuple[str, str], ...] = ()
    group: GroupLoad = field(default_factory=GroupLoad)


@dataclass
class Workload:
    """Runs the load. ``produce_all`` returns when every record is acknowledged or has failed."""

    cluster: SimCluster
    recorder: Recorder
    load: Load
    tps: Callable[[], list[TopicPartition]]
    """Returns the topic's current partitions."""
    acknowledged: int = 0

    # ------------------------------------------------------------ producers

    async def produce_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for name in self.load.producers:
                nursery.start_soon(self.cluster.run_client, name, self._produce, name)

    async def _produce(self, name: str) -> None:
        cluster, load, add = self.cluster, self.load, self.recorder.add
        async with (
            Producer(
                bootstrap_servers=cluster.bootstrap_servers,
                env=cluster.client_env(name),
                linger_ms=5,
                request_timeout_ms=load.request_timeout_ms,
                delivery_timeout_ms=load.delivery_timeout_ms,
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            for number in range(load.records):
                key, value = f"{name}-{number % load.keys}", f"{name}:{number}"
                add(Sent(now_ms(), name, load.topic, key, value))
                try:
                    handle = await producer.send(load.topic, key=key.encode(), value=value.encode())
                except KafkaError as error:
                    add(NotWritten(now_ms(), name, value, "refused", str(error)))
                else:
                    nursery.start_soon(self._await_answer, name, value, handle)
                if cluster.rng.random() < 0.7:  # else several records share a batch
                    await trio.sleep(cluster.rng.uniform(0, load.pause_s))  # pause: virtual time

    async def _await_answer(self, name: str, value: str, handle: RecordHandle) -> None:
        try:
            metadata = await handle
        except KafkaError as error:
            # After a timeout the record may be in the log, and an earlier attempt may have been written.
            self.recorder.add(NotWritten(now_ms(), name, value, "unknown", f"{error.code.name}: {error}"))
            return
        self.acknowledged += 1
        tp = TopicPartition(metadata.topic, metadata.partition)
        self.recorder.add(Acked(now_ms(), name, tp, metadata.offset, value))

    # ------------------------------------------------------------ watermarks and topics

    async def look_at_watermarks(self) -> None:
        """Until cancelled, request from every broker the high watermarks of its led partitions, as a consumer does."""
        async with trio.open_nursery() as nursery:
            for broker in (1, 2, 3):
                nursery.start_soon(self._look_at, broker)

    async def _look_at(self, broker: int) -> None:
        while True:
            await trio.sleep(self.cluster.rng.uniform(0.2, 1.5))  # pause: virtual time
            with trio.move_on_after(_PROBE_LIMIT_S):
                for tp, (offset, epoch, asked_ms) in (await self.listed_ends(broker)).items():
                    self.recorder.add(WatermarkSeen(now_ms(), tp, broker, epoch, offset, asked_ms))

    async def listed_ends(self, broker: int) -> dict[TopicPartition, tuple[int, int, float]]:
        """``{partition: (end, leader epoch, request time)}`` of a broker's led partitions; {} without a response."""
        network = self.cluster.fabric.node("prober")
        topic = ListOffsetsTopic(
            name=self.load.topic,
            partitions=[
                ListOffsetsPartition(partition_index=tp.partition, current_leader_epoch=-1, timestamp=_LATEST)
                for tp in self.tps()
            ],
        )
        try:
            async with Channel.open(network, f"broker{broker}", BROKER_PORT, "prober", timeout_s=1.0) as channel:
                asked_ms = now_ms()
                request = ListOffsetsRequest(replica_id=-1, topics=[topic])
                answer = await channel.request(request, version=_LIST_OFFSETS_VERSION, timeout_s=_PROBE_LIMIT_S)
        except (OSError, KafkaError):
            return {}
        return {
            TopicPartition(found.name, each.partition_index): (each.offset, each.leader_epoch, asked_ms)
            for found in answer.topics
            for each in found.partitions
            if each.error_code == ErrorCode.NONE
        }

    async def create_topic(self, replication_factor: int, min_insync_replicas: int) -> None:
        cluster, load = self.cluster, self.load
        async with Admin(bootstrap_servers=cluster.bootstrap_servers, env=cluster.client_env("admin")) as admin:
            configs = {"min.insync.replicas": str(min_insync_replicas), **dict(load.topic_configs)}
            await admin.create_topics([NewTopic(load.topic, load.partitions, replication_factor, configs)])

    async def make_and_delete_topics(self, replication_factor: int) -> None:
        """Create, write and delete a topic again and again; each topic must share nothing with its predecessor."""
        await self.cluster.run_client("churn", partial(self._churn, replication_factor))

    async def _churn(self, replication_factor: int) -> None:
        cluster = self.cluster
        for number in range(1000):
            async with (
                Admin(
                    bootstrap_servers=cluster.bootstrap_servers,
                    env=cluster.client_env("churn"),
                    request_timeout_ms=5000,
                ) as admin,
                Producer(
                    bootstrap_servers=cluster.bootstrap_servers,
                    env=cluster.client_env("churn"),
                    request_timeout_ms=5000,
                    delivery_timeout_ms=10_000,
                    max_block_ms=10_000,
                ) as producer,
            ):
                wanted = NewTopic("churn", 1, replication_factor, {"min.insync.replicas": "2"})
                await insist(partial(admin.create_topics, [wanted]), ErrorCode.TOPIC_ALREADY_EXISTS)
                try:
                    metadata = await producer.send_and_wait("churn", value=f"churn {number}".encode())
                except KafkaError:
                    pass  # the outcome is unknown
                else:
                    assert metadata.offset == 0, f"topic number {number} begins with records of an earlier one"
                await trio.sleep(cluster.rng.uniform(0, 5))  # pause: virtual time
                await insist(partial(admin.delete_topics, ["churn"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                while cluster.zk.tree.find(paths.topic("churn")) is not None:
                    await trio.sleep(0.2)  # polls: the deletion continues after its response


async def insist(ask: Callable[[], Awaitable[object]], done: ErrorCode) -> None:
    """Repeat a request until it succeeds. The error ``done`` shows that an earlier attempt has succeeded."""
    while True:
        try:
            await ask()
            return
        except KafkaError as error:
            if error.code is done:
                return
        await trio.sleep(0.5)  # pause: virtual time
