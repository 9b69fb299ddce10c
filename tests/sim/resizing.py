"""Clients of a simulated cluster: one resizes its topic, and one produces with outdated layouts."""

from __future__ import annotations

import contextlib
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from anabranch.client.admin.admin import Admin
from anabranch.client.errors import KafkaError
from anabranch.ordered_resize.delete_when_drained import DRAIN_KEY
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from anabranch.zk_schemas.partition_state import PartitionLayout
from tests.history.events import Acked, Fault, LayoutAsked, NotWritten, Sent
from tests.sim.recording import Recorder, now_ms
from tests.sim.sim_cluster import BROKER_PORT, SimCluster
from tests.sim.topic_watch import TopicWatch

MOST = 8
_PRODUCE_VERSION = 9
_ANSWER_LIMIT_S = 5.0
_KEYS = 20


@dataclass
class Resizer:
    """Requests one partition count after another until ``stop``. Requests may be refused or lost."""

    cluster: SimCluster
    recorder: Recorder
    watch: TopicWatch
    stop: trio.Event = field(default_factory=trio.Event)
    accepted: int = 0
    pause_s: float = 6.0
    keeps: bool = False
    """Whether each resize turns draining on or off at random.

    While draining is off, marked partitions stay, so that no rebalance soon follows a merge.
    """
    expires: bool = False
    """Whether retention removes records until the end of the run."""
    _pause: trio.CancelScope = field(default_factory=trio.CancelScope)
    _marks_few: bool = False

    def mark_few_soon(self) -> None:
        """Make the next resize come soon, and mark a few partitions."""
        self._marks_few = True
        self._pause.deadline = min(self._pause.deadline, trio.current_time() + self.cluster.rng.uniform(0, 2))

    async def run(self) -> None:
        rng = self.cluster.rng
        async with Admin(
            bootstrap_servers=self.cluster.bootstrap_servers,
            env=self.cluster.client_env("resizer"),
            request_timeout_ms=5000,
            default_api_timeout_ms=15_000,
        ) as admin:
            while not self.stop.is_set():
                with trio.move_on_after(rng.uniform(0.2, self.pause_s)) as self._pause:
                    await self.stop.wait()
                if not self.stop.is_set():
                    await self._resize(admin, self._count())

    async def let_go(self, over: trio.Event) -> None:
        """After ``stop``: let marked partitions be removed once they are read, and let no more records expire.

        The configs are set repeatedly, because an older request with other values may arrive late.
        """
        configs = {DRAIN_KEY: "true"} | ({"retention.ms": "-1", "retention.bytes": "-1"} if self.expires else {})
        await self.stop.wait()
        async with Admin(
            bootstrap_servers=self.cluster.bootstrap_servers, env=self.cluster.client_env("resizer")
        ) as admin:
            while not over.is_set():
                await self._configure(admin, configs)
                with trio.move_on_after(10):
                    await over.wait()

    def _count(self) -> int:
        """The next partition count, mostly a valid one."""
        rng, znode = self.cluster.rng, self.watch.znode()
        if znode is None or rng.random() < 0.2:
            return rng.randint(1, MOST)
        if self._marks_few:
            self._marks_few = False
            fewer = znode.undeleted_partition_count - rng.randint(1, 3)
            if fewer >= znode.initial_partition_count:
                return fewer
        return rng.randint(znode.initial_partition_count, MOST)

    async def _resize(self, admin: Admin, count: int) -> None:
        if self.keeps:
            await self._configure(admin, {DRAIN_KEY: self.cluster.rng.choice(["true", "false"])})
        self.recorder.add(Fault(now_ms(), "resize", f"to {count}"))
        try:
            await admin.create_partitions(
                {self.watch.topic: count}, timeout_ms=self.cluster.rng.choice([0, 1000, 5000])
            )
        except KafkaError as error:
            self.recorder.add(Fault(now_ms(), "resize refused", f"to {count}: {error.code.name}: {error}"))
            return
        self.accepted += 1
        self.recorder.add(Fault(now_ms(), "resize accepted", f"to {count}"))

    async def _configure(self, admin: Admin, configs: dict[str, str]) -> None:
        """Set keys of the topic; the request may be lost."""
        with contextlib.suppress(KafkaError):
            await admin.incremental_alter_configs(topics={self.watch.topic: configs})


@dataclass
class StaleProducer:
    """Sends records with old and with invented layouts to brokers, until cancelled.

    Each record goes to its partition in the layout that it is sent with. The producer is not idempotent and keeps no
    order. It only proves that a leader accepts no record with another layout than the leader's own.
    """

    cluster: SimCluster
    recorder: Recorder
    watch: TopicWatch
    pause_s: float = 2.0
    count: int = 0

    async def run(self) -> None:
        rng = self.cluster.rng
        while True:
            await trio.sleep(rng.uniform(0, self.pause_s))  # pause: virtual time
            layouts = list(self.watch.layouts)
            znode = self.watch.znode()
            if not layouts or znode is None:
                continue
            layout = rng.choice(layouts)
            if rng.random() < 0.2:
                layout = layout._replace(layout_version=layout.layout_version + rng.choice([100, 1000]))
            key = f"stale-{rng.randrange(_KEYS)}"
            partition = place(positive_hash(key.encode()), znode.initial_partition_count, layout[0])
            await self._produce(TopicPartition(self.watch.topic, partition), layout, key, rng.choice([1, 2, 3]))

    async def _produce(self, tp: TopicPartition, layout: PartitionLayout, key: str, broker: int) -> None:
        self.count += 1
        value = f"stale:{self.count}"
        self.recorder.add(Sent(now_ms(), "stale", tp.topic, key, value, idempotent=False))
        error, offset = "", -1
        with trio.move_on_after(_ANSWER_LIMIT_S):
            with suppress(OSError, KafkaError):
                error, offset = await self._ask(tp, layout, key, value, broker)
        if error == ErrorCode.NONE.name:
            self.recorder.add(Acked(now_ms(), "stale", tp, offset, value))
        else:
            refused = error == ErrorCode.INVALID_PARTITION_METADATA.name
            self.recorder.add(NotWritten(now_ms(), "stale", value, "refused" if refused else "unknown", error))
        self.recorder.add(LayoutAsked(now_ms(), tp, *layout, error, value))

    async def _ask(
        self, tp: TopicPartition, layout: PartitionLayout, key: str, value: str, broker: int
    ) -> tuple[str, int]:
        batch = build_batch([(key.encode(), value.encode(), [], self.cluster.clock.now_ms())])
        data = TopicProduceData(
            name=tp.topic,
            partition_data=[PartitionProduceData(index=tp.partition, records=batch)],
            undeleted_partition_count=layout.undeleted_partition_count,
            layout_version=layout.layout_version,
        )
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=4000, topic_data=[data])
        node = self.cluster.fabric.node("stale")
        async with Channel.open(node, f"broker{broker}", BROKER_PORT, "stale", timeout_s=1.0) as channel:
            answer = await channel.request(request, version=_PRODUCE_VERSION, timeout_s=_ANSWER_LIMIT_S)
        (found,) = answer.responses[0].partition_responses
        return ErrorCode(found.error_code).name, found.base_offset
