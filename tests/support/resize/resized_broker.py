"""One broker whose topic ``t`` is resized; the test acts as the controller (KIP-253).

The topic has 4 partitions and grows to 6, with layout (6, 1). It shrinks to 4, with layout (4, 2). It grows to 8, with
layout (8, 3), while partitions 4 and 5 drain.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.log.layout_history import LayoutEntry
from anabranch.broker.node import Node
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from anabranch.protocol.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from anabranch.protocol.generated.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS
from sim.zk import FakeZk
from tests.support.broker.broker_harness import BROKER_ID, DEADLINE_S, OneBroker, one_broker

TOPIC_ID = uuid.UUID(int=7)
FIRST, GROWN, SHRUNK, GROWN_AGAIN = (4, 0), (6, 1), (4, 2), (8, 3)
UNTAGGED = (-1, -1)
NEVER_ANSWERED_MS = 60_000
"""The timeout of a request that another event completes. The event comes long before the timeout."""


class Broker:
    """The broker, and the requests to it from a controller, a producer and a consumer of topic ``t``."""

    def __init__(self, broker: OneBroker, node: Node) -> None:
        self.harness = broker
        self.node = node
        self.stopped_at = -1
        """The log end in the last StopReplica response."""

    # ------------------------------------------------------------ the controller

    def state(
        self, partition: int, epoch: int, layout: tuple[int, int], incarnation: int = -1
    ) -> LeaderAndIsrPartitionState:
        undeleted, version = layout
        return LeaderAndIsrPartitionState(
            partition_index=partition,
            controller_epoch=self.harness.controller_epoch,
            leader=BROKER_ID,
            leader_epoch=epoch,
            isr=[BROKER_ID],
            replicas=[BROKER_ID],
            initial_partition_count=4,
            undeleted_partition_count=undeleted,
            layout_version=version,
            incarnation=100 + partition if incarnation < 0 else incarnation,
        )

    async def lead(self, *states: LeaderAndIsrPartitionState) -> set[int]:
        """Send a LeaderAndIsr, and return the error codes."""
        response = await self.harness.leader_and_isr("t", TOPIC_ID, list(states))
        return {error.error_code for topic in response.topics for error in topic.partition_errors}

    async def has(self, layout: tuple[int, int], *partitions: int, epoch: int) -> None:
        """Give partitions a layout with a new leader epoch."""
        assert await self.lead(*[self.state(partition, epoch, layout) for partition in partitions]) == {0}

    async def stop(self, partition: int, *, leader_epoch: int, incarnation: int, delete: bool = True) -> int:
        state = StopReplicaPartitionState(
            partition_index=partition, leader_epoch=leader_epoch, delete_partition=delete, incarnation=incarnation
        )
        topics = [StopReplicaTopicState(topic_name="t", partition_states=[state])]
        epoch = self.harness.controller_epoch
        response = await self.harness.request(
            StopReplicaRequest(controller_id=1000, controller_epoch=epoch, topic_states=topics)
        )
        self.stopped_at = response.partition_errors[0].log_end_offset
        return int(response.partition_errors[0].error_code)

    async def configure(self, **config: str) -> None:
        """Alter the topic's configuration, and wait until the broker uses it."""
        names = {name.replace("_", "."): value for name, value in config.items()}
        session = self.harness.zk.session()
        await session.create(ConfigZnode.topic_path("t"), ConfigZnode(names).encode(), make_parents=True)
        change = ConfigChange("topics/t").encode()
        await session.create(paths.CONFIG_CHANGE_PREFIX, change, sequence=True, make_parents=True)
        wanted = {key: TOPIC_CONFIGS[key].parse(value) for key, value in names.items()}
        with trio.fail_after(DEADLINE_S):
            while any(self.node.dynamic.topic_value("t", key) != value for key, value in wanted.items()):
                await trio.sleep(0.005)  # polls: a watch notifies the broker

    # ------------------------------------------------------------ clients

    async def produce(
        self, partition: int, layout: tuple[int, int], records: bytes | None = None
    ) -> PartitionProduceResponse:
        response = await self.harness.request(produce_request(partition, layout, records))
        found: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return found

    async def fetch(self, *partitions: int, offset: int = 0, **fields: Any) -> FetchResponse:
        asked = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20) for index in partitions
        ]
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
        request = FetchRequest(topics=[FetchTopic(topic="t", partitions=asked)], **limits)
        response: FetchResponse = await self.harness.request(request)
        return response

    def history(self, partition: int) -> list[LayoutEntry]:
        """The stored layouts of a partition."""
        log = self.node.logs.get(TopicPartition("t", partition))
        assert log is not None
        return log.layouts.entries

    def end_offset(self, partition: int) -> int:
        """The log end offset."""
        log = self.node.logs.get(TopicPartition("t", partition))
        assert log is not None
        return log.log_end_offset


def produce_request(
    partition: int, layout: tuple[int, int], records: bytes | None = None, acks: int = -1, timeout_ms: int = 5_000
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=records or keyed(None))
    topic = TopicProduceData(
        name="t", partition_data=[data], undeleted_partition_count=layout[0], layout_version=layout[1]
    )
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])


def keyed(*keys: bytes | None, **fields: int) -> bytes:
    return build_batch([(key, b"v", (), 1_000) for key in keys], **fields)


def of_producer(sequence: int) -> bytes:
    return keyed(None, producer_id=9, producer_epoch=0, base_sequence=sequence)


def key_of(partition: int, undeleted: int) -> bytes:
    keys = (b"k%d" % number for number in range(1_000))
    return next(key for key in keys if place(positive_hash(key), 4, undeleted) == partition)


@asynccontextmanager
async def broker_of(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    zk: FakeZk | None = None,
    settings: Mapping[str, str] | None = None,
    led: Sequence[int] = range(4),
) -> AsyncIterator[Broker]:
    """A broker that leads the topic's partitions ``led`` in epoch 0."""
    nodes: list[Node] = []
    real_init = Node.__init__

    def init(self: Node, *args: Any) -> None:
        real_init(self, *args)
        nodes.append(self)

    monkeypatch.setattr(Node, "__init__", init)
    async with one_broker(directory, settings, zk) as harness:
        broker = Broker(harness, nodes[-1])
        await broker.has(FIRST, *led, epoch=0)
        yield broker
