"""``confluent_kafka.Producer`` over the blocking producer."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import anyio

from anabranch.blocking.producer import Producer as BlockingProducer
from anabranch.client import RecordMetadata, errors
from anabranch.confluent.config import named_as_given, producer_options
from anabranch.confluent.errors import CODES, KafkaError, error_of, translated
from anabranch.confluent.limits import limit
from anabranch.confluent.messages import ClusterMetadata, Message, cluster_metadata, timestamp_of
from anabranch.confluent.missing import missing
from anabranch.protocol.batch_layout import Header

Delivered = Callable[[KafkaError | None, Message], object]
Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]
_Report = tuple[object, Delivered, KafkaError | None, Message]


class Producer:
    """A producer with ``produce``, whose delivery callbacks run in ``poll`` and ``flush``. Many threads may share it.

    Records are sent without ``poll``. A program that ends without ``flush`` sends them too, but runs no callback.
    """

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        given = {**(conf or {}), **more}
        with translated(), named_as_given(given):
            options, self._most, self._callback = producer_options(given)
            self._producer = BlockingProducer(**options)
        self._reports: queue.SimpleQueue[_Report] = queue.SimpleQueue()
        """The callbacks that are due."""
        self._unserved: set[object] = set()
        """A token for each record without an outcome, and for each callback that is due.

        A signal may leave the token of a record that was not sent, or whose callback was lost. ``flush`` removes it.
        """
        self._producing: dict[int, object] = {}
        """By thread, the token of the record that it hands over now: ``flush`` does not know this record yet."""

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: Delivered | None = None,
        on_delivery: Delivered | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Take one record into the buffer. ``callback(error, message)`` is called by ``poll`` or ``flush``.

        Without a ``partition`` the key decides. ``timestamp`` is milliseconds since the Unix epoch, 0 is now. Waits at
        most ``max.block.ms`` for the topic's metadata, and for room in ``buffer.memory``.

        Raises ``BufferError`` if there was no room, or ``queue.buffering.max.messages`` records wait for their outcome
        or for their callback. Raises ``KafkaException`` for a record that cannot be sent.
        """
        chosen = on_delivery or callback or self._callback
        data, name = _encoded(value), _encoded(key)
        pairs = None if headers is None else _pairs(headers)
        if len(self._unserved) >= self._most:
            raise BufferError(f"{self._most} records wait for their outcome or for poll() to call their callback")
        token, thread = object(), threading.get_ident()
        self._producing[thread] = token
        self._unserved.add(token)
        try:
            with translated():
                self._producer.send(
                    topic,
                    data,
                    name,
                    None if partition == -1 else partition,
                    pairs,
                    timestamp or None,
                    on_delivery=functools.partial(self._on_outcome, token, chosen, data, name, pairs),
                )
        except Exception as error:
            self._unserved.discard(token)
            if isinstance(error.__cause__, errors.BufferExhaustedError):
                raise BufferError(str(error.__cause__)) from error.__cause__
            raise
        finally:
            self._producing.pop(thread, None)

    def _on_outcome(
        self,
        token: object,
        callback: Delivered | None,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header] | None,
        error: Exception | None,
        place: RecordMetadata,
    ) -> None:
        """In the client's thread: note the callback of a record for ``poll``."""
        if callback is None:
            self._unserved.discard(token)
            return
        failure = None if error is None else _delivery_error(error)
        stamp = timestamp_of(place.timestamp, place.timestamp_type)
        offset = place.offset if error is None else -1001
        message = Message(place.topic, value, key, headers, failure, stamp, place.partition, offset)
        self._reports.put((token, callback, failure, message))

    def poll(self, timeout: float | None = None) -> int:
        """Call the callbacks that are due, and return their number. Waits up to ``timeout`` seconds for the first.

        Without ``timeout``, or with -1, it waits as long as it takes. The error of a callback is raised; the next call
        goes on with the next callback.
        """
        if self._reports.empty():
            self._producer._ensure_usable()
        served = 0
        wait_s = limit(timeout)
        while True:
            try:
                token, callback, error, message = self._reports.get(timeout=wait_s)
            except queue.Empty:
                return served
            self._unserved.discard(token)
            served, wait_s = served + 1, 0
            callback(error, message)

    def flush(self, timeout: float | None = None) -> int:
        """Send all records and call their callbacks, at most ``timeout`` seconds. Returns the number that is left.

        It does not wait for a record that another thread is still in ``produce`` with, but counts it.
        """
        self._producer._ensure_usable()
        limit_s = limit(timeout)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while sent := self._unserved.difference(self._producing.values()):
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            with translated():
                is_done = self._producer._running().call(functools.partial(_flush, self._producer, left_s))
            self.poll(0)
            if is_done:
                self._unserved -= sent
            if left_s == 0:
                break
        return len(self)

    def __len__(self) -> int:
        return len(self._unserved)

    def __bool__(self) -> bool:
        return True

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The brokers, and all topics or one."""
        with translated():
            return cluster_metadata(self._producer.list_topics(topic, limit(timeout)))

    def close(self) -> None:
        """``flush``, and disconnect. Does nothing if the producer is closed already."""
        with contextlib.suppress(errors.ClientClosedError):
            self.flush()
        with translated():
            self._producer.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing("Producer", name), name=name, obj=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


async def _flush(producer: BlockingProducer, timeout_s: float | None) -> bool:
    """Wait until all records have an outcome, at most ``timeout_s``. Returns whether they have."""
    with anyio.move_on_after(timeout_s) as scope:
        await producer._until_taken()
        await producer._client.flush()
    return not scope.cancelled_caught


def _delivery_error(error: Exception) -> KafkaError:
    found = error_of(error)
    if found == CODES["_TIMED_OUT"]:
        return KafkaError(CODES["_MSG_TIMED_OUT"], found.str(), retriable=found.retriable())
    return found


def _encoded(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _pairs(headers: Headers) -> list[Header]:
    items = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, _encoded(value)) for name, value in items]
