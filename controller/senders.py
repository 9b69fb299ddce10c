"""One sender per registered broker.

A sender sends in order over one connection, and repeats each request until it is answered. A sender ends when its
broker is not registered any more. The sender's undelivered requests are dropped, because the broker gets everything
when it registers again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog
import trio

from anabranch.controller.image import LiveBroker
from anabranch.controller.request_batch import BrokerRequest
from anabranch.protocol.errors import KafkaError
from anabranch.runtime.background import Background
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Network
from anabranch.zk_schemas.broker_registration import Endpoint

logger = structlog.get_logger(__name__)
RETRY_BACKOFF_S = 0.1
"""Kafka's pause before a request to a broker is repeated."""
LONGEST_PAUSE_S = 10.0
"""The longest pause before a request is repeated after an unexpected error."""

Answered = Callable[[LiveBroker, BrokerRequest, Any], None]


@dataclass(slots=True)
class _Sender:
    broker: LiveBroker
    endpoint: Endpoint
    queue: deque[tuple[int, BrokerRequest]] = field(default_factory=deque)
    arrived: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Senders:
    """The senders of one term of office. ``answered`` is called in order per broker, for every request."""

    def __init__(
        self,
        network: Network,
        client_id: str,
        request_timeout_s: float,
        answered: Answered,
        background: Background | None = None,
    ) -> None:
        self._network = network
        self._background = background or Background()
        self._client_id = client_id
        self._request_timeout_s = request_timeout_s
        self._answered = answered
        self._senders: dict[int, _Sender] = {}
        self._nursery: trio.Nursery | None = None
        self._connected = trio.Event()
        self._connected.set()
        self.last_flush = 0
        """Number of the last batch sent."""

    def open(self, nursery: trio.Nursery) -> None:
        """Senders run in ``nursery`` from now on."""
        self._nursery = nursery

    def add(self, broker: LiveBroker, endpoint: Endpoint) -> None:
        """Start a sender for a registration. The sender of an earlier registration of the same id ends."""
        assert self._nursery is not None
        self.remove(broker.id)
        sender = _Sender(broker, endpoint)
        self._senders[broker.id] = sender
        self._nursery.start_soon(self._run, sender)

    def move(self, broker_id: int, endpoint: Endpoint) -> None:
        """Use another endpoint from the next connection on. A connection that works stays."""
        sender = self._senders.get(broker_id)
        if sender is not None:
            sender.endpoint = endpoint

    def remove(self, broker_id: int) -> None:
        """Stop sending: the broker is not registered any more."""
        sender = self._senders.pop(broker_id, None)
        if sender is not None:
            sender.scope.cancel()

    def send(self, requests: dict[int, list[BrokerRequest]]) -> int:
        """Queue a batch; returns its number."""
        self.last_flush += 1
        for broker_id in sorted(requests):
            sender = self._senders[broker_id]
            sender.queue.extend((self.last_flush, request) for request in requests[broker_id])
            sender.arrived.set()
        return self.last_flush

    def acknowledged(self, flush: int) -> bool:
        """Whether every registered broker answered every request up to this batch."""
        answered = (not sender.queue or sender.queue[0][0] > flush for sender in self._senders.values())
        return flush <= self.last_flush and all(answered)

    def suspend(self) -> None:
        """Send nothing any more: the session may be over, and another controller may be in office."""
        if self._connected.is_set():
            self._connected = trio.Event()

    def resume(self) -> None:
        self._connected.set()

    async def _run(self, sender: _Sender) -> None:
        with sender.scope:
            while True:
                try:
                    await self._connection(sender)
                except (OSError, KafkaError) as error:
                    logger.warning(
                        "broker.request_failed",
                        broker=sender.broker.id,
                        address=str(sender.endpoint),
                        error=str(error),
                    )
                except Exception as error:
                    pause_s = self._background.failed("broker-requests", sender.broker.id, error, LONGEST_PAUSE_S)
                    await trio.sleep(pause_s)
                await trio.sleep(RETRY_BACKOFF_S)

    async def _connection(self, sender: _Sender) -> None:
        """Connect once there is a request, then send until the connection fails."""
        await self._next(sender)
        host, port = sender.endpoint.host, sender.endpoint.port
        timeout_s = self._request_timeout_s
        async with Channel.open(
            self._network, host, port, self._client_id, timeout_s=timeout_s, max_in_flight=1
        ) as channel:
            await self._send_all(sender, channel)

    async def _send_all(self, sender: _Sender, channel: Channel) -> None:
        while True:
            request = await self._next(sender)
            await self._connected.wait()
            response = await channel.request(request, timeout_s=self._request_timeout_s)
            sender.queue.popleft()
            logger.debug("broker.request_answered", broker=sender.broker.id, request=type(request).__name__)
            self._background.succeeded("broker-requests", sender.broker.id)
            self._answered(sender.broker, request, response)

    async def _next(self, sender: _Sender) -> BrokerRequest:
        """The oldest request without a response. The request stays in the queue until its response arrives."""
        while not sender.queue:
            sender.arrived = trio.Event()
            await sender.arrived.wait()
        return sender.queue[0][1]
