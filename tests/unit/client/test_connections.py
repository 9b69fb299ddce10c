"""A client's connections: the address with which each try to connect begins."""

from __future__ import annotations

import dataclasses
from typing import Any

import anyio
import pytest

from anabranch.client.cluster import Node
from anabranch.client.errors import KafkaError
from anabranch.client.net.connections import Connections, ConnectionSettings
from anabranch.runtime.real_anyio import client_env


async def test_each_try_to_connect_begins_with_another_address() -> None:
    """An address may accept the connection and never complete the handshake."""

    class Refusing:
        def __init__(self) -> None:
            self.attempts: list[int] = []

        async def connect(self, host: str, port: int, *, attempt: int = 0) -> Any:
            self.attempts.append(attempt)
            raise ConnectionRefusedError("refused")

    network: Any = Refusing()
    settings = ConnectionSettings(None, 1000, 0, 0, 1000, 1000)
    async with anyio.create_task_group() as tasks:
        connections = Connections(dataclasses.replace(client_env(), network=network), settings, tasks)
        for _ in range(3):
            with pytest.raises(KafkaError, match="refused"):
                await connections.get(Node(1, "broker-1", 9092))
    assert network.attempts == [0, 1, 2]
