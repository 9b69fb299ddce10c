"""The base of Producer, Consumer and Admin: tasks that run until the client stops, connections, metadata.

The tasks run in a group of their own. So clients start and stop in any order and in any task of the event loop. A
cancellation of the user's task reaches the client's tasks only after ``_stop`` is done: a cancelled member can still
leave its group, over connections that are still open.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from weakref import WeakSet

import anyio

from anabranch.client.arguments import duration, judged, optional
from anabranch.client.config import ClientConfig
from anabranch.client.errors import ClientClosedError, ClientFailedError, ForkedClientError
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.net.connections import Connections, ConnectionSettings
from anabranch.client.net.metadata import Metadata
from anabranch.client.net.offsets import OffsetQueries
from anabranch.client.other_libraries import missing
from anabranch.client.tasks import GuardedTasks, Tasks
from anabranch.runtime.detached import DetachedGroup
from anabranch.runtime.env import Env

Config = TypeVar("Config", bound=ClientConfig)
_log = logging.getLogger(__name__)
_started: WeakSet[Client[Any]] = WeakSet()
"""The clients that were started in this process."""


@judged({"close": {"timeout_ms": optional(duration)}})
class Client(ABC, Generic[Config]):
    """Base of the clients. Subclasses define ``_start`` and ``_stop``, which run inside ``async with``."""

    def __init__(self, config: Config, env: Env) -> None:
        self._env = env
        self._config = config
        self._tasks: DetachedGroup | None = None
        self._closing: anyio.Event | None = None
        """Set when the client is closed; None while no task has begun to close it."""
        self._finishing: anyio.CancelScope
        """Contains the work of the task that began to close the client."""
        self._closed = False
        self._forked = False
        """Whether this process is a child of the process that started the client."""
        self._failure: ClientFailedError | None = None
        """The error of the first background task that ended by an error."""
        self._connections: Connections
        self._metadata: Metadata

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(missing(type(self).__name__, name), name=name, obj=self)

    @property
    def config(self) -> Config:
        """The configuration as parsed, defaults included."""
        return self._config

    def _ensure_open(self) -> None:
        if self._forked:
            raise ForkedClientError(type(self).__name__)
        if self._failure is not None:
            raise ClientFailedError(self._failure.client, self._failure.cause)
        if self._tasks is None or self._closed:
            name = type(self).__name__
            state = "is closed" if self._closed else f"is used outside of `async with {name}(...)` and before start()"
            raise ClientClosedError(f"this {name} {state}")

    def _ensure_not_closed(self) -> None:
        """Raise the error of a use after the end. Before the start there is no error."""
        if self._closed or self._tasks is not None:
            self._ensure_open()

    def _make_metadata(self, *, allow_auto_create: bool, topic_idle_ms: float = float("inf")) -> Metadata:
        config = self._config
        return Metadata(
            self._env,
            self._connections,
            config.bootstrap_servers,
            max_age_ms=config.metadata_max_age_ms,
            layout_backoff_ms=config.layout_backoff_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
            allow_auto_create=allow_auto_create,
            topic_idle_ms=topic_idle_ms,
        )

    def _make_queries(self) -> OffsetQueries:
        config = self._config
        return OffsetQueries(
            self._env,
            self._metadata,
            self._connections,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
        )

    def _make_link(self, group_id: str) -> CoordinatorLink:
        """A link to the coordinator of a group."""
        config = self._config
        return CoordinatorLink(
            self._env,
            group_id,
            self._metadata,
            self._connections,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
        )

    @abstractmethod
    async def _start(self, tasks: Tasks) -> None:
        """Create the parts and start the tasks."""

    def _fail(self, error: Exception) -> None:
        """React to the end of a background task. All later calls raise its error."""
        kind = type(self).__name__
        _log.error("a task of the %s ended by an error", kind, exc_info=error)
        if self._failure is None:
            self._failure = ClientFailedError(kind, error)
            self._metadata.close(self._failure)
            self._on_failure(self._failure)

    def _on_failure(self, failure: ClientFailedError) -> None:
        """End what waits for the background tasks."""

    def _on_fork(self) -> None:
        """React, in a child process, to a fork: nothing may be sent, and nothing will be answered."""
        self._forked = self._closed = True

    async def _stop(self, clean: bool) -> None:
        """Finish running work; ``clean`` is False when an exception ends the block."""

    async def __aenter__(self) -> Self:
        if self._tasks is not None or self._closed:
            state = "is closed" if self._closed else "was entered before, and cannot be entered twice"
            raise ClientClosedError(f"this {type(self).__name__} {state}")
        self._tasks = DetachedGroup()
        await self._tasks.open()
        tasks = GuardedTasks(self._tasks, self._fail)
        config = self._config
        settings = ConnectionSettings(
            client_id=config.client_id,
            request_timeout_ms=config.request_timeout_ms,
            reconnect_backoff_ms=config.reconnect_backoff_ms,
            reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
            socket_connection_setup_timeout_ms=config.socket_connection_setup_timeout_ms,
            connections_max_idle_ms=config.connections_max_idle_ms,
            receive_message_max_bytes=config.receive_message_max_bytes,
        )
        self._connections = Connections(self._env, settings, tasks)
        try:
            await self._start(tasks)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        _started.add(self)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._end(clean=exc is None)
        _started.discard(self)
        if self._failure is not None and exc is None:
            raise self._failure

    async def start(self) -> Self:
        """Start the client, as entering ``async with`` does. Any task of the same event loop may call ``stop``."""
        return await self.__aenter__()

    async def stop(self) -> None:
        """Stop the client, as leaving ``async with`` does. A client that was never started can then not be started."""
        if self._tasks is not None and not self._tasks.closed:
            await self.__aexit__(None, None, None)
        self._closed = True

    async def close(self, *, timeout_ms: float | None = None) -> None:
        """Finish and disconnect before the ``async with`` block ends. Does nothing once that is done.

        After ``timeout_ms`` unfinished work is given up: records fail, positions are not committed. A client that was
        never started can then not be started.
        """
        if self._tasks is not None:
            await self._end(clean=True, timeout_ms=timeout_ms)
        self._closed = True

    async def _end(self, clean: bool, timeout_ms: float | None = None) -> None:
        if self._forked:
            return  # the parent process ends it
        assert self._tasks is not None
        try:
            with anyio.move_on_after(None if timeout_ms is None else timeout_ms / 1000):
                await self._finish(clean)
        finally:
            try:
                await self._give_up()
            finally:
                await self._tasks.close()

    async def _give_up(self) -> None:
        """End the work of a task that still closes the client: it may wait for tasks that are about to end."""
        if self._closing is not None and not self._closing.is_set():
            self._finishing.cancel()
            await self._closing.wait()

    async def _finish(self, clean: bool) -> None:
        if self._closing is not None:
            await self._closing.wait()
            return
        self._closing = anyio.Event()
        try:
            with anyio.CancelScope() as self._finishing:
                await self._stop(clean and self._failure is None)
        finally:
            self._closed = True
            self._metadata.close()
            self._connections.close()
            self._closing.set()


def _in_child() -> None:
    for client in list(_started):
        client._on_fork()
    _started.clear()


os.register_at_fork(after_in_child=_in_child)
