"""Connections over which a broker sends requests about held consumers to other brokers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from anabranch.broker.config import BrokerConfig
from anabranch.broker.link.broker_connections import BrokerConnections
from anabranch.broker.metadata_cache import BrokerInfo, MetadataCache
from anabranch.protocol.generated.topic_readers import TopicReadersRequest
from anabranch.runtime.channel import ChannelTimeoutError
from anabranch.runtime.env import Env
from anabranch.zk_schemas.broker_registration import Endpoint
from sim.clock import SimClock
from sim.network import SimFabric
from sim.zk import FakeZk

PEER = 2
TIMEOUT_S = 1.0


@pytest.mark.trio
async def test_requests_to_a_broker_share_one_connection_until_it_fails(autojump_clock: MockClock) -> None:
    fabric = SimFabric(random.Random(1), delay_s=lambda: 0.01)
    metadata = MetadataCache()
    metadata.brokers[PEER] = BrokerInfo(PEER, {"PLAINTEXT": Endpoint("PLAINTEXT", "peer", 1)})
    config = BrokerConfig.from_given({"broker.id": "1", "zookeeper.connect": "z", "log.dirs": "d"})
    env = Env(SimClock(), fabric.node("own"), random.Random(1), zk=FakeZk().session())
    connections = BrokerConnections(env, metadata, config)
    listener = await fabric.node("peer").listen("0.0.0.0", 1)
    accepted: list[Any] = []

    async def accept() -> None:
        while True:
            accepted.append(await listener.accept())

    async def ask_without_an_answer() -> None:
        with pytest.raises(ChannelTimeoutError):
            await connections.ask(nursery, PEER, TopicReadersRequest(topics=[]), TIMEOUT_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        for count in (1, 2):
            async with trio.open_nursery() as asking:
                for _ in range(3):
                    asking.start_soon(ask_without_an_answer)
            assert len(accepted) == count
        nursery.cancel_scope.cancel()
