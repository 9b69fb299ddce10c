"""TCP in memory: connections with delay, split, stall, reset, refusal, cuts and dead machines. Bytes stay in order.

``SimFabric`` joins the machines; ``node(name)`` is one machine's ``Network``. Machines are reached by name;
``localhost`` and loopback addresses mean the machine itself. Bytes that a cut holds back arrive when the cut heals,
because TCP would send them again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence

import trio

from anabranch.runtime.env import DEFAULT_BACKLOG, Part
from anabranch.runtime.os_sockets import buffer_of

WINDOW_BYTES = 256 * 1024
"""A sender waits while this many bytes are in flight and not read."""
FIRST_EPHEMERAL_PORT = 40_000
UNREACHABLE_AFTER_S = 3.0
"""A connection attempt to a machine without power fails after this time."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "")
_BACKLOG = 1024


def _error(number: int, detail: str = "") -> OSError:
    return OSError(number, f"{os.strerror(number)}{f': {detail}' if detail else ''}")


class _Signal:
    """Wakes all waiters, which then check their conditions again."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def fire(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()


class _Pipe:
    """One direction of a connection: bytes with their arrival times, in order."""

    __slots__ = (
        "_fabric",
        "_last_arrival",
        "_reader",
        "_segments",
        "ended_at",
        "lost",
        "reset",
        "room",
        "source",
        "target",
        "under_way",
    )

    def __init__(self, fabric: SimFabric, source: str, target: str) -> None:
        self._fabric = fabric
        self._segments: deque[tuple[float, memoryview]] = deque()
        self._last_arrival = 0.0
        self._reader: trio.CancelScope | None = None
        """The wait of the task that reads."""
        self.source = source
        self.target = target
        self.under_way = 0
        self.ended_at: float | None = None
        self.reset = False
        self.lost = False
        """Whether one of the two machines has no power, so that nothing arrives."""
        self.room = _Signal()
        """Fires when bytes were read, and when the connection ends."""

    async def wait_until(self, when: float) -> None:
        """Wait until ``when``, which ``update`` may change, or until ``wake``. One task may wait at a time."""
        if self._reader is not None:
            raise trio.BusyResourceError("another task reads this stream")
        with trio.CancelScope(deadline=when) as self._reader:
            try:
                await trio.sleep_forever()
            finally:
                self._reader = None

    def update(self) -> None:
        """Let the reader wake at the time of the next event, which may have changed."""
        if self._reader is not None:
            self._reader.deadline = self.next_event()

    def wake(self) -> None:
        """Wake the reader and the writer at once."""
        if self._reader is not None:
            self._reader.cancel()
        self.room.fire()

    def _arrival(self) -> float:
        delay_s = self._fabric.delay_s() + self._fabric.extra_delay_s(self.source, self.target)
        self._last_arrival = max(self._last_arrival, trio.current_time() + delay_s)
        return self._last_arrival

    def write(self, data: bytes) -> None:
        self._segments.append((self._arrival(), memoryview(data)))
        self.under_way += len(data)
        self.update()

    def end(self) -> None:
        if self.ended_at is None:
            self.ended_at = self._arrival()
            self.update()
            self.room.fire()

    def break_off(self) -> None:
        self.reset = True
        self._segments.clear()
        self.wake()

    @property
    def has_ended(self) -> bool:
        """Whether the next event is the end or a reset."""
        return self.reset or (self.ended_at is not None and not self._segments)

    def next_event(self) -> float:
        """The time from which there is something to read: bytes, the end or a reset; infinite when there is nothing."""
        if self._fabric.is_cut(self.source, self.target):
            return float("inf")
        if self.reset:
            return 0.0
        if self.lost:
            return float("inf")
        if self._segments:
            return self._segments[0][0]
        return float("inf") if self.ended_at is None else self.ended_at

    def read_into(self, buffer: memoryview) -> int:
        if self.reset:
            raise _error(errno.ECONNRESET)
        if not self._segments:
            return 0
        arrival, data = self._segments.popleft()
        count = self._fabric.split(min(len(buffer), len(data)))
        buffer[:count] = data[:count]
        if count < len(data):
            self._segments.appendleft((arrival, data[count:]))
        self.under_way -= count
        self.room.fire()
        return count


class SimStream:
    """One end of a connection."""

    __slots__ = ("_closed", "_incoming", "_outgoing", "_peer", "node", "peer_node")

    def __init__(self, node: str, peer_node: str, peer: str, incoming: _Pipe, outgoing: _Pipe) -> None:
        self.node = node
        self.peer_node = peer_node
        self._peer = peer
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def closed(self) -> bool:
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise _error(errno.EBADF, "the stream was closed")

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._closed and (when := self._incoming.next_event()) > trio.current_time():
            await self._incoming.wait_until(when)
        self._check_open()

    async def receive_into(self, buffer: memoryview) -> int:
        await self.wait_readable()
        return self._incoming.read_into(buffer)

    def has_ended(self) -> bool:
        return self._closed or (self._incoming.has_ended and self._incoming.next_event() <= trio.current_time())

    async def send(self, parts: Sequence[Part]) -> None:
        await trio.lowlevel.checkpoint()
        left = list(parts)
        self._push(left)
        while left:
            await self._outgoing.room.wait()
            self._push(left)

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        left = list(parts)
        with contextlib.suppress(OSError):
            self._push(left)
        return left

    def _push(self, left: list[Part]) -> None:
        """Send as much of ``left`` as there is room for, and remove it from ``left``."""
        while left:
            self._check_open()
            if self._outgoing.reset:
                raise _error(errno.ECONNRESET)
            room = WINDOW_BYTES - self._outgoing.under_way
            if room <= 0:
                return
            view = memoryview(buffer_of(left[0])).cast("B")
            if view.nbytes:
                self._outgoing.write(bytes(view[:room]))
            if view.nbytes > room:
                left[0] = view[room:]
            else:
                del left[0]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.lost:
            self.wake()
            return
        self._outgoing.end()
        self._incoming.break_off()  # a send to a closed socket is answered with a reset

    def wake(self) -> None:
        """The network has changed: check the connection again."""
        self._incoming.wake()

    @property
    def lost(self) -> bool:
        return self._incoming.lost

    def lose(self) -> None:
        """The machine at one end loses power; the other end does not notice."""
        self._incoming.lost = self._outgoing.lost = True

    def reset(self) -> None:
        """Both ends fail; bytes in flight are lost."""
        self._incoming.break_off()
        self._outgoing.break_off()


class SimListener:
    """A listening socket."""

    def __init__(self, network: SimNetwork, host: str, port: int) -> None:
        self._network = network
        self._host = host
        self._port = port
        self._waiting: deque[SimStream] = deque()
        self._changed = _Signal()
        self._closed = False

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    @property
    def open(self) -> bool:
        return not self._closed and len(self._waiting) < _BACKLOG

    def offer(self, stream: SimStream) -> None:
        self._waiting.append(stream)
        self._changed.fire()

    async def accept(self) -> SimStream:
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise _error(errno.EBADF, "the listener was closed")
            if self._waiting:
                return self._waiting.popleft()
            await self._changed.wait()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.forget(self)
        for stream in self._waiting:
            if not stream.lost:
                stream.reset()
        self._changed.fire()


class SimNetwork:
    """One machine's ``Network``. Once the machine or its process has died, every call fails."""

    def __init__(self, fabric: SimFabric, name: str) -> None:
        self.name = name
        self.dead = False
        self.without_power = False
        self.listeners: dict[int, SimListener] = {}
        self._fabric = fabric
        self._next_port = FIRST_EPHEMERAL_PORT

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def forget(self, listener: SimListener) -> None:
        self.listeners.pop(listener.port, None)

    async def listen(
        self,
        host: str,
        port: int,
        *,
        backlog: int = DEFAULT_BACKLOG,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
    ) -> SimListener:
        await trio.lowlevel.checkpoint()
        self._check_alive()
        if port == 0:
            port = self.free_port()
        if port in self.listeners:
            raise _error(errno.EADDRINUSE, f"{host}:{port}")
        listener = SimListener(self, host or self.name, port)
        self.listeners[port] = listener
        return listener

    def _check_alive(self) -> None:
        if self.dead:
            raise _error(errno.ENETDOWN, self.name)

    async def connect(self, host: str, port: int, *, attempt: int = 0) -> SimStream:
        fabric = self._fabric
        name = fabric.find(self.name if host in _LOOPBACK else host).name
        extra_s = fabric.extra_delay_s(self.name, name) + fabric.extra_delay_s(name, self.name)
        there = trio.current_time() + fabric.delay_s() + fabric.delay_s() + extra_s
        while True:
            await trio.sleep_until(there)
            if not (fabric.is_cut(self.name, name) or fabric.is_cut(name, self.name)):
                break
            await fabric.changed.wait()
        self._check_alive()
        if fabric.find(name).without_power:
            await trio.sleep(UNREACHABLE_AFTER_S)
        target = fabric.find(name)
        if target.without_power:
            raise _error(errno.EHOSTUNREACH, f"{host}:{port}")
        listener = target.listeners.get(port)
        if listener is None or not listener.open or fabric.refuses(name):
            raise _error(errno.ECONNREFUSED, f"{host}:{port}")
        return fabric.join(self, target, listener, host)


class SimFabric:
    """The network between machines. ``delay_s`` draws the one-way delay of each piece of data."""

    def __init__(
        self, rng: random.Random, *, delay_s: Callable[[], float] = lambda: 0.0, split_probability: float = 0.0
    ) -> None:
        self.delay_s = delay_s
        self.split_probability = split_probability
        self.changed = _Signal()
        self._rng = rng
        self._nodes: dict[str, SimNetwork] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._refusing: dict[str, None] = {}
        self._streams: list[SimStream] = []

    def node(self, name: str) -> SimNetwork:
        """The machine called ``name``. The first call creates the machine. A dead machine starts again."""
        node = self._nodes.get(name)
        if node is None or node.dead:
            self._nodes[name] = SimNetwork(self, name)
            for stream in self._streams:
                if stream.lost and name in (stream.node, stream.peer_node):
                    stream.reset()  # a restarted machine resets connections that it does not know
        return self._nodes[name]

    def find(self, name: str) -> SimNetwork:
        """The machine called ``name``. Raises ``OSError`` when there is none."""
        if name not in self._nodes:
            raise OSError(errno.EHOSTUNREACH, f"{name}: no such machine")
        return self._nodes[name]

    def join(self, client: SimNetwork, server: SimNetwork, listener: SimListener, host: str) -> SimStream:
        up, down = _Pipe(self, client.name, server.name), _Pipe(self, server.name, client.name)
        near = SimStream(client.name, server.name, f"{host}:{listener.port}", down, up)
        far = SimStream(server.name, client.name, f"{client.name}:{client.free_port()}", up, down)
        self._streams = [stream for stream in self._streams if not stream.closed]
        self._streams += [near, far]
        listener.offer(far)
        return near

    def split(self, count: int) -> int:
        """How many of ``count`` bytes one receive gets."""
        if count > 1 and self._rng.random() < self.split_probability:
            return self._rng.randint(1, count)
        return count

    # ------------------------------------------------------------ faults

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def cut(self, source: str, target: str) -> None:
        """Hold back everything from ``source`` to ``target`` until the cut heals. A connect waits until then, too."""
        self._cuts[source, target] = None

    def heal(self, source: str, target: str) -> None:
        self._cuts.pop((source, target), None)
        self._wake()

    def heal_all(self) -> None:
        """End all cuts, delays and refusals."""
        self._cuts.clear()
        self._slow.clear()
        self._refusing.clear()
        self._wake()

    def extra_delay_s(self, source: str, target: str) -> float:
        return self._slow.get((source, target), 0.0)

    def slow_down(self, source: str, target: str, extra_delay_s: float) -> None:
        """From now on, delay everything from ``source`` to ``target`` by ``extra_delay_s``; 0 ends the delay."""
        self._slow[source, target] = extra_delay_s

    def refuses(self, name: str) -> bool:
        return name in self._refusing

    def refuse(self, name: str) -> None:
        """The machine refuses new connections; its open connections continue."""
        self._refusing[name] = None

    def accept(self, name: str) -> None:
        """The end of ``refuse``."""
        self._refusing.pop(name, None)

    def reset(self, one: str, other: str) -> None:
        """Every connection between two machines fails at both ends."""
        for stream in self._streams:
            if {stream.node, stream.peer_node} == {one, other}:
                stream.reset()

    def crash(self, name: str) -> None:
        """A machine dies: its connections are reset, and its listeners close."""
        for stream in self._of(name):
            stream.reset()
        self._die(name)

    def kill(self, name: str) -> None:
        """The machine's process ends as by SIGKILL: the bytes it sent arrive, then its connections end."""
        for stream in self._of(name):
            if stream.node == name:
                stream.close()
        self._die(name)

    def power_off(self, name: str) -> None:
        """The machine loses power, and its peers get no notice. ``node`` switches it on again."""
        for stream in self._of(name):
            stream.lose()
        self._die(name).without_power = True

    def _of(self, name: str) -> list[SimStream]:
        return [stream for stream in self._streams if name in (stream.node, stream.peer_node)]

    def _die(self, name: str) -> SimNetwork:
        node = self.find(name)
        node.dead = True
        for listener in list(node.listeners.values()):
            listener.close()
        return node

    def _wake(self) -> None:
        self.changed.fire()
        for stream in self._streams:
            stream.wake()
