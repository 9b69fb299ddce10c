"""The base of the blocking clients: when they start and end, forks, and the end of the program."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from anabranch.blocking import methods
from anabranch.blocking.loop_thread import Call, LoopThread
from anabranch.client.arguments import duration, judging, optional
from anabranch.client.errors import ClientClosedError, ForkedClientError, IllegalStateError
from anabranch.client.other_libraries import missing
from anabranch.real.admin import Admin
from anabranch.real.consumer import Consumer
from anabranch.real.producer import Producer

_log = logging.getLogger(__name__)
T = TypeVar("T", Admin, Consumer, Producer)
_UNCLEAN_END_S = 5.0
"""Seconds that the program's end waits for a client to disconnect: longer than a consumer needs to leave its group."""
_NEEDS_NO_START = frozenset({"metrics"})
_started: set[BlockingClient[Any]] = set()
"""The clients whose loop runs. They are kept until they end, because their threads end with the program."""


class BlockingClient(Generic[T]):
    """Runs an async client on the event loop of another thread. It has the client's methods, and they block.

    It starts when it is first used, or by ``start`` or ``with``. ``close``, ``stop`` and the end of ``with`` are the
    same. The methods may be called by any thread, also inside a running event loop. A ``with`` block that is left by
    an exception gives up what is unfinished.
    """

    _factory: ClassVar[type]
    """The async class."""

    def __init_subclass__(cls) -> None:
        methods.take_over(cls, cls._factory)

    def __init__(self, *args: Any, backend: str = "asyncio", **config: Any) -> None:
        """Take the arguments of the class of this name in ``anabranch``. ``backend`` is ``asyncio`` or ``trio``."""
        self._client: T = self._factory(*args, **config)
        self._backend = backend
        self._loop: LoopThread | None = None
        self._changing = threading.RLock()
        """Held while the client starts or ends."""
        self._closed = False
        self._forked = False

    # ------------------------------------------------------------ start and end

    def start(self) -> Self:
        """Start the client, like ``with``; does nothing if it is started already."""
        self._ensure_usable()
        with self._changing:
            self._ensure_usable()
            if self._loop is None:
                self._loop = self._started_loop()
                _started.add(self)
        return self

    def _started_loop(self) -> LoopThread:
        loop = LoopThread(self._backend, name=f"anabranch {type(self).__name__}")
        loop.start()
        try:
            loop.call(self._client.start)
            self._on_start(loop)
        except BaseException:
            self._closed = True
            loop.stop()
            raise
        return loop

    def stop(self) -> None:
        """The same as ``close``."""
        self.close()

    @judging({"timeout_ms": optional(duration)})
    def close(self, *, timeout_ms: float | None = None) -> None:
        """Finish and disconnect; does nothing if the client is closed already. No other call is possible from then on.

        A producer waits until its records are acknowledged or have failed, a consumer commits (with
        ``enable_auto_commit``) and leaves its group. After ``timeout_ms`` unfinished work is given up: records fail,
        positions are not committed. Ctrl-C during ``close`` does the same.
        """
        self._end(functools.partial(self._close_in_loop, timeout_ms))

    @property
    def config(self) -> Any:
        """The configuration as parsed, defaults included."""
        return self._client.config

    def __enter__(self) -> Self:
        """Start the client."""
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close the client. After an exception, also Ctrl-C, nothing is committed and records that wait fail."""
        self._end(functools.partial(self._leave_in_loop, exc))

    def _end(self, close: Callable[[], Any]) -> None:
        if self._forked:
            return  # the parent process ends it
        if self._loop is not None and (self._loop.is_current or self._loop.is_served):
            raise IllegalStateError("a callback cannot close its client, which waits for the callback")
        with self._changing:
            loop = self._loop
            was_closed, self._closed = self._closed, True
            if loop is None or was_closed:
                return
            self._on_closing()
            try:
                loop.call(close)
            except Exception:
                self._join(loop)
                raise
            except BaseException:  # a signal: the loop ends on its own
                loop.stop()
                raise
            self._join(loop)

    def _join(self, loop: LoopThread) -> None:
        loop.stop()
        loop.join()
        _started.discard(self)

    def _on_start(self, loop: LoopThread) -> None:
        """Start what runs in the loop as long as the client."""

    def _on_closing(self) -> None:
        """End what other threads wait for."""

    async def _close_in_loop(self, timeout_ms: float | None) -> None:
        """Close the client, and raise the error that ended one of its tasks."""
        await self._before_close()
        await self._client.close(timeout_ms=timeout_ms)
        await self._client.__aexit__(None, None, None)

    async def _leave_in_loop(self, exc: BaseException | None) -> None:
        """Leave the ``async with`` block of the client, with the exception that ends the block."""
        await self._before_close()
        await self._client.__aexit__(None if exc is None else type(exc), exc, None)

    async def _before_close(self) -> None:
        """Settle what the threads have under way, in the loop."""

    def _begin_exit(self) -> Call:
        """Begin to close a client that the program left open, and return the running call."""
        assert self._loop is not None
        self._closed = True
        return self._loop.begin(self._exit_in_loop)

    async def _exit_in_loop(self) -> None:
        await self._leave_in_loop(ClientClosedError("the program ended"))

    def _longest_exit_s(self) -> float:
        return _UNCLEAN_END_S

    def _on_fork(self) -> None:
        """React, in the child process, to a fork: the loop's thread exists in the parent only."""
        self._forked = True

    # ------------------------------------------------------------ calls

    def _ensure_usable(self) -> None:
        if self._forked:
            raise ForkedClientError(type(self).__name__)
        if self._closed:
            raise ClientClosedError(f"this {type(self).__name__} is closed")

    def _running(self) -> LoopThread:
        """The thread of the client, which starts now if it never did."""
        if self._loop is not None and self._loop.is_served:
            return self._loop  # a callback, perhaps while the client closes
        self._ensure_usable()
        if self._loop is None:
            self.start()
        assert self._loop is not None
        return self._loop

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a plain or async function in the loop's thread and wait for its result."""
        loop = self._running()
        if loop.is_current:
            return self._run_in_callback(function, *args, **kwargs)
        return self._cross(loop, function, args, kwargs)

    def _cross(self, loop: LoopThread, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return loop.call(functools.partial(function, *args, **kwargs))

    def _run_in_callback(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            raise IllegalStateError(
                f"a callback cannot call {function.__name__}(): it runs in the thread that would carry it out"
            )
        return function(*args, **kwargs)

    def _forward(self, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of the async client in the loop's thread."""
        method = getattr(self._client, name)
        if name in _NEEDS_NO_START and self._loop is None:
            self._ensure_usable()
            return method(*args, **kwargs)  # it raises: nothing has been started
        return self._run(method, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing(type(self).__name__, name), name=name, obj=self)


@atexit.register
def _end_all() -> None:
    """End the clients that are still open when the program ends: producers send their records, consumers leave."""
    left = list(_started)
    calls = []
    for client in left:
        with contextlib.suppress(ClientClosedError):  # its thread ended by an error, which the log has
            if not client._closed:
                calls.append((client, client._begin_exit()))
    for client, call in calls:
        assert client._loop is not None
        client._loop.wait(call, client._longest_exit_s())
    for client in left:
        if client._loop is not None:
            client._loop.stop()
            client._loop.join(_UNCLEAN_END_S)


def _in_child() -> None:
    for client in list(_started):
        client._on_fork()
    _started.clear()


os.register_at_fork(after_in_child=_in_child)
