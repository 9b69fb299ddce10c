"""The blocking consumer. Batches of records cross from the loop's thread, and the reader iterates in its own thread."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from operator import length_hint
from typing import Any, Never, Self

from anabranch.blocking.client import BlockingClient
from anabranch.blocking.hand_over import LET_GO_FOR_S, LET_GO_S, PIECE, TARGET_S, HandOver, next_size
from anabranch.blocking.loop_thread import Call, LoopThread
from anabranch.blocking.methods import like
from anabranch.client import ConsumerRecord, Records
from anabranch.client.arguments import duration, explains_unknown, unknown_argument
from anabranch.client.config import ConsumerConfig, documented
from anabranch.client.consumer.arguments import CONSUMER_RULES
from anabranch.client.errors import (
    ClientClosedError,
    ClientFailedError,
    IllegalStateError,
    WakeupError,
)
from anabranch.protocol.types import TopicPartition
from anabranch.real.consumer import Consumer as AsyncConsumer

_ANY_THREAD = frozenset({"metrics"})
_KEEPS_TAKEN = frozenset({"store_offsets"})
"""Calls that may come after each record, and for which the records that were not read yet stay taken."""


class _InCaller:
    """A listener whose methods run in the thread that waits for the consumer: there they may call the consumer."""

    def __init__(self, consumer: Consumer, listener: object) -> None:
        self._consumer = consumer
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._listener, name)
        if not callable(method):
            return method

        async def called(partitions: list[TopicPartition]) -> None:
            loop = self._consumer._loop
            assert loop is not None
            result = await loop.in_caller(functools.partial(method, partitions))
            if isinstance(result, Awaitable):
                await result

        return called


@documented(ConsumerConfig)
class Consumer(BlockingClient[AsyncConsumer]):
    """A blocking ``anabranch.Consumer``; iterate it for records.

        with Consumer("topic", bootstrap_servers="localhost:9092", group_id="g") as c:
            for record in c: ...

    The call for the next record means that all records before it are processed; only then are they committed. The end
    of ``with`` commits (with ``enable_auto_commit``) and leaves the group. After an exception, also Ctrl-C, it does not
    commit: catch ``KeyboardInterrupt`` inside the block.

    One thread at a time may use a consumer: a call raises ``IllegalStateError`` while another thread is in a call.
    ``wakeup``, ``close`` and ``metrics`` may be called by any thread.

    The iteration takes many records from the loop's thread at once, and few if the program is slow: once the records
    are 50 ms old, it looks for a rebalance after at most ``max_poll_records`` more. Only the records that were returned
    count as read: a commit does not include the others.
    """

    _factory = AsyncConsumer

    def __class_getitem__(cls, types: Any) -> type[Self]:
        """``Consumer[bytes, str]``, for type checkers."""
        return cls

    def __init__(self, *topics: str, **config: Any) -> None:
        super().__init__(*topics, **config)
        self._in_use = threading.Lock()
        self._user = 0
        """The thread that is in a call; 0 if there is none."""
        self._call: Call | None = None
        self._woken = False
        self._handed: HandOver | None = None
        """The records that crossed last. The loop's thread sets it, so no signal comes between the two."""
        self._rest: Iterator[ConsumerRecord] = iter(())
        """Those that are decoded and not read yet."""
        self._size = 1
        self._let_go_at_s = 0.0

    # ------------------------------------------------------------ threads

    def _cross(self, loop: LoopThread, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if function.__name__ in _ANY_THREAD or loop.is_served:
            return super()._cross(loop, function, args, kwargs)
        if not self._in_use.acquire(blocking=False):
            raise IllegalStateError("another thread is in a call of this consumer: one thread at a time may use it")
        try:
            if self._woken:
                self._woken = False
                raise WakeupError
            self._call = call = loop.begin(functools.partial(self._in_loop, function, args, kwargs), self._put_back)
            loop.wait(call)
            return call.result()
        finally:
            self._call = None
            self._in_use.release()

    async def _in_loop(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if function.__name__ not in _KEEPS_TAKEN:
            self._give_back()
        result = function(*args, **kwargs)
        return await result if isinstance(result, Awaitable) else result

    @like(AsyncConsumer.subscribe)
    def subscribe(self, *args: Any, **given: Any) -> None:
        """Plain methods of the listeners are called in the thread that polls or closes, and may call ``commit``.

        Async methods run in the loop, and cannot call methods of this consumer that wait.
        """
        self._run(self._client.subscribe, *args, **self._in_caller("subscribe", given))

    @like(AsyncConsumer.assign)
    def assign(self, *args: Any, **given: Any) -> None:
        """A plain method of the listener is called in the thread that polls."""
        self._run(self._client.assign, *args, **self._in_caller("assign", given))

    def _in_caller(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments of a method; the listeners among them are judged, and run in the calling thread."""
        for name in {"listener", "partition_key_listener"} & CONSUMER_RULES[method].keys() & given.keys():
            listener = CONSUMER_RULES[method][name](name, given[name])
            given[name] = None if listener is None else _InCaller(self, listener)
        return given

    def wakeup(self) -> None:
        """End the call that another thread waits in, with ``WakeupError``; else the next call raises it. Any thread."""
        if not self._interrupt(WakeupError()):
            self._woken = True

    def _on_closing(self) -> None:
        self._interrupt(ClientClosedError(f"this {type(self).__name__} is closed"))

    def _interrupt(self, reason: Exception) -> bool:
        """Let the running call end with ``reason``; False if there is none."""
        call, loop = self._call, self._loop
        return call is not None and loop is not None and bool(loop.call(functools.partial(call.interrupt, reason)))

    def _on_fork(self) -> None:
        super()._on_fork()
        if self._handed is not None:
            self._handed.end()  # no record that the parent reads too is returned here

    # ------------------------------------------------------------ records

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over the records, until the consumer is closed."""
        self._ensure_usable()
        return itertools.chain.from_iterable(self._batches_to_read())

    def _batches_to_read(self) -> Iterator[Iterator[ConsumerRecord]]:
        while True:
            if not length_hint(self._rest):
                try:
                    self._take_more()
                except ClientFailedError:
                    raise
                except ClientClosedError:
                    return
            yield self._rest

    def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """The next record, however long it takes. The position moves by one record."""
        if partitions:
            record: ConsumerRecord = self._run(self._client.getone, *partitions)
            return record
        while True:
            for record in self._rest:
                return record
            self._take_more()

    @explains_unknown
    def poll(self, timeout: float | None = None, **unknown: Never) -> ConsumerRecord | None:
        """The next record, as ``getone``; None if there is none for ``timeout`` seconds. By default it waits.

        It is no error if no broker answers or a subscribed topic does not exist: the client logs a warning.
        """
        if unknown:
            raise unknown_argument("Consumer.poll", unknown)
        if timeout is None:
            return self.getone()
        timeout_ms = duration("timeout", timeout) * 1000
        while True:
            for record in self._rest:
                return record
            self._take_more(timeout_ms)
            if self._handed is None:
                return None

    def batches(self, *, max_records: int | None = None) -> Iterator[Records]:
        """Iterate over batches of at most ``max_records`` records of one partition, until the consumer is closed.

        When the program takes the next batch, the records of the batches before count as processed.
        """
        max_records = CONSUMER_RULES["batches"]["max_records"]("max_records", max_records)
        self._ensure_usable()
        return self._until_closed(max_records)

    def _until_closed(self, max_records: int | None) -> Iterator[Records]:
        timeout_ms = self._client.config.default_api_timeout_ms
        found: dict[TopicPartition, Records]
        while True:
            try:
                found = self._run(self._client._take, (), timeout_ms, max_records, 1)
            except ClientFailedError:
                raise
            except ClientClosedError:
                return
            yield from found.values()

    def _take_more(self, timeout_ms: float | None = None) -> None:
        """Decode more of the records that crossed. If there are none left, or after ``TARGET_S``, let others cross.

        If no record crosses within ``timeout_ms``, ``_handed`` is None.
        """
        handed = self._handed
        if handed is not None:
            handed.raise_failure()
            now = time.monotonic()
            elapsed_s = now - handed.began_s
            if now >= self._let_go_at_s + LET_GO_S:
                time.sleep(LET_GO_FOR_S)
                self._let_go_at_s = now
            if elapsed_s < TARGET_S and not self._woken and self._decode_more(handed):
                return
            self._size = next_size(handed.decoded, elapsed_s)
        self._run(self._take_in_loop, self._size, timeout_ms)
        if self._handed is not None:
            self._decode_more(self._handed)

    def _decode_more(self, handed: HandOver) -> bool:
        rest = handed.decode()
        if rest is not None:
            self._rest = rest
        return rest is not None

    async def _take_in_loop(self, limit: int, timeout_ms: float | None) -> None:
        """Take records for the reader, who has read none of them yet. In the loop."""
        taken = await self._client._take_one(limit, timeout_ms)
        size = min(PIECE, self._client.config.max_poll_records)
        self._handed = None if taken is None else HandOver(taken, size, time.monotonic())

    def _give_back(self) -> None:
        """Put the unread records back, so that the position of the client is that of the reader. In the loop."""
        handed, self._handed = self._handed, None
        if handed is None:
            return
        read = handed.end()
        if read < len(handed.taken.records):
            self._client._give_back(handed.taken, read)
            self._size = max(1, read)

    def _put_back(self, result: Any) -> None:
        """Put back records of a call whose caller was interrupted before it had them."""
        if isinstance(result, dict):
            for records in result.values():
                if isinstance(records, Records):
                    self._client._give_back(self._client._taken(records), 0)

    async def _before_close(self) -> None:
        self._give_back()
