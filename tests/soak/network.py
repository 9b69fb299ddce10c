"""A TCP proxy: every connection of a cluster on one machine goes through the proxy, which can break it.

A route leads to one listener. The sender of a connection is known from the route (a ZooKeeper route belongs to one
process), or from the client id in the first request. Rules name a sender and a receiver, so one direction can be broken
without the other. Rules apply to open and to new connections. Within a connection, bytes are never reordered or lost:
the bytes of a stalled connection arrive after ``heal``, like TCP's retransmissions.

A stuck connection is another fault: only connections that are open now keep their bytes, and ``release`` delivers them
even if the client has closed its end. Meanwhile the client has sent the same requests again on a new connection, so the
receiver gets late copies.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
MOST_KEPT_BYTES = 8 * 1024 * 1024
_CONNECT_TIMEOUT_S = 5.0
_HEADER = struct.Struct(">ihhih")
"""The head of a request: length, api key, version, correlation id, length of the client id."""
_MOST_OF_AN_ID = 256


@dataclass(eq=False, slots=True)
class _Connection:
    source: str
    target: str
    near: trio.SocketStream
    far: trio.SocketStream | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    client_id: str = ""
    """The client id in the first request."""
    released: trio.Event | None = None
    """Set when the bytes of a stuck connection may go on; None while it is not stuck."""

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

    def stick(self, client_ids: tuple[str, ...], receiver: str) -> list[_Connection]:
        """Keep what these clients send to ``receiver`` on their open connections; new connections are not affected."""
        stuck = [one for one in self._connections if one.target == receiver and one.client_id in client_ids]
        for connection in stuck:
            connection.released = trio.Event()
        return stuck

    def release(self, stuck: list[_Connection], *, deliver: bool) -> int:
        """Deliver the kept bytes, or drop them with their connections. Returns the number of connections still open."""
        still_open = [connection for connection in stuck if connection in self._connections]
        for connection in still_open:
            if deliver and connection.released is not None:
                connection.released.set()
            else:
                connection.reset()
        return len(still_open)

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
                    pumps.start_soon(self._pump, connection, connection.far, first, pumps.cancel_scope)
                    pumps.start_soon(self._pump_back, connection, connection.far, pumps.cancel_scope)
            except (OSError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass
        self._connections.discard(connection)
        for stream in (near, connection.far):
            if stream is not None:
                await trio.aclose_forcefully(stream)

    async def _pump(
        self, connection: _Connection, far: trio.SocketStream, data: bytes | bytearray, done: trio.CancelScope
    ) -> None:
        """Forward bytes to the target until either end closes. The close is delayed like the bytes before it."""
        near, sender, receiver = connection.near, connection.source, connection.target
        try:
            while True:
                await self._until_it_flows(sender, receiver)
                connection.client_id = connection.client_id or client_id_of(bytes(data[:_MOST_OF_AN_ID]))
                if connection.released is not None:
                    data = await _kept(near, data, connection.released)
                if data:
                    await far.send_all(data)
                data = await near.receive_some(CHUNK_BYTES)
                if not data:
                    await self._until_it_flows(sender, receiver)
                    if connection.released is not None:
                        await far.send_eof()  # a close with unread answers would reset, and lose, what was delivered
                        return
                    break
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        done.cancel()

    async def _pump_back(self, connection: _Connection, far: trio.SocketStream, done: trio.CancelScope) -> None:
        """Forward bytes of the target to the client. A stuck connection stays open when the client has closed it."""
        near, sender, receiver = connection.near, connection.target, connection.source
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await far.receive_some(CHUNK_BYTES):
                await self._until_it_flows(sender, receiver)
                try:
                    await near.send_all(data)
                except trio.BrokenResourceError:
                    if connection.released is None:
                        break
            await self._until_it_flows(sender, receiver)
        done.cancel()

    async def _until_it_flows(self, sender: str, receiver: str) -> None:
        while (sender, receiver) in self._stalled:
            await self._changed.wait()
        if delay_s := self._delay_s.get((sender, receiver), 0.0):
            await trio.sleep(delay_s)  # pause: the fault itself


async def _kept(near: trio.SocketStream, data: bytes | bytearray, released: trio.Event) -> bytes:
    """What the client sends from ``data`` on, until the connection is released."""
    kept = bytearray(data)
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while len(kept) < MOST_KEPT_BYTES and (more := await near.receive_some(CHUNK_BYTES)):
                    kept.extend(more)

        nursery.start_soon(read)
        await released.wait()
        nursery.cancel_scope.cancel()
    return bytes(kept)


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
    role, _, rest = client_id_of(request).partition("-")
    number = rest.partition("-")[0]
    return f"{role}-{number}" if role in ("broker", "controller") and number.isdecimal() else "clients"


def client_id_of(request: bytes) -> str:
    """The client id of a request; empty if these bytes hold none."""
    if len(request) < _HEADER.size:
        return ""
    length = _HEADER.unpack_from(request)[4]
    return request[_HEADER.size : _HEADER.size + max(length, 0)].decode("utf-8", "replace")
