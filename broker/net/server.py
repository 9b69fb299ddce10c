"""The listeners accept connections within the limits, serve each in a task, and close overdue connections."""

from __future__ import annotations

import math
from collections import Counter

import structlog
import trio

from anabranch.broker.config import ListenerAddress
from anabranch.broker.net.connection import Connection
from anabranch.broker.net.dispatch import Dispatcher
from anabranch.broker.node import Node
from anabranch.protocol.framing import BufferPool
from anabranch.runtime.accepting import accept_connections
from anabranch.runtime.background import Background
from anabranch.runtime.env import Listener, Stream
from anabranch.runtime.wake_ups import WakeUps
from anabranch.zk_schemas.config_def import ConfigError

logger = structlog.get_logger(__name__)

_SWEEPS_PER_IDLE_TIME = 10
MAX_SWEEP_S = 10.0
_LIMIT_CHECK_S = 1.0
"""The longest time until a listener at ``max.connections`` notices that the limit was raised."""


class Server:
    """All listeners of a broker and their connections."""

    def __init__(self, node: Node, dispatcher: Dispatcher, background: Background | None = None) -> None:
        self._node = node
        self._background = background or Background()
        self._dispatcher = dispatcher
        self._pool = BufferPool()
        self._listeners: dict[str, Listener] = {}
        self._connections: dict[Connection, None] = {}
        self._per_host: Counter[str] = Counter()
        self._fewer = WakeUps()
        self.accepted: Counter[str] = Counter()
        """The number of connections accepted so far, by listener. ``closed`` is the number that have ended."""
        self.closed: Counter[str] = Counter()
        self.refused = 0

    async def listen(self) -> None:
        """Bind every listener. Raises ``OSError``."""
        values = self._node.config.values
        try:
            for entry in self._node.config.listeners:
                listener = await self._node.env.network.listen(
                    entry.host,
                    entry.port,
                    backlog=values.socket_listen_backlog_size,
                    send_buffer_bytes=values.socket_send_buffer_bytes,
                    receive_buffer_bytes=values.socket_receive_buffer_bytes,
                )
                self._listeners[entry.name] = listener
        except BaseException:
            self.close_listeners()
            raise

    def advertised(self) -> dict[str, ListenerAddress]:
        """The present addresses of this broker, by listener name. Port 0 is replaced by the port that was bound."""
        config = self._node.config
        try:
            shown = config.advertised_as(self._node.dynamic.values.advertised_listeners)
        except ConfigError as error:
            logger.error("config.refused", where="/config/brokers", error=str(error))
            shown = config.advertised
        return {
            name: entry if entry.port else entry._replace(port=self._listeners[name].port)
            for name, entry in shown.items()
        }

    def close_listeners(self) -> None:
        """Stop accepting connections."""
        for listener in self._listeners.values():
            listener.close()

    async def run(self) -> None:
        """Accept and sweep until cancelled."""
        async with trio.open_nursery() as nursery:
            for name, listener in self._listeners.items():
                nursery.start_soon(self._accept, name, listener, nursery)
            nursery.start_soon(self._sweep)

    async def _accept(self, name: str, listener: Listener, nursery: trio.Nursery) -> None:
        # A separate listener for the controller and brokers has no limit, so that clients cannot keep these out.
        limited = len(self._listeners) == 1 or name != self._node.config.inter_broker_listener

        async def room() -> None:
            while limited and len(self._connections) >= self._node.dynamic.values.max_connections:
                with trio.move_on_after(_LIMIT_CHECK_S):
                    await self._fewer.wait()

        def take(stream: Stream) -> None:
            self._admit(name, stream, nursery)

        await accept_connections(name, listener, self._background, take, room)

    def _admit(self, name: str, stream: Stream, nursery: trio.Nursery) -> None:
        connection = Connection(self._node, self._dispatcher, self._node.request_memory, name, stream, self._pool)
        host = connection.client_host
        if self._per_host[host] >= self._node.dynamic.values.max_connections_per_ip:
            logger.warning("connection.refused", client=stream.peer, reason="max.connections.per.ip")
            stream.close()
            self.refused += 1
            return
        self.accepted[name] += 1
        self._connections[connection] = None
        self._per_host[host] += 1
        nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception:
            logger.exception("connection.failed", client=connection.client_host)
        finally:
            del self._connections[connection]
            self.closed[connection.listener] += 1
            self._per_host[connection.client_host] -= 1
            if not self._per_host[connection.client_host]:
                del self._per_host[connection.client_host]
            self._fewer.wake()

    async def _sweep(self) -> None:
        """Close overdue connections at regular intervals."""
        max_idle_ms = self._node.config.values.connections_max_idle_ms
        max_idle_s = math.inf if max_idle_ms < 0 else max_idle_ms / 1000
        while True:
            await trio.sleep(min(max_idle_s / _SWEEPS_PER_IDLE_TIME, MAX_SWEEP_S))
            now = self._node.env.clock.monotonic()
            for connection in list(self._connections):
                with self._background.guard("idle-connections", connection.client_host):
                    reason = connection.overdue(now, max_idle_s)
                    if reason is not None:
                        connection.close(reason)
