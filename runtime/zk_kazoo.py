"""A ZooKeeper session through kazoo, bridged to trio.

kazoo runs the protocol on one thread of its own. That thread passes results, watches and state changes to the loop by
``TrioToken.run_sync_soon``, in the order in which the server sent them. No call needs another thread. kazoo's recipes
are not used, and no other file uses kazoo.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kazoo.exceptions as kazoo_errors
import trio
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from anabranch.runtime.env import (
    BadVersionError,
    CheckOp,
    CreateOp,
    DeleteOp,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionState,
    SetOp,
    Watch,
    ZkConnectionError,
    ZkError,
    ZkOp,
    ZkSessionExpiredError,
    Znode,
)
from anabranch.runtime.metric_table import PROCESS_METRICS
from anabranch.runtime.metrics import Histogram
from anabranch.runtime.os_sockets import DEFAULT_KEEP_ALIVE_S, keep_alive
from anabranch.runtime.watchdog import Watchdog, end_process
from anabranch.runtime.zk_requests import DEFAULT_MAX_REQUEST_BYTES, check_fits, check_path_fits

_log = logging.getLogger(__name__)
_LATENCY_BOUNDS_MS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0)
_RECONNECT_DELAY_S = 0.05
_RECONNECT_MAX_DELAY_S = 1.0
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
_ERRORS: tuple[tuple[type[Exception], type[ZkError]], ...] = (
    (kazoo_errors.NoNodeError, NoNodeError),
    (kazoo_errors.NodeExistsError, NodeExistsError),
    (kazoo_errors.BadVersionError, BadVersionError),
    (kazoo_errors.NotEmptyError, NotEmptyError),
    (kazoo_errors.SessionExpiredError, ZkSessionExpiredError),
    (kazoo_errors.ConnectionLoss, ZkConnectionError),
    (kazoo_errors.OperationTimeoutError, ZkConnectionError),
    (kazoo_errors.ConnectionDropped, ZkConnectionError),
)


class _DirectQueue:
    """Replaces kazoo's queue of completions: runs each completion at once, on the connection's thread."""

    def put(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            _log.exception("zookeeper.completion_failed")


class _DirectHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threading handler without its two worker threads: callbacks only post to the loop.

    With the worker threads, results and watches would overtake each other. The connections have TCP keep-alive.
    """

    def __init__(self, keep_alive_s: float) -> None:
        super().__init__()
        self.completion_queue = _DirectQueue()
        self._keep_alive_s = keep_alive_s

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        sock = super().create_connection(*args, **kwargs)
        keep_alive(sock, self._keep_alive_s)
        return sock

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        self.completion_queue.put(lambda: callback.func(*callback.args))


@dataclass(frozen=True, slots=True)
class _WatchBridge:
    """The watch that kazoo holds. Equal callbacks have equal bridges, so a second read adds no second watch."""

    store: KazooZk
    watch: Watch

    def __call__(self, _event: object) -> None:
        self.store.post(self._fire)

    def _fire(self) -> None:
        if not self.store.closed:
            self.watch()

    def __hash__(self) -> int:
        return hash(self.watch)


class _Call:
    """A task that waits for a result. ``expired``: the session ended between the call and its result."""

    __slots__ = ("expired", "task")

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self.expired = False

    def abandon(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class KazooZk:
    """``ZkStore`` over one kazoo client. Made by ``open_zk``."""

    def __init__(self, client: Any, max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES) -> None:
        self.closed = False
        self._client = client
        self._max_request_bytes = max_request_bytes
        self._token = trio.lowlevel.current_trio_token()
        self._state = SessionState.SUSPENDED
        self._session_id = 0
        self._callbacks: dict[int, Callable[[SessionState], None]] = {}
        self._next_callback = 0
        self._expiries = 0  # the expiries that the loop has processed
        self._client_expiries = 0  # the expiries that kazoo's thread has reported
        self.latency_ms = Histogram(
            PROCESS_METRICS["kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms"], _LATENCY_BOUNDS_MS
        )
        client.add_listener(self._client_state_changed)

    # ------------------------------------------------------------ session

    @property
    def max_request_bytes(self) -> int:
        return self._max_request_bytes

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

    def close(self) -> None:
        """From now on no watch fires, no state change is reported, and every call is refused."""
        self.closed = True
        self._callbacks.clear()
        self._state = SessionState.LOST

    def post(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` in the loop; may be called on any thread."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(callback)

    def _client_state_changed(self, kazoo_state: str) -> None:
        """Called on kazoo's thread."""
        state = _STATES[kazoo_state]
        session_id = 0
        if state is SessionState.LOST:
            self._client_expiries += 1
        elif state is SessionState.CONNECTED and (client_id := self._client.client_id):
            session_id = client_id[0]
        self.post(lambda: self._enter(state, session_id))

    def _enter(self, state: SessionState, session_id: int = 0) -> None:
        if state is SessionState.CONNECTED:
            self._session_id = session_id
        if state is self._state or self.closed:
            return
        if state is SessionState.LOST:
            self._expiries += 1
        self._state = state
        for callback in list(self._callbacks.values()):
            callback(state)

    def _check_usable(self, path: str) -> None:
        """Raise ``ZkError`` without a session: kazoo would queue the request for the next session."""
        if self._state is SessionState.LOST or self._expiries != self._client_expiries:
            raise ZkSessionExpiredError(path, "the ZooKeeper session has expired")
        if self._state is SessionState.SUSPENDED:
            raise ZkConnectionError(path, "not connected to ZooKeeper; the call was not sent")

    async def _call(self, path: str, send: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Send a request and wait for its result. Raises ``ZkError``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        check_path_fits(path, self._max_request_bytes, self._client.chroot)
        self._check_usable(path)
        expiries, began = self._expiries, trio.current_time()
        result = send(*arguments, **keywords)
        call = _Call()

        def resume() -> None:
            if isinstance(result.exception, kazoo_errors.ConnectionLoss):
                self._enter(SessionState.SUSPENDED)  # kazoo fails pending calls before it reports the state
            if call.task is not None:
                call.expired = expiries != self._expiries
                trio.lowlevel.reschedule(call.task)
                call.task = None

        result.rawlink(lambda _result: self.post(resume))
        await trio.lowlevel.wait_task_rescheduled(call.abandon)
        self.latency_ms.observe((trio.current_time() - began) * 1000)
        if result.exception is not None:
            raise _translate(path, result.exception) from None
        if call.expired:
            raise ZkConnectionError(path, "the session expired during the call; the outcome is unknown")
        return result.value

    # ------------------------------------------------------------ reads

    def _bridge(self, watch: Watch | None) -> _WatchBridge | None:
        return None if watch is None else _WatchBridge(self, watch)

    async def get(self, path: str, watch: Watch | None = None) -> Znode:
        data, stat = await self._call(path, self._client.get_async, path, watch=self._bridge(watch))
        return Znode(data, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)

    async def exists(self, path: str, watch: Watch | None = None) -> Znode | None:
        stat = await self._call(path, self._client.exists_async, path, watch=self._bridge(watch))
        return None if stat is None else Znode(b"", stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return sorted(await self._call(path, self._client.get_children_async, path, watch=self._bridge(watch)))

    # ------------------------------------------------------------ writes

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        self._check_fits([CreateOp(path, data)])
        created: str = await self._call(
            path,
            self._client.create_async,
            path,
            data,
            ephemeral=ephemeral,
            sequence=sequence,
            makepath=make_parents,
        )
        return created

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        self._check_fits([SetOp(path, data)])
        stat = await self._call(path, self._client.set_async, path, data, version=version)
        return int(stat.version)

    async def delete(self, path: str, version: int = -1) -> None:
        await self._call(path, self._client.delete_async, path, version=version)

    async def multi(self, ops: Sequence[ZkOp]) -> list[int]:
        if not ops:
            return []
        self._check_fits(ops)
        transaction = self._client.transaction()
        for op in ops:
            _add(transaction, op)
        results = await self._call(ops[0].path, transaction.commit_async)
        for op, result in zip(ops, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, _BYSTANDERS):
                raise _translate(op.path, result)
        return [
            result.version if isinstance(op, SetOp) else _NEW_VERSIONS[type(op)] for op, result in zip(ops, results)
        ]

    async def sync(self, path: str) -> None:
        await self._call(path, self._client.sync_async, path)

    def _check_fits(self, ops: Sequence[ZkOp]) -> None:
        check_fits(ops, self._max_request_bytes, self._client.chroot)


_BYSTANDERS = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
"""The errors of the ops in a failed multi that did not cause the failure."""
_NEW_VERSIONS: dict[type, int] = {CreateOp: 0, DeleteOp: -1, CheckOp: -1}


def _add(transaction: Any, op: ZkOp) -> None:
    match op:
        case CreateOp(path, data, ephemeral):
            transaction.create(path, data, ephemeral=ephemeral)
        case SetOp(path, data, version):
            transaction.set_data(path, data, version)
        case DeleteOp(path, version):
            transaction.delete(path, version)
        case CheckOp(path, version):
            transaction.check(path, version)


def _translate(path: str, error: Exception) -> ZkError:
    for kazoo_type, ours in _ERRORS:
        if isinstance(error, kazoo_type):
            return ours(path, str(error))
    return ZkError(path, f"{type(error).__name__} {error}".strip())


@contextlib.asynccontextmanager
async def open_zk(
    connect_string: str,
    session_timeout_ms: int = 18_000,
    *,
    connect_timeout_ms: int | None = None,
    max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES,
    keep_alive_s: float = DEFAULT_KEEP_ALIVE_S,
    on_hang: Callable[[float], None] | None = end_process,
) -> AsyncIterator[KazooZk]:
    """Connect (``host:port,host:port/chroot``; the chroot is created) and keep a session until the block ends.

    After expiry a new session starts by itself. When the loop does not run for ``session_timeout_ms``, ``on_hang`` is
    called on a thread (None: no watchdog). ``max_request_bytes`` is the servers' ``jute.maxbuffer``. Raises
    ``ZkConnectionError`` when no server answers within ``connect_timeout_ms`` (default: the session timeout).
    """
    hosts, slash, chroot = connect_string.partition("/")
    if chroot:
        async with open_zk(
            hosts, session_timeout_ms, connect_timeout_ms=connect_timeout_ms, keep_alive_s=keep_alive_s, on_hang=None
        ) as root:
            with contextlib.suppress(NodeExistsError):
                await root.create(slash + chroot.rstrip("/"), b"", make_parents=True)
    retry = KazooRetry(max_tries=-1, delay=_RECONNECT_DELAY_S, max_delay=_RECONNECT_MAX_DELAY_S)
    client = KazooClient(
        hosts=connect_string,
        timeout=session_timeout_ms / 1000,
        handler=_DirectHandler(keep_alive_s),
        connection_retry=retry,
        command_retry=KazooRetry(),
    )
    zk = KazooZk(client, max_request_bytes)
    connected = trio.Event()
    unregister = zk.on_state(lambda state: connected.set() if state is SessionState.CONNECTED else None)
    watchdog = Watchdog(session_timeout_ms / 1000, on_hang) if on_hang is not None else None
    client.start_async()
    try:
        limit_s = (connect_timeout_ms or session_timeout_ms) / 1000
        with trio.move_on_after(limit_s):
            await connected.wait()
        if not connected.is_set():
            raise ZkConnectionError(connect_string, f"no ZooKeeper server answered within {limit_s:g} s")
        unregister()
        if watchdog is not None:
            watchdog.start()
        yield zk
    finally:
        if watchdog is not None:
            watchdog.stop()
        zk.close()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_stop, client)


def _stop(client: Any) -> None:
    """End the session, which deletes its ephemerals, and join kazoo's thread."""
    try:
        client.stop()
        client.close()
    except Exception:
        _log.warning("zookeeper.client_not_stopped", exc_info=True)
