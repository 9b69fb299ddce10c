"""An event loop in a daemon thread, and calls of other threads that wait for functions in the loop.

While a thread waits for its call, the loop can let it carry out the user's callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from typing import Any

import anyio
from anyio.abc import TaskGroup

from anabranch.client.errors import ClientClosedError, IllegalStateError

_log = logging.getLogger(__name__)
Errand = Callable[[], None]
_running: ContextVar[Call | None] = ContextVar("running", default=None)
"""The call that the current task carries out."""
_serving = threading.local()
"""``loops``: the loops for which the current thread carries out an errand now."""


class Call:
    """One call of a function in the loop. ``finished`` and ``result`` are for the caller's thread."""

    __slots__ = ("_abandoned", "_error", "_function", "_inbox", "_is_seen", "_on_lost", "_result", "_scope", "is_over")

    def __init__(self, function: Callable[[], Any], on_lost: Callable[[Any], None] | None = None) -> None:
        self._function = function
        self._on_lost = on_lost
        self._scope: anyio.CancelScope | None = None
        self._abandoned: BaseException | None = None
        self.is_over = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._inbox: SimpleQueue[Errand | None] = SimpleQueue()
        """Errands for the thread that waits, and None at the end."""
        self._is_seen = False

    def finished(self, timeout_s: float = -1) -> bool:
        """Wait until the call is over, and carry out errands meanwhile; False if it is not over in time.

        A signal's exception interrupts the wait.
        """
        while not self._is_seen:
            try:
                errand = self._inbox.get(timeout=None if timeout_s < 0 else timeout_s)
            except Empty:
                return False
            if errand is None:
                self._is_seen = True
            elif not self.is_over:
                errand()
        return True

    def ask(self, errand: Errand) -> None:
        """Let the thread that waits for this call carry out ``errand``."""
        self._inbox.put(errand)

    def result(self) -> Any:
        """The result of a call that is over, or its exception."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # else the exception and the frames of its traceback refer to each other
        return self._result

    async def carry_out(self) -> None:
        """Call the function, await its result if it is a coroutine, and wake the thread that waits."""
        _running.set(self)
        try:
            with anyio.CancelScope() as self._scope:
                if self._abandoned is not None:
                    self._scope.cancel()
                result = self._function()
                self._result = await result if inspect.isawaitable(result) else result
            self._error = self._abandoned
            if self._abandoned is not None and not self._scope.cancelled_caught:
                self._lose()
        except anyio.get_cancelled_exc_class():
            self._error = ClientClosedError("the client was closed during this call")
            raise
        except BaseException as error:  # of a user's callback too: it belongs to the caller, not to this thread
            self._error = error
        finally:
            self.end()

    def abandon(self, reason: BaseException) -> None:
        """Cancel the function, for a caller that does not wait any more. A result that is there already is lost."""
        if self._abandoned is not None:
            return
        self._abandoned = reason
        if not self.is_over:
            if self._scope is not None:
                self._scope.cancel()
        elif self._error is None:
            self._lose()

    def interrupt(self, reason: BaseException) -> bool:
        """Cancel the function, for another thread: the caller gets ``reason``. False if the call is over."""
        if not self.is_over:
            self.abandon(reason)
        return not self.is_over

    def _lose(self) -> None:
        result, self._result = self._result, None
        if self._on_lost is not None:
            self._on_lost(result)

    def refuse(self, reason: BaseException) -> None:
        """End a call that was not carried out."""
        if not self.is_over:
            self._error = reason
            self.end()

    def end(self) -> None:
        self.is_over = True
        self._inbox.put(None)


class LoopThread:
    """A daemon thread with an event loop. Its methods are for all other threads."""

    def __init__(self, backend: str, name: str) -> None:
        self._backend = backend
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ready = Call(lambda: None)
        self._calls: set[Call] = set()
        self._call_soon: Callable[[Callable[[], object]], object]
        self._tasks: TaskGroup
        self._stopping: anyio.Event
        self._ended = "the client is closed"

    def start(self) -> None:
        """Start the thread, and return when its loop runs."""
        self._thread.start()
        self._ready.finished()
        self._ready.result()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread: a callback. A new thread may have the number of an ended one."""
        return threading.get_ident() == self._thread.ident and self._thread.is_alive()

    @property
    def is_served(self) -> bool:
        """Whether the caller is a thread that carries out an errand of this loop: a callback in its own thread."""
        return self in getattr(_serving, "loops", ())

    async def in_caller(self, function: Callable[[], Any]) -> Any:
        """Call a plain function in the thread that waits for the current call; in the loop's if no thread waits."""
        call = _running.get()
        if call is None or call.is_over:
            return function()
        arrived = anyio.Event()
        found: list[tuple[Any, Exception | None]] = []

        def errand() -> None:
            served = getattr(_serving, "loops", ())
            _serving.loops = (*served, self)
            try:
                found.append((function(), None))
            except Exception as error:
                found.append((None, error))
            finally:
                _serving.loops = served
            with contextlib.suppress(ClientClosedError):
                self.call_soon(arrived.set)

        call.ask(errand)
        await arrived.wait()
        result, error = found[0]
        if error is not None:
            raise error
        return result

    def call(self, function: Callable[[], Any], on_lost: Callable[[Any], None] | None = None) -> Any:
        """Call a plain or async function in the loop, and wait for its result.

        The exception of a signal, such as KeyboardInterrupt, ends the wait at once and cancels the function. If the
        function had a result already, ``on_lost`` gets it, in this thread.
        """
        call = self.begin(function, on_lost)
        self.wait(call)
        return call.result()

    def begin(self, function: Callable[[], Any], on_lost: Callable[[Any], None] | None = None) -> Call:
        """Let the loop call a function, without waiting for it."""
        if self.is_current:
            raise IllegalStateError("a callback runs in the client's own thread, so it cannot wait for the client")
        call = Call(function, on_lost)
        self._calls.add(call)
        self.call_soon(functools.partial(self._start_task, self._carry_out, call))
        return call

    def run_task(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run an async function until the loop ends. Its error ends the loop, so that no call waits for it."""
        self.call_soon(functools.partial(self._start_task, function))

    def wait(self, call: Call, timeout_s: float = -1) -> bool:
        """Wait until the call is over, at most ``timeout_s``; cancel it if a signal interrupts the wait."""
        try:
            return call.finished(timeout_s)
        except BaseException as error:
            self.call_soon(functools.partial(call.abandon, error))
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a plain function in the loop, without waiting for it. Raises ClientClosedError if the loop has ended."""
        try:
            self._call_soon(function)
        except RuntimeError as ended:
            if not self.is_current:
                self.join()  # then the reason is known
            raise ClientClosedError(self._ended) from ended

    def stop(self) -> None:
        """Let the loop cancel its tasks and end, then the thread."""
        with contextlib.suppress(ClientClosedError):
            self.call_soon(self._stopping.set)

    def join(self, timeout_s: float | None = None) -> None:
        """Return when the thread has ended, or after ``timeout_s``."""
        self._thread.join(timeout_s)

    def _start_task(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        if not self._stopping.is_set():
            self._tasks.start_soon(function, *args)

    async def _carry_out(self, call: Call) -> None:
        self._calls.discard(call)
        await call.carry_out()

    def _run(self) -> None:
        try:
            anyio.run(self._host, backend=self._backend)
        except BaseException as error:
            if not self._ready.is_over:
                self._ready.refuse(error)
                return
            self._ended = f"the thread of the client ended by an error: {_first_cause(error)!r}"
            _log.error("%s", self._ended, exc_info=error)
        finally:
            for call in list(self._calls):
                call.refuse(ClientClosedError(self._ended))

    async def _host(self) -> None:
        if self._backend == "trio":
            import trio

            self._call_soon = trio.lowlevel.current_trio_token().run_sync_soon
        else:
            soon = asyncio.get_running_loop().call_soon_threadsafe
            # Not in the context of the caller, which may belong to another event loop.
            self._call_soon = functools.partial(soon, context=copy_context())
        self._stopping = anyio.Event()
        async with anyio.create_task_group() as self._tasks:
            self._ready.end()
            try:
                await self._stopping.wait()
            finally:  # also when an error ends the loop: a call that starts later would not be cancelled
                self._stopping.set()
                self._tasks.cancel_scope.cancel()


def _first_cause(error: BaseException) -> BaseException:
    """The error that ended an event loop, without the groups and errors of the loop around it."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif type(error).__name__ == "TrioInternalError" and error.__cause__ is not None:
            error = error.__cause__
        else:
            return error
