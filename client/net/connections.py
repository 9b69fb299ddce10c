"""The connections of one client: opened on demand, reopened after a growing pause, closed when idle.

A broker answers in order. So requests that a broker may park have connections of their own: ``FETCH`` for fetches,
``GROUP`` for the coordinator, ``POSITIONS`` for the long poll to the coordinator, ``CHANGES`` for an administrator's
changes, to which the response follows once they are carried out. All other requests share ``GENERAL``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio

from anabranch.client.cluster import Node
from anabranch.client.errors import ClientClosedError, ErrorCode, KafkaError, KafkaTimeoutError, error_for
from anabranch.client.net.broker_choice import FORGIVEN_S, Load, load_of
from anabranch.client.tasks import Tasks
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.message import Message
from anabranch.protocol.message_limits import MAX_FRAME_BYTES
from anabranch.runtime.channel import Channel, Failures
from anabranch.runtime.env import Env

_log = logging.getLogger(__name__)
GENERAL = "general"
FETCH = "fetch"
GROUP = "group"
POSITIONS = "positions"
CHANGES = "changes"

IDLE = "idle for connections_max_idle_ms"
_PARKED_WITHOUT_END = float("inf")
"""The time for which brokers may hold requests back on separate connections."""
SILENT_S = 0.4
"""A response that is overdue for less time than this is ignored: a busy broker sends the response soon."""
_JITTER = 0.2
_FAILURES = Failures(
    closed=lambda peer, why: error_for(ErrorCode.NETWORK_EXCEPTION, f"{peer}: {why}"),
    late=lambda peer, why: KafkaTimeoutError(f"{peer}: {why}"),
)
"""The errors that users of a client get instead of OSError."""


def backoff_ms(attempt: int, first_ms: float, max_ms: float, random: float) -> float:
    """The pause before try number ``attempt`` (from 1): doubling, at most ``max_ms``, plus or minus 20 % (KIP-580)."""
    pause = min(first_ms * (1 << min(attempt - 1, 30)), max_ms)
    return pause * (1 - _JITTER + 2 * _JITTER * random)


class Unanswered(NamedTuple):
    """An overdue response: the time when it became overdue, on the client's clock, and a description."""

    since: float
    what: str


@dataclass(slots=True)
class _Slot:
    """One connection to a broker, or the time of the next try to open it."""

    node: Node
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    connection: Channel | None = None
    opening_since: float | None = None
    """The start of the present try to connect; None if there is none."""
    failures: int = 0
    failed_at: float = float("-inf")
    next_try: float = 0.0
    last_used: float = 0.0


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The configuration keys that matter to connections, by their names."""

    client_id: str | None
    request_timeout_ms: float
    reconnect_backoff_ms: float
    reconnect_backoff_max_ms: float
    socket_connection_setup_timeout_ms: float
    connections_max_idle_ms: float
    receive_message_max_bytes: int = MAX_FRAME_BYTES


class Connections:
    """Connections by broker id and purpose."""

    def __init__(self, env: Env, settings: ConnectionSettings, tasks: Tasks) -> None:
        self._env = env
        self._settings = settings
        self._tasks = tasks
        self._slots: dict[tuple[int, str], _Slot] = {}
        self._closed = False
        self.answered_at = float("-inf")
        """The time of the last response from any broker."""
        self.on_lost: Callable[[int], None] = lambda node_id: None
        """Called with the broker id when a connection ends or cannot be made."""

    def existing(self, node: Node, purpose: str = GENERAL) -> Channel | None:
        """The open connection to ``node``; None if there is none."""
        slot = self._slots.get((node.id, purpose))
        if slot is None or slot.connection is None or slot.connection.closed:
            return None
        slot.last_used = self._env.clock.monotonic()
        return slot.connection

    async def get(self, node: Node, purpose: str = GENERAL) -> Channel:
        """The connection to ``node``, opened if needed. Raises NETWORK_EXCEPTION if the connection cannot be opened.

        Waits for the end of the reconnect backoff first. Tasks that need the same connection wait for the same try.
        """
        slot = self._slots.setdefault((node.id, purpose), _Slot(node))
        clock = self._env.clock
        slot.last_used = clock.monotonic()
        if slot.connection is not None and not slot.connection.closed:
            return slot.connection
        async with slot.lock:
            if slot.connection is not None and not slot.connection.closed:
                return slot.connection
            await anyio.sleep(max(0.0, slot.next_try - clock.monotonic()))
            if self._closed:
                raise ClientClosedError("the client is closed")
            slot.node, slot.opening_since = node, clock.monotonic()
            try:
                slot.connection = await self._open(node, slot.failures)
            except BaseException as error:
                if isinstance(error, KafkaError):
                    _log.log(logging.DEBUG if slot.failures else logging.INFO, "%s", error.message)
                self._failed(slot)
                raise
            finally:
                slot.opening_since = None
            slot.failures = 0
            return slot.connection

    def _failed(self, slot: _Slot) -> None:
        settings = self._settings
        slot.failures += 1
        slot.failed_at = self._env.clock.monotonic()
        pause = backoff_ms(
            slot.failures,
            settings.reconnect_backoff_ms,
            settings.reconnect_backoff_max_ms,
            self._env.rng.random(),
        )
        slot.next_try = self._env.clock.monotonic() + pause / 1000

    async def _open(self, node: Node, attempt: int) -> Channel:
        """Connect and shake hands, each within ``socket_connection_setup_timeout_ms``."""
        timeout_s = self._settings.socket_connection_setup_timeout_ms / 1000
        try:
            connection = await Channel.connect(
                self._env.network,
                node.host,
                node.port,
                self._settings.client_id,
                timeout_s=timeout_s,
                attempt=attempt,
                max_frame_bytes=self._settings.receive_message_max_bytes,
                failures=_FAILURES,
                on_answer=self._on_answer,
                now=self._env.clock.monotonic,
            )
        except TimeoutError:
            self.on_lost(node.id)
            raise KafkaTimeoutError(f"no connection to {node} within {timeout_s:.1f} s") from None
        except (OSError, UnicodeError) as error:  # a name may be no name in the DNS
            self.on_lost(node.id)
            why = str(getattr(error, "strerror", None) or error).removeprefix(f"connect to {node}: ")
            raise error_for(ErrorCode.NETWORK_EXCEPTION, f"no connection to {node}: {why}") from error
        if self._closed:  # no task would read the response to the handshake
            connection.close("the client was closed")
            raise ClientClosedError("the client is closed")
        self._tasks.start_soon(self._run, node.id, connection)
        try:
            await connection.negotiate(min(timeout_s, self._settings.request_timeout_ms / 1000))
        except BaseException:
            connection.close("the handshake failed")
            raise
        return connection

    async def _run(self, node_id: int, connection: Channel) -> None:
        await connection.run()
        if not self._closed:
            if connection.closed_because != IDLE:
                _log.info("the connection to %s was lost: %s", connection.peer, connection.closed_because)
            self.on_lost(node_id)

    def _on_answer(self) -> None:
        self.answered_at = self._env.clock.monotonic()

    async def request(
        self,
        node: Node,
        body: Message,
        *,
        purpose: str = GENERAL,
        timeout_ms: float | None = None,
        min_version: int = 0,
        max_version: int | None = None,
    ) -> Any:
        """Send one request and return its response; ``timeout_ms`` None is ``request_timeout_ms``.

        Raises UNSUPPORTED_VERSION if the broker supports no version from ``min_version`` on.
        """
        connection = await self.get(node, purpose)
        if connection.version_of(body.API_KEY, max_version) < min_version:
            what = f"{node} does not support version {min_version} or above of {ApiKey(body.API_KEY).name}"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, what)
        timeout = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        parked_s = 0.0 if purpose == GENERAL else _PARKED_WITHOUT_END
        try:
            return await connection.post(body, max_version=max_version, parked_s=parked_s).wait(timeout / 1000)
        except KafkaTimeoutError:
            self._failed(self._slots[node.id, purpose])
            raise

    def unanswered(self) -> Unanswered | None:
        """The longest overdue response to a request or a handshake; None if none is overdue."""
        return min((owed for slot in self._slots.values() if (owed := self._overdue(slot))), default=None)

    def _overdue(self, slot: _Slot) -> Unanswered | None:
        """The overdue response on this connection; None if there is none."""
        if slot.opening_since is not None:
            return Unanswered(slot.opening_since, f"{slot.node} has not completed the handshake")
        pending = slot.connection.unanswered() if slot.connection is not None else None
        if pending is None or pending.due_at > self._env.clock.monotonic():
            return None
        hint = ", which may wait for replicas" if pending.api_key == ApiKey.PRODUCE else ""
        return Unanswered(pending.due_at, f"{slot.node} has not answered {ApiKey(pending.api_key).name}{hint}")

    def load(self, node: Node, purpose: str = GENERAL) -> Load:
        """The load of a broker.

        A broker is silent if a response on any connection to its address is overdue. A broker counts as failing for a
        while after a failure of its connection for ``purpose`` or of its general connection. A response that is too
        late is such a failure.
        """
        now = self._env.clock.monotonic()
        of_broker = [slot for slot in self._slots.values() if slot.node.address == node.address]
        found = [slot for use in {purpose, GENERAL} if (slot := self._slots.get((node.id, use)))]
        connections = [slot.connection for slot in found if slot.connection is not None and not slot.connection.closed]
        return load_of(
            is_silent=any((owed := self._overdue(slot)) and owed.since < now - SILENT_S for slot in of_broker),
            failures=sum(slot.failures for slot in found if now - slot.failed_at < FORGIVEN_S),
            in_flight=[connection.in_flight for connection in connections],
        )

    def close_idle(self) -> None:
        """Close connections that were not used for ``connections_max_idle_ms`` and have nothing in flight."""
        limit = self._env.clock.monotonic() - self._settings.connections_max_idle_ms / 1000
        for slot in self._slots.values():
            connection = slot.connection
            if connection is not None and connection.in_flight == 0 and slot.last_used < limit:
                connection.close(IDLE)
                slot.connection = None

    def close(self) -> None:
        """Close all; further requests fail."""
        self._closed = True
        for slot in self._slots.values():
            if slot.connection is not None:
                slot.connection.close("the client was closed")
