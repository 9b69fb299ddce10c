"""The base of Producer, Consumer and Admin: tasks that run as long as ``async with``, connections, metadata.

The tasks survive a cancellation of the block until ``_stop`` is done. So a cancelled member can still leave its group,
over connections that are still open.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup, TaskStatus

from anabranch.client.arguments import duration, judged, optional
from anabranch.client.config import ClientConfig
from anabranch.client.errors import ClientClosedError, ClientFailedError
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.net.connections import Connections, ConnectionSettings
from anabranch.client.net.metadata import Metadata
from anabranch.client.net.offsets import OffsetQueries
from anabranch.client.tasks import GuardedTasks, Tasks
from anabranch.runtime.env import Env

Config = TypeVar("Config", bound=ClientConfig)
_log = logging.getLogger(__name__)


@judged({"close": {"timeout_ms": optional(duration)}})
class Client(ABC, Generic[Config]):
    """Base of the clients. Subclasses define ``_start`` and ``_stop``, which run inside ``async with``."""

    def __init__(self, config: Config, env: Env) -> None:
        self._env = env
        self._config = config
        self._tasks: TaskGroup | None = None
        self._block: TaskGroup
        self._closed = False
        self._failure: ClientFailedError | None = None
        """The error of the first background task that ended by an error."""
        self._connections: Connections
        self._metadata: Metadata

    @property
    def config(self) -> Config:
        """The configuration as parsed, defaults included."""
        return self._config

    def _ensure_open(self) -> TaskGroup:
        if self._failure is not None:
            raise ClientFailedError(self._failure.client, self._failure.cause)
        if self._tasks is None or self._closed:
            name = type(self).__name__
            state = "is closed" if self._closed else f"is used outside of `async with {name}(...)` and before start()"
            raise ClientClosedError(f"this {name} {state}")
        return self._tasks

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

    async def _stop(self, clean: bool) -> None:
        """Finish running work; ``clean`` is False when an exception ends the block."""

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise ClientClosedError(f"this {type(self).__name__} was entered before, and cannot be entered twice")
        self._block = anyio.create_task_group()
        await self._block.__aenter__()
        with anyio.CancelScope(shield=True):  # a cancellation half-way would not reach the host task
            group = self._tasks = await self._block.start(_host_tasks)
        tasks = GuardedTasks(group, self._fail)
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
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        try:
            await self._close(clean=exc is None)
        finally:
            self._tasks.cancel_scope.cancel()
            # Python itself raises the exception of the block: the task group must not wrap it.
            await self._block.__aexit__(None, None, None)
        if self._failure is not None and exc is None:
            raise self._failure

    async def start(self) -> Self:
        """Start the client, as entering ``async with`` does. The same task must call ``stop``."""
        return await self.__aenter__()

    async def stop(self) -> None:
        """Stop the client, as leaving ``async with`` does. Does nothing if the client is not running."""
        if self._tasks is not None and not self._tasks.cancel_scope.cancel_called:
            await self.__aexit__(None, None, None)

    async def close(self, *, timeout_ms: float | None = None) -> None:
        """Finish and disconnect before the ``async with`` block ends. Does nothing once that is done.

        After ``timeout_ms`` unfinished work is given up: records fail, positions are not committed.
        """
        with anyio.move_on_after(None if timeout_ms is None else timeout_ms / 1000):
            await self._close(clean=True)

    async def _close(self, clean: bool) -> None:
        if self._closed:
            return
        try:
            await self._stop(clean and self._failure is None)
        finally:
            self._closed = True
            self._metadata.close()
            self._connections.close()


async def _host_tasks(*, task_status: TaskStatus[TaskGroup]) -> None:
    """A task group that is cancelled only by its own scope, not by the scope of its caller."""
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            task_status.started(tasks)
            await anyio.sleep_forever()
