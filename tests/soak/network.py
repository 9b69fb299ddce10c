"""A TCP proxy: every connection of a cluster on one machine goes through the proxy, which can break it.

A route leads to one listener. The sender of a connection is known from the route (a ZooKeeper route belongs to one
process), or from the client id in the first request. Rules name a sender and a receiver, so one direction can be broken
without the other. Rules apply to open and to new connections. Within a connection, bytes are never reordered or lost:
the bytes of a stalled connection arrive after ``heal``, like TCP's retransmissions.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from functools import partial

import trio

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
_CONNECT_TIMEOUT_S = 5.0
_HEADER = struct.Struct(">ihhih")
"""The head of a request: length, api key, version, correlation id, length of the client id."""


@dataclass(eq=False, slots=True)
class _Connection:
    source: str
    target: str
    near: trio.SocketStream
    far: trio.SocketStream | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def joins(self, one: str, other: str) -> bool:
        return {one, other} == {self.source, self.target}

    def reset(self) -> None:
        """Reset the connection at both ends at once."""
        for stream in (self.near, self.far):
            if stream is not None:
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.scope.cancel()


class FaultyNetwork:
    """The routes and their faults. Names are those of processes; ``clients`` means all clients."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._connections: set[_Connection] = set()
        self._cut: set[frozenset[str]] = set()
        self._stalled: set[tuple[str, str]] = set()
        self._delay_s: dict[tuple[str, str], float] = {}
        self._changed = trio.Event()

    async def route(self, target: str, port: int, source: str | None = None) -> int:
        """Listen for connections to ``target`` on ``port`` and return the port of the proxy.

        Without ``source`` the client id of the first request gives the sender: ``broker-1-fetcher`` is ``broker-1``.
        """
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        handler = partial(self._serve, target=target, port=port, source=source)
        self._nursery.start_soon(partial(trio.serve_listeners, handler, listeners, handler_nursery=self._nursery))
        return int(listeners[0].socket.getsockname()[1])

    # ------------------------------------------------------------ faults

    def cut(self, one: str, other: str) -> None:
        """Reset all open connections between the two, and each new connection until ``heal``."""
        self._cut.add(frozenset((one, other)))
        self.reset(one, other)

    def stall(self, sender: str, receiver: str) -> None:
        """Deliver no more bytes in this direction until ``heal``; the connections stay open."""
        self._stalled.add((sender, receiver))

    def delay(self, sender: str, receiver: str, delay_s: float) -> None:
        """Delay each piece in this direction by ``delay_s``, until ``heal``."""
        self._delay_s[sender, receiver] = delay_s

    def reset(self, one: str, other: str) -> None:
        """Reset the open connections between the two, once."""
        for connection in list(self._connections):
            if connection.joins(one, other):
                connection.reset()

    def heal(self, one: str, other: str) -> None:
        """Undo all faults between the two."""
        self._cut.discard(frozenset((one, other)))
        for pair in ((one, other), (other, one)):
            self._stalled.discard(pair)
            self._delay_s.pop(pair, None)
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    # ------------------------------------------------------------ connections

    async def _serve(self, near: trio.SocketStream, *, target: str, port: int, source: str | None) -> None:
        connection = _Connection(source or "", target, near)
        with connection.scope:
            try:
                first = b""
                if source is None:
                    first = await _first_request(near)
                    connection.source = sender_of(first)
                self._connections.add(connection)
                if frozenset((connection.source, target)) in self._cut:
                    connection.reset()
                with trio.fail_after(_CONNECT_TIMEOUT_S):
                    connection.far = await trio.open_tcp_stream(HOST, port)
                async with trio.open_nursery() as pumps:
                    for pump in (
                        (near, connection.far, connection.source, target, first),
                        (connection.far, near, target, connection.source, b""),
                    ):
                        pumps.start_soon(self._pump, *pump, pumps.cancel_scope)
            except (OSError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass
        self._connections.discard(connection)
        for stream in (near, connection.far):
            if stream is not None:
                await trio.aclose_forcefully(stream)

    async def _pump(
        self,
        reader: trio.SocketStream,
        writer: trio.SocketStream,
        sender: str,
        receiver: str,
        data: bytes | bytearray,
        done: trio.CancelScope,
    ) -> None:
        """Forward bytes until either end closes. The close is delayed like the bytes before it."""
        try:
            while True:
                while (sender, receiver) in self._stalled:
                    await self._changed.wait()
                if delay_s := self._delay_s.get((sender, receiver), 0.0):
                    await trio.sleep(delay_s)  # pause: the fault itself
                if data:
                    await writer.send_all(data)
                data = await reader.receive_some(CHUNK_BYTES)
                if not data:
                    while (sender, receiver) in self._stalled:
                        await self._changed.wait()
                    break
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        done.cancel()


async def _first_request(stream: trio.SocketStream) -> bytes:
    """The bytes up to the end of the client id in the first request, or to the end of the connection."""
    data = b""
    while len(data) < _HEADER.size or len(data) < _HEADER.size + _HEADER.unpack_from(data)[4]:
        piece = await stream.receive_some(CHUNK_BYTES)
        if not piece:
            break
        data += piece
    return data


def sender_of(request: bytes) -> str:
    """The sender of a request: a name like ``broker-1`` or ``controller-1000``, or ``clients`` for any other sender."""
    if len(request) < _HEADER.size:
        return "clients"
    length = _HEADER.unpack_from(request)[4]
    client_id = request[_HEADER.size : _HEADER.size + max(length, 0)].decode("utf-8", "replace")
    role, _, rest = client_id.partition("-")
    number = rest.partition("-")[0]
    return f"{role}-{number}" if role in ("broker", "controller") and number.isdecimal() else "clients"
