"""Connections to other brokers, for the questions that this broker asks them: readers of topics, log starts, lag."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import trio

from anabranch.broker.config import BrokerConfig
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Env


class BrokerConnections:
    """One connection to each broker, including this one. Replication and forwarded requests use other connections."""

    def __init__(self, env: Env, metadata: MetadataCache, config: BrokerConfig, purpose: str = "holds") -> None:
        self._env = env
        self._metadata = metadata
        self._listener = config.inter_broker_listener
        self._client_id = f"broker-{config.broker_id}-{purpose}"
        self._channels: dict[int, Channel] = {}
        self._connecting: defaultdict[int, trio.Lock] = defaultdict(trio.Lock)

    async def ask(self, nursery: trio.Nursery, broker_id: int, body: Any, timeout_s: float) -> Any:
        """Send a request to a broker and return its response. Raises ``OSError``, ``KafkaError``."""
        async with self._connecting[broker_id]:
            channel = await self._channel(nursery, broker_id, timeout_s)
        return await channel.request(body, timeout_s=timeout_s)

    async def _channel(self, nursery: trio.Nursery, broker_id: int, timeout_s: float) -> Channel:
        known = self._channels.get(broker_id)
        if known is not None and not known.closed:
            return known
        endpoint = self._metadata.endpoint(broker_id, self._listener)
        if endpoint is None:
            raise ConnectionError(f"broker {broker_id} is not live, or has no listener {self._listener}")
        channel = self._channels[broker_id] = await Channel.connect(
            self._env.network, endpoint.host, endpoint.port, self._client_id, timeout_s=timeout_s
        )
        nursery.start_soon(channel.run)
        return channel
