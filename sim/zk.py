"""ZooKeeper in the same event loop: sessions that disconnect and expire, ephemerals, watches, transactions.

``FakeZk`` is the server, ``session()`` a client's ``ZkStore``. Requests and responses travel on two lines. Each line
keeps its order and has its own delays, so a response can be lost after the write was applied.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import trio

from anabranch.runtime.env import (
    CreateOp,
    DeleteOp,
    SessionState,
    SetOp,
    Watch,
    ZkConnectionError,
    ZkError,
    ZkOp,
    ZkSessionExpiredError,
    Znode,
)
from anabranch.runtime.zk_requests import DEFAULT_MAX_REQUEST_BYTES, check_fits, check_path_fits
from sim.zk_tree import WatchedChange, WatchEvent, ZnodeTree

T = TypeVar("T")
DelayS = Callable[[], float]
DEFAULT_TIMEOUT_MS = 18_000


def no_delay() -> float:
    return 0.0


class _Line:
    """Carries callbacks in order, each after a delay, and drops the undelivered ones when it is cut."""

    def __init__(self, delay_s: DelayS) -> None:
        self._delay_s = delay_s
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()
        self._last_arrival = 0.0
        self._draining = False
        self.held = False
        """Whether the receiver is stopped, so that callbacks wait for it."""

    def send(self, callback: Callable[[], None]) -> None:
        self._last_arrival = max(self._last_arrival, trio.current_time() + self._delay_s())
        self._queue.append((self._last_arrival, callback))
        self._start()

    def _start(self) -> None:
        if not self._draining:
            self._draining = True
            trio.lowlevel.spawn_system_task(self._drain)

    def release(self) -> None:
        self.held = False
        self._start()

    def cut(self) -> None:
        self._queue.clear()

    async def _drain(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._queue and not self.held:
            arrival, callback = self._queue[0]
            if arrival > trio.current_time():
                await trio.sleep_until(arrival)
                continue
            self._queue.popleft()
            callback()
        self._draining = False


class _Call:
    """A request without a response, and the task that waits for it."""

    __slots__ = ("done", "error", "result")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: Any = None
        self.error: ZkError | None = None

    def settle(self, result: Any = None, error: ZkError | None = None) -> None:
        self.result, self.error = result, error
        self.done.set()


class _Loss(enum.Enum):
    """The message of the next write that is lost with the connection."""

    REQUEST = "request"
    ANSWER = "answer"


class FakeZk:
    """The server. Sessions are served in the order in which they were created, so a seed gives one history."""

    def __init__(self, delay_s: DelayS = no_delay, max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES) -> None:
        self.tree = ZnodeTree()
        self.max_request_bytes = max_request_bytes
        self._delay_s = delay_s
        self._last_session_id = 0
        self._clients: list[FakeSession] = []
        self._live: dict[int, None] = {}

    def session(self, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> FakeSession:
        """A new, connected client."""
        client = FakeSession(self, timeout_ms, self._delay_s)
        self._clients.append(client)
        return client

    def stop(self) -> None:
        """Stop the server: every client is disconnected until ``start``. No session expires meanwhile."""
        for client in self._clients:
            client.disconnect(server_down=True)

    def start(self) -> None:
        for client in self._clients:
            client.reconnect()

    def is_live(self, session_id: int) -> bool:
        return session_id in self._live

    def new_session_id(self) -> int:
        self._last_session_id += 1
        self._live[self._last_session_id] = None
        return self._last_session_id

    def end_session(self, session_id: int) -> None:
        """End a session, and delete its ephemerals in one transaction each."""
        if self._live.pop(session_id, 0) == 0:
            return
        for path in self.tree.ephemerals(session_id):
            _versions, events = self.tree.multi([DeleteOp(path)], 0)
            self.publish(events)

    def publish(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            for client in self._clients:
                client.notify(event)

    def forget(self, client: FakeSession) -> None:
        if client in self._clients:
            self._clients.remove(client)


class FakeSession:
    """``ZkStore`` on a ``FakeZk``. The methods after ``sync`` inject faults; processes under test do not call them."""

    def __init__(self, server: FakeZk, timeout_ms: int, delay_s: DelayS) -> None:
        self._server = server
        self._timeout_s = timeout_ms / 1000
        self._state = SessionState.CONNECTED
        self._session_id = server.new_session_id()
        self._to_server = _Line(delay_s)
        self._to_client = _Line(delay_s)
        self._calls: dict[_Call, str] = {}
        self._watches: dict[WatchEvent, dict[Watch, None]] = {}
        self._on_their_way: list[Watch] = []
        """Fired watches. They are called when their events reach the client, or when the line is cut."""
        self._callbacks: dict[int, Callable[[SessionState], None]] = {}
        self._next_callback = 0
        self._connection = 1  # grows with every connect and disconnect
        self._closed = False
        self._lose_next: _Loss | None = None

    # ------------------------------------------------------------ ZkStore

    @property
    def max_request_bytes(self) -> int:
        return self._server.max_request_bytes

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        return self._session_id

    def on_state(self, callback: Callable[[SessionState], None]) -> Callable[[], None]:
        number = self._next_callback
        self._next_callback += 1
        self._callbacks[number] = callback
        return lambda: self._callbacks.pop(number, None) and None

    async def get(self, path: str, watch: Watch | None = None) -> Znode:
        def apply() -> Znode:
            node = self._server.tree.read(path)
            self._watch(WatchEvent(WatchedChange.DATA, path), watch)
            return node

        return await self._call(path, apply)

    async def exists(self, path: str, watch: Watch | None = None) -> Znode | None:
        def apply() -> Znode | None:
            node = self._server.tree.find(path)
            self._watch(WatchEvent(WatchedChange.DATA, path), watch)
            return None if node is None else Znode(b"", node.version, node.czxid, node.mzxid, node.ephemeral_owner)

        return await self._call(path, apply)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def apply() -> list[str]:
            names = self._server.tree.children(path)
            self._watch(WatchEvent(WatchedChange.CHILDREN, path), watch)
            return names

        return await self._call(path, apply)

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        check_fits([CreateOp(path, data)], self.max_request_bytes)

        def apply() -> str:
            owner = self._session_id if ephemeral else 0
            created, events = self._server.tree.create(path, data, owner, sequence=sequence, make_parents=make_parents)
            self._server.publish(events)
            return created

        return await self._call(path, apply, write=True)

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        return (await self.multi([SetOp(path, data, version)]))[0]

    async def delete(self, path: str, version: int = -1) -> None:
        await self.multi([DeleteOp(path, version)])

    async def multi(self, ops: Sequence[ZkOp]) -> list[int]:
        if not ops:
            return []
        check_fits(ops, self.max_request_bytes)

        def apply() -> list[int]:
            versions, events = self._server.tree.multi(ops, self._session_id)
            self._server.publish(events)
            return versions

        return await self._call(ops[0].path, apply, write=True)

    async def sync(self, path: str) -> None:
        await self._call(path, lambda: None)

    # ------------------------------------------------------------ faults

    def disconnect(self, *, server_down: bool = False) -> None:
        """Cut the connection until ``reconnect``. Without ``reconnect``, the session expires by its timeout.

        With ``server_down`` the session does not expire, because no server measures the time.
        """
        if self._closed or self._state is not SessionState.CONNECTED:
            return
        self._connection += 1
        self._to_server.cut()
        self._to_client.cut()
        calls, self._calls = self._calls, {}
        for call, path in calls.items():
            call.settle(error=ZkConnectionError(path, "connection lost; the outcome is unknown"))
        self._enter(SessionState.SUSPENDED)
        undelivered, self._on_their_way = self._on_their_way, []
        watches, self._watches = self._watches, {}
        for callbacks in (undelivered, *watches.values()):
            for watch in callbacks:
                watch()
        if not server_down:
            trio.lowlevel.spawn_system_task(self._time_out, self._connection, self._session_id)

    def reconnect(self) -> None:
        """Connect again with the old session. If that is expired, the client is LOST and soon gets a new session."""
        if self._closed or self._state is SessionState.CONNECTED:
            return
        if not self._server.is_live(self._session_id):
            self._enter(SessionState.LOST)
            trio.lowlevel.spawn_system_task(self._connect_anew)
            return
        self._connection += 1
        self._enter(SessionState.CONNECTED)

    def expire(self) -> None:
        """The server ends the session now; the client notices at once and gets a new one."""
        if self._closed:
            return
        self.disconnect()
        self._server.end_session(self._session_id)
        self.reconnect()

    def freeze(self) -> None:
        """The process is stopped: it receives nothing and sends no heartbeats, so its session expires by its timeout.

        Its own view of the session does not change until a little after ``thaw``.
        """
        if self._closed or self._to_client.held:
            return
        self._to_client.held = True
        if self._state is SessionState.CONNECTED:
            trio.lowlevel.spawn_system_task(self._time_out_frozen, self._connection, self._session_id)

    def thaw(self) -> None:
        """The process continues. If its session has expired, the process is notified after the delay of a response."""
        if not self._to_client.held:
            return
        if self._closed or self._state is not SessionState.CONNECTED or self._server.is_live(self._session_id):
            self._to_client.release()
            return
        self._to_client.cut()
        self._to_client.send(self._notice_expiry)
        self._to_client.release()

    def lose_next_request(self) -> None:
        """The next write does not reach the server: the connection breaks first."""
        self._lose_next = _Loss.REQUEST

    def lose_next_answer(self) -> None:
        """The next write is applied, and the connection breaks before its response."""
        self._lose_next = _Loss.ANSWER

    def lose_nothing(self) -> None:
        """Cancel ``lose_next_request`` and ``lose_next_answer``, unless a write was lost already."""
        self._lose_next = None

    def close(self) -> None:
        """The client closes its session, which ends at once. No callback is called any more."""
        self._leave()
        self._server.end_session(self._session_id)

    def crash(self) -> None:
        """The process dies: no callback is called any more, and the session expires by its timeout."""
        self._leave()
        trio.lowlevel.spawn_system_task(self._time_out, self._connection, self._session_id)

    # ------------------------------------------------------------ inside

    def notify(self, event: WatchEvent) -> None:
        """The server reports a change: fire the watches on the change, once."""
        for watch in self._watches.pop(event, ()):
            self._on_their_way.append(watch)
            self._to_client.send(partial(self._deliver, watch))

    def _deliver(self, watch: Watch) -> None:
        self._on_their_way.remove(watch)
        watch()

    def _watch(self, event: WatchEvent, watch: Watch | None) -> None:
        if watch is not None:
            self._watches.setdefault(event, {})[watch] = None

    def _enter(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        for callback in list(self._callbacks.values()):
            callback(state)

    def _leave(self) -> None:
        self._closed = True
        self._connection += 1
        self._state = SessionState.LOST
        self._callbacks.clear()
        self._watches.clear()
        self._on_their_way.clear()
        self._to_server.cut()
        self._to_client.cut()
        calls, self._calls = self._calls, {}
        for call, path in calls.items():
            call.settle(error=ZkConnectionError(path, "the client was closed"))
        self._server.forget(self)

    async def _time_out(self, connection: int, session_id: int) -> None:
        await trio.sleep(self._timeout_s)
        if self._connection == connection:
            self._server.end_session(session_id)

    async def _time_out_frozen(self, connection: int, session_id: int) -> None:
        await trio.sleep(self._timeout_s)
        if self._connection == connection and self._to_client.held:
            self._server.end_session(session_id)

    def _notice_expiry(self) -> None:
        self.disconnect()
        self.reconnect()

    async def _connect_anew(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed or self._state is not SessionState.LOST:
            return
        self._connection += 1
        self._session_id = self._server.new_session_id()
        self._enter(SessionState.CONNECTED)

    async def _call(self, path: str, apply: Callable[[], T], *, write: bool = False) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        check_path_fits(path, self.max_request_bytes)
        if self._closed or self._state is SessionState.LOST:
            raise ZkSessionExpiredError(path, "the session has expired")
        if self._state is SessionState.SUSPENDED:
            raise ZkConnectionError(path, "not connected; the call was not sent")
        call = _Call()
        self._calls[call] = path

        def answer(result: Any, error: ZkError | None) -> None:
            del self._calls[call]
            call.settle(result, error)

        def arrive() -> None:
            lost, self._lose_next = (self._lose_next, None) if write else (None, self._lose_next)
            if lost is _Loss.REQUEST:
                return self.disconnect()
            if not self._server.is_live(self._session_id):
                return None  # a frozen process does not know yet that its session has expired
            try:
                result, error = apply(), None
            except ZkError as caught:
                result, error = None, caught
            if lost is _Loss.ANSWER:
                return self.disconnect()
            return self._to_client.send(lambda: answer(result, error))

        self._to_server.send(arrive)
        await call.done.wait()
        if call.error is not None:
            raise call.error
        return cast(T, call.result)
