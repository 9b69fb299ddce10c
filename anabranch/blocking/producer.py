"""The blocking producer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import anyio

from anabranch.blocking.client import BlockingClient
from anabranch.client import RecordHandle as AsyncRecordHandle
from anabranch.client import RecordMetadata
from anabranch.client.arguments import duration, function, optional
from anabranch.client.errors import KafkaError, KafkaTimeoutError
from anabranch.real.producer import Producer as AsyncProducer

_log = logging.getLogger(__name__)


class RecordHandle:
    """A sent record without an acknowledgement yet."""

    def __init__(self, handle: AsyncRecordHandle, run: Callable[..., Any]) -> None:
        self._handle = handle
        self._run = run

    def done(self) -> bool:
        return self._handle.done()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; raises the KafkaError of a failed record.

        Raises ``KafkaTimeoutError`` if there is no outcome after ``timeout`` seconds. The record may still be written.
        """
        if not self._handle.done():
            self._run(_wait, self._handle, optional(duration)("timeout", timeout))
        return self._handle.result()

    get = result

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait as ``result``. Returns the error of a failed record, or None."""
        if not self._handle.done():
            self._run(_wait, self._handle, optional(duration)("timeout", timeout))
        return self._handle.exception()

    def add_done_callback(self, callback: Callable[[RecordHandle], object]) -> None:
        """Call ``callback`` with this handle once its outcome is known; at once if it is known already.

        The call is made in the client's own thread, so it must be short, and may call no method that waits.
        """
        function("callback", callback)
        self._run(self._handle.add_done_callback, lambda _: callback(self))


async def _wait(handle: AsyncRecordHandle, timeout_s: float | None) -> None:
    """Wait until the outcome is known."""
    with anyio.move_on_after(timeout_s):
        with suppress(KafkaError):
            await handle.wait()
        return
    raise KafkaTimeoutError(f"no outcome of a record for {handle.topic} within {timeout_s} s")


class Producer(BlockingClient[AsyncProducer]):
    """A blocking ``anabranch.Producer``; ``send`` returns a handle with ``result()``. Many threads may share it.

    When the program ends without ``close``, the producer sends its records, for at most ``delivery_timeout_ms``.
    """

    _factory = AsyncProducer

    def __class_getitem__(cls, types: Any) -> type[Self]:
        """``Producer[bytes, bytes]``, for type checkers."""
        return cls

    def send(self, *args: Any, **kwargs: Any) -> RecordHandle:
        """Send a record like ``anabranch.Producer.send``."""
        return RecordHandle(self._run(self._client.send, *args, **kwargs), self._run)

    def send_batch(self, *args: Any, **kwargs: Any) -> RecordHandle:
        """Send a batch like ``anabranch.Producer.send_batch``."""
        return RecordHandle(self._run(self._client.send_batch, *args, **kwargs), self._run)

    def _longest_exit_s(self) -> float:
        return super()._longest_exit_s() + self._client.config.delivery_timeout_ms / 1000

    async def _exit_in_loop(self) -> None:
        await self._before_close()
        unsent = sum(batch.count for batch in self._client._accumulator.unresolved())
        timeout_ms = self._client.config.delivery_timeout_ms
        if unsent:
            _log.warning(
                "a Producer was not closed: the program waits up to %.0f s for its last %d records",
                timeout_ms / 1000,
                unsent,
            )
        await self._close_in_loop(timeout_ms)
