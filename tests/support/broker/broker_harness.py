"""One broker on real sockets and files, with a fake ZooKeeper; the test acts as the controller.

``async with one_broker(tmp_path) as broker: await broker.create_topic("t", 2)``.
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from anabranch.broker.config import BrokerConfig, ListenerAddress
from anabranch.broker.node import Node
from anabranch.broker.process import run
from anabranch.controller.feature_level_rules import for_new_cluster
from anabranch.protocol.generated.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from anabranch.protocol.generated.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from anabranch.protocol.generated.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Env, NodeExistsError
from anabranch.runtime.real_trio import real_env
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import encode_controller_epoch
from anabranch.zk_schemas.features import SUPPORTED
from sim.zk import FakeZk

BROKER_ID = 1
CONTROLLER_EPOCH = 5
DEADLINE_S = 30.0


class OneBroker:
    """A running broker, and the requests of its controller."""

    def __init__(self, address: ListenerAddress, channel: Channel, zk: FakeZk, env: Env) -> None:
        self.host = "127.0.0.1"
        self.port = address.port
        self.channel = channel
        self.zk = zk
        self.env = env
        self._controller_epoch = int(zk.tree.read(paths.CONTROLLER_EPOCH).data)
        self.image_number = 0
        """The number of times that the controller has read the cluster."""

    @property
    def controller_epoch(self) -> int:
        """The epoch of the controller that this harness is. If it is raised, it is raised in ZooKeeper too."""
        return self._controller_epoch

    @controller_epoch.setter
    def controller_epoch(self, epoch: int) -> None:
        self._controller_epoch = epoch
        stored = self.zk.tree._node(paths.CONTROLLER_EPOCH)
        stored.data = max(stored.data, encode_controller_epoch(epoch), key=int)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    async def request(self, body: Any, version: int | None = None) -> Any:
        """Send one request on the harness's own connection."""
        return await self.channel.request(body, version=version, timeout_s=DEADLINE_S)

    async def create_topic(self, topic: str, partitions: int = 1, *, leader_epoch: int = 0) -> uuid.UUID:
        """Make the broker lead every partition of a topic, by LeaderAndIsr and UpdateMetadata."""
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, topic)
        states = [
            LeaderAndIsrPartitionState(
                partition_index=index,
                controller_epoch=self.controller_epoch,
                leader=BROKER_ID,
                leader_epoch=leader_epoch,
                isr=[BROKER_ID],
                replicas=[BROKER_ID],
                is_new=True,
            )
            for index in range(partitions)
        ]
        response = await self.leader_and_isr(topic, topic_id, states)
        codes = {error.error_code for found in response.topics for error in found.partition_errors}
        assert response.error_code == 0 and codes == {0}
        await self.update_metadata(topic, topic_id, partitions, leader_epoch=leader_epoch)
        return topic_id

    async def leader_and_isr(
        self, topic: str, topic_id: uuid.UUID, states: list[LeaderAndIsrPartitionState], *, type: int = 0
    ) -> Any:
        return await self.request(
            LeaderAndIsrRequest(
                controller_id=1000,
                controller_epoch=self.controller_epoch,
                image_number=self.image_number,
                type=type,
                topic_states=[LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=states)],
            )
        )

    async def update_metadata(
        self,
        topic: str,
        topic_id: uuid.UUID,
        partitions: int,
        *,
        leader: int = BROKER_ID,
        leader_epoch: int = 0,
        layout: tuple[int, int, int] = (-1, -1, -1),
        ordered_delivery: int = -1,
        incarnation: int = -1,
        announced: int = -1,
        refreshes: bool = False,
        topic_incarnation: int = -1,
    ) -> Any:
        """Send the broker an UpdateMetadata for a topic; ``leader`` -2 removes the topic.

        ``layout`` has the initial partition count, the undeleted partition count and the layout version. Partition 0
        has ``incarnation``, and each further partition has the next number. With ``ordered_delivery`` -1 the
        configuration decides. Stock producers may use the ``announced`` count. With ``refreshes`` the broker makes
        stock producers refresh their metadata.
        """
        states = [
            UpdateMetadataPartitionState(
                partition_index=index,
                controller_epoch=self.controller_epoch,
                leader=leader,
                leader_epoch=leader_epoch,
                isr=[BROKER_ID],
                replicas=[BROKER_ID],
                incarnation=-1 if incarnation < 0 else incarnation + index,
            )
            for index in range(partitions)
        ]
        initial, undeleted, version = layout
        described = UpdateMetadataTopicState(
            topic_name=topic,
            topic_id=topic_id,
            partition_states=states,
            initial_partition_count=initial,
            undeleted_partition_count=undeleted,
            layout_version=version,
            ordered_delivery=ordered_delivery,
            announced_partition_count=announced,
            announced_leaders=[BROKER_ID] * (announced - undeleted),
            refreshes_stock_producers=refreshes,
            topic_incarnation=topic_incarnation,
        )
        endpoint = UpdateMetadataEndpoint(host=self.host, port=self.port, listener="PLAINTEXT")
        return await self.request(
            UpdateMetadataRequest(
                controller_id=1000,
                controller_epoch=self.controller_epoch,
                topic_states=[described],
                live_brokers=[UpdateMetadataBroker(id=BROKER_ID, endpoints=[endpoint], rack=None)],
            )
        )

    async def stop_replica(self, topic: str, partition: int, *, leader_epoch: int, delete: bool) -> Any:
        state = StopReplicaPartitionState(partition_index=partition, leader_epoch=leader_epoch, delete_partition=delete)
        return await self.request(
            StopReplicaRequest(
                controller_id=1000,
                controller_epoch=self.controller_epoch,
                topic_states=[StopReplicaTopicState(topic_name=topic, partition_states=[state])],
            )
        )

    async def raw(self) -> trio.SocketStream:
        """A bare connection, for bytes that no client sends."""
        return await trio.open_tcp_stream(self.host, self.port)


@asynccontextmanager
async def one_broker(
    directory: Path, settings: Mapping[str, str] | None = None, zk: FakeZk | None = None
) -> AsyncIterator[OneBroker]:
    """Run a broker during the block, and shut it down cleanly. A second call with the same ``zk`` is a restart.

    Every feature is finalized, unless ``zk`` has other levels.
    """
    zk = zk or FakeZk()
    with suppress(NodeExistsError):
        await zk.session().create(paths.FEATURES, for_new_cluster(SUPPORTED).encode())
    with suppress(NodeExistsError):
        await zk.session().create(paths.CONTROLLER_EPOCH, encode_controller_epoch(CONTROLLER_EPOCH))
    env = real_env(zk=zk.session())
    given = {
        "broker.id": str(BROKER_ID),
        "zookeeper.connect": "fake:2181",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory),
        "controlled.shutdown.enable": "false",
        **(settings or {}),
    }
    config = BrokerConfig.from_given(given)
    ready = trio.Event()
    found: list[ListenerAddress] = []

    def on_ready(advertised: Mapping[str, ListenerAddress]) -> None:
        found.append(advertised["PLAINTEXT"])
        ready.set()

    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await run(config, env, on_ready=on_ready)

        nursery.start_soon(serve)
        with trio.fail_after(DEADLINE_S):
            await ready.wait()
        async with Channel.open(env.network, "127.0.0.1", found[0].port, client_id="harness") as channel:
            yield OneBroker(found[0], channel, zk, env)
        nursery.cancel_scope.cancel()


def frame(body: bytes) -> bytes:
    """A frame: the body with its size in front."""
    return struct.pack(">i", len(body)) + body


async def closes(stream: trio.SocketStream) -> bool:
    """Whether the peer closes the connection in time."""
    with trio.move_on_after(DEADLINE_S):
        try:
            while await stream.receive_some(65536):
                pass
        except trio.BrokenResourceError:
            return True
        return True
    return False


def set_keys(monkeypatch: pytest.MonkeyPatch, node: Node, **keys: Any) -> None:
    """Change keys of a broker that runs; ``keys`` are the fields of ``BrokerKeys``."""
    values = dataclasses.replace(node.config.values, **keys)
    monkeypatch.setattr(node, "config", dataclasses.replace(node.config, values=values))
