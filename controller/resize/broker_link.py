"""Asks brokers over separate connections, so that these questions delay no other request of the controller."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from anabranch.controller.config import ControllerConfig
from anabranch.controller.image import LiveBroker
from anabranch.controller.request_batch import inter_broker_endpoint
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Network


class BrokerLink:
    """Opens a connection for each call of ``ask``."""

    def __init__(self, network: Network, config: ControllerConfig) -> None:
        self._network = network
        self._client_id = f"controller-{config.controller_id}"
        self._listener = config.inter_broker_listener_name
        self._timeout_s = config.controller_socket_timeout_ms / 1000

    async def ask(self, broker: LiveBroker, *requests: tuple[Any, int | None]) -> list[Any]:
        """The responses to requests in the given versions (None: the newest). Raises ``OSError``, ``KafkaError``."""
        async with self._open(broker) as channel:
            return [
                await channel.request(body, version=version, timeout_s=self._timeout_s) for body, version in requests
            ]

    @contextlib.asynccontextmanager
    async def _open(self, broker: LiveBroker) -> AsyncIterator[Channel]:
        endpoint = inter_broker_endpoint(broker, self._listener)
        async with Channel.open(
            self._network, endpoint.host, endpoint.port, self._client_id, timeout_s=self._timeout_s
        ) as channel:
            yield channel
