"""The client without ``async``, for scripts and notebooks.

    from anabranch.sync import Producer

    with Producer(bootstrap_servers="localhost:9092") as p:
        handle = p.send("topic", key=b"k", value=b"v")
        print(handle.result())

Each object runs an event loop of its own in a thread (AnyIO's blocking portal). Each class has every method of its
async class, under the same name. The methods may be called from any thread, one call at a time. Rebalance listeners and
serializers run in the loop's thread.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from anabranch.client import ConsumerRecord, RecordMetadata, Records
from anabranch.client import RecordHandle as AsyncRecordHandle
from anabranch.client.errors import ClientClosedError
from anabranch.real.admin import Admin as AsyncAdmin
from anabranch.real.consumer import Consumer as AsyncConsumer
from anabranch.real.producer import Producer as AsyncProducer

__all__ = ["Admin", "Consumer", "Producer", "RecordHandle"]

T = TypeVar("T", AsyncAdmin, AsyncConsumer, AsyncProducer)


class _Blocking(Generic[T]):
    """Runs an async client on another thread's event loop. It has the client's attributes, and its methods block."""

    _factory: ClassVar[Callable[..., Any]]

    def __init__(self, *, backend: str = "asyncio", **config: Any) -> None:
        self._client: T = self._factory(**config)
        self._backend = backend
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._ended = False

    def __enter__(self) -> Self:
        if self._portal is not None:
            raise ClientClosedError(f"a {type(self).__name__} can be entered once: this one was entered before")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(self._backend))
            stack.enter_context(portal.wrap_async_context_manager(self._client))
            self._portal = portal
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._ended = self._portal is not None
        self._stack.__exit__(exc_type, exc, tb)

    def start(self) -> Self:
        """Enter, like ``with``."""
        return self.__enter__()

    def stop(self) -> None:
        """Exit, like the end of ``with``; does nothing when the client is not started or already stopped."""
        self.__exit__(None, None, None)

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a plain or async function in the loop's thread and wait for its result."""
        if self._portal is None:
            raise ClientClosedError(f"this {type(self).__name__} is used outside of `with {type(self).__name__}(...)`")
        if self._ended:
            raise ClientClosedError(f"this {type(self).__name__} is closed")
        return self._portal.call(functools.partial(function, *args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        attribute = getattr(self._client, name)
        if not inspect.ismethod(attribute):
            return attribute

        @functools.wraps(attribute)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return self._run(attribute, *args, **kwargs)

        return blocking


class RecordHandle:
    """A sent record without an acknowledgement yet."""

    def __init__(self, handle: AsyncRecordHandle, run: Callable[..., Any]) -> None:
        self._handle = handle
        self._run = run

    def done(self) -> bool:
        return self._handle.done()

    def result(self) -> RecordMetadata:
        """Wait for the acknowledgement; raises the KafkaError of a failed record."""
        metadata: RecordMetadata = self._run(self._handle.wait)
        return metadata


class Producer(_Blocking[AsyncProducer]):
    """A blocking ``anabranch.Producer``, for ``with``; ``send`` returns a handle with ``result()``."""

    _factory = AsyncProducer

    def send(self, *args: Any, **kwargs: Any) -> RecordHandle:
        """Send a record like ``anabranch.Producer.send``."""
        return RecordHandle(self._run(self._client.send, *args, **kwargs), self._run)


class Consumer(_Blocking[AsyncConsumer]):
    """A blocking ``anabranch.Consumer``, for ``with``; iterate it for records."""

    _factory = AsyncConsumer

    def __iter__(self) -> Iterator[ConsumerRecord]:
        while True:
            record: ConsumerRecord = self._run(self._client.getone)
            yield record

    def batches(self, *, max_records: int | None = None) -> Iterator[Records]:
        """Batches of records like ``anabranch.Consumer.batches``."""
        batches = self._client.batches(max_records=max_records)
        while True:
            try:
                records: Records = self._run(anext, batches)
            except StopAsyncIteration:
                return
            yield records


class Admin(_Blocking[AsyncAdmin]):
    """A blocking ``anabranch.Admin``, for ``with``."""

    _factory = AsyncAdmin
