"""The blocking producer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from anabranch.blocking.client import BlockingClient
from anabranch.client import RecordHandle as AsyncRecordHandle
from anabranch.client import RecordMetadata
from anabranch.real.producer import Producer as AsyncProducer

_log = logging.getLogger(__name__)


class RecordHandle:
    """A sent record without an acknowledgement yet."""

    def __init__(self, handle: AsyncRecordHandle, run: Callable[..., Any]) -> None:
        self._handle = handle
        self._run = run

    def done(self) -> bool:
        return self._handle.done()

    def result(self) -> RecordMetadata:
        """Wait for the acknowledgement; raises the KafkaError of a failed record."""
        if self._handle.done():
            return self._handle.outcome()
        metadata: RecordMetadata = self._run(self._handle.wait)
        return metadata


class Producer(BlockingClient[AsyncProducer]):
    """A blocking ``anabranch.Producer``; ``send`` returns a handle with ``result()``. Many threads may share it.

    When the program ends without ``close``, the producer sends its records, for at most ``delivery_timeout_ms``.
    """

    _factory = AsyncProducer

    def send(self, *args: Any, **kwargs: Any) -> RecordHandle:
        """Send a record like ``anabranch.Producer.send``."""
        return RecordHandle(self._run(self._client.send, *args, **kwargs), self._run)

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
