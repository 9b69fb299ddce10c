"""The blocking producer. Records queue in the threads that send them, and many cross to the loop's thread at once."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Never, Self

import anyio

from anabranch.blocking.client import BlockingClient
from anabranch.blocking.hand_over import LET_GO_FOR_S
from anabranch.blocking.loop_thread import LoopThread
from anabranch.blocking.methods import like
from anabranch.client import RecordHandle as AsyncRecordHandle
from anabranch.client import RecordMetadata
from anabranch.client.arguments import duration, function, optional, unknown_argument
from anabranch.client.config import ProducerConfig, documented
from anabranch.client.errors import BufferExhaustedError, IllegalStateError, KafkaError, KafkaTimeoutError
from anabranch.client.producer.producer import batches_of, pairs, written
from anabranch.client.producer.producer_batch import OnDelivery
from anabranch.client.producer.sent_record import Headers, SentRecord
from anabranch.protocol.batch_builder import estimate_record_bytes
from anabranch.real.producer import Producer as AsyncProducer
from anabranch.runtime.signal import Signal

_log = logging.getLogger(__name__)
_MOST_QUEUED = 1_000
"""So many records cross at once. A thread that queues more waits until the loop has taken them."""
_TAKEN_AT_ONCE = 250
"""After so many records the loop lets go of the interpreter's lock, for the other threads of the program."""
_MOST_BYTES = 1024 * 1024
"""So many bytes of the records of one ``send_many`` cross at once, and one record more."""
_RECORD_OVERHEAD_BYTES = 32
"""The bytes of a queued record in a batch, without key and value, are about so many at most."""
_ANY_TIME = frozenset({"metrics", "_wait"})
"""Calls that need not wait for the records that were sent before."""


class RecordHandle:
    """A sent record. ``result()`` waits for its ``RecordMetadata``, or raises the ``KafkaError`` that stopped it."""

    __slots__ = ("_error", "_handle", "_on_delivery", "_producer", "_record")

    def __init__(
        self,
        producer: Producer,
        record: SentRecord | None,
        handle: AsyncRecordHandle | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        self._producer = producer
        self._record = record
        """What the loop has not taken yet."""
        self._handle = handle
        self._on_delivery = on_delivery
        self._error: Exception | None = None

    def done(self) -> bool:
        """Whether ``result`` would return, or raise, at once."""
        handle = self._handle
        return self._error is not None or (handle is not None and handle.done())

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; raises the KafkaError of a failed record.

        Raises ``KafkaTimeoutError`` if there is no outcome after ``timeout`` seconds. The record may still be written.
        """
        return self._settled(timeout).result()

    get = result

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait as ``result``. Returns the error of a failed record, or None."""
        try:
            return self._settled(timeout).exception()
        except KafkaError as error:
            if error is self._error:
                return error
            raise

    def add_done_callback(self, callback: Callable[[RecordHandle], object]) -> None:
        """Call ``callback`` with this handle once its outcome is known; at once if it is known already.

        The call is made in the client's own thread, so it must be short, and may call no method that waits.
        """
        function("callback", callback)
        self._producer._run(self._call_when_done, callback)

    def _call_when_done(self, callback: Callable[[RecordHandle], object]) -> None:
        if self._error is None:
            self._taken().add_done_callback(lambda _: callback(self))
            return
        callbacks = self._producer._client._accumulator.callbacks
        callbacks.add(functools.partial(callback, self))
        callbacks.run()

    def _taken(self) -> AsyncRecordHandle:
        """The handle that the loop has for the record, as soon as the loop has taken the record."""
        if self._handle is None and self._error is None:
            self._producer._run(_nothing)
        if self._error is not None:
            raise self._error
        if self._handle is None:
            raise IllegalStateError("a callback cannot wait until the record that it sent is in a batch")
        return self._handle

    def _settled(self, timeout_s: float | None) -> AsyncRecordHandle:
        """The loop's handle, as soon as the outcome is known."""
        if not self.done():
            self._producer._run(self._wait, optional(duration)("timeout", timeout_s))
        return self._taken()

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait until the outcome is known."""
        with anyio.move_on_after(timeout_s):
            while self._record is not None:
                await self._producer._until_taken()
            if self._handle is not None:
                with contextlib.suppress(KafkaError):
                    await self._handle.wait()
            return
        topic = self._record[0] if self._record is not None else self._taken().topic
        raise KafkaTimeoutError(f"no outcome of a record for {topic} within {timeout_s} s")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._taken(), name)


@documented(ProducerConfig)
class Producer(BlockingClient[AsyncProducer]):
    """A blocking ``anabranch.Producer``; ``send`` returns a handle with ``result()``. Many threads may share it.

        with Producer(bootstrap_servers="localhost:9092") as p:
            handle = p.send("topic", key=b"k", value=b"v")
            print(handle.result())

    The end of ``with`` waits until all records are acknowledged or have failed. After an exception, also Ctrl-C, it
    does not wait, and unacknowledged records fail: catch ``KeyboardInterrupt`` inside the block.

    Serializers run in the thread that sends. The records of one thread keep their order. A record that waits for room
    or for its partition delays the records behind it, at most ``max_block_ms``. When the program ends without
    ``close``, the producer sends its records, for at most ``delivery_timeout_ms``.
    """

    _factory = AsyncProducer

    def __class_getitem__(cls, types: Any) -> type[Self]:
        """``Producer[bytes, bytes]``, for type checkers."""
        return cls

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self._queue: deque[RecordHandle] = deque()
        """The loop never waits for a thread that changes it: a handler of a signal may interrupt the thread."""
        self._waking = False
        """Whether the loop will look at the queue."""
        self._taken = 0
        """Number of records that the loop took."""
        self._counting = threading.RLock()
        """Held while ``_queued_bytes`` changes."""
        self._queued_bytes = 0
        """Bytes of the records that were queued so far. Too low if a signal interrupts a ``send``."""
        self._taken_bytes = 0
        self._progress: anyio.Event | None = None
        self._more = Signal()

    # ------------------------------------------------------------ sending

    @like(AsyncProducer.send)
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        headers: Headers = None,
        timestamp_ms: int | None = None,
        *,
        on_delivery: OnDelivery | None = None,
        **unknown: Never,
    ) -> RecordHandle:
        if unknown:
            raise unknown_argument("Producer.send", unknown)
        if on_delivery is not None:
            function("on_delivery", on_delivery)
        loop = self._loop
        if self._closed or loop is None:
            loop = self._running()
        client = self._client
        if not client._places_by_key:
            sent = self._run(client.send, topic, value, key, partition, headers, timestamp_ms, on_delivery=on_delivery)
            return RecordHandle(self, None, sent)
        if client._closed or client._failure is not None:
            client._ensure_open()
        record = client._judge(topic, value, key, partition, headers, timestamp_ms)
        size = _size(record)
        if not client._accumulator.fits(topic, partition, size, self._queued_bytes - self._taken_bytes):
            self._run(self._until_it_fits, record)
        handle = RecordHandle(self, record, None, on_delivery)
        try:
            self._queue.append(handle)
            with self._counting:
                self._queued_bytes += size
            if not self._waking:
                self._waking = True
                loop.call_soon(self._more.set)
        except BaseException:  # of a signal: the record may be in the queue
            loop.call_soon(self._more.set)
            raise
        if len(self._queue) >= _MOST_QUEUED:
            self._run(_nothing)
        return handle

    @like(AsyncProducer.send_batch)
    def send_batch(self, *args: Any, **kwargs: Any) -> RecordHandle:
        return RecordHandle(self, None, self._run(self._client.send_batch, *args, **kwargs))

    @like(AsyncProducer.send_and_wait)
    def send_and_wait(self, *args: Any, **kwargs: Any) -> RecordMetadata:
        return self.send(*args, **kwargs).result()

    def send_many(
        self, topic: str, records: Iterable[tuple[Any, Any]], *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """Send (key, value) pairs and wait until every one is acknowledged. Returns their metadata in order."""
        if not isinstance(records, Sequence):  # a record may come long after the one before
            sent = [self.send(topic, value, key, partition) for key, value in pairs(records)]
            for handle in sent:
                handle.exception()  # waits for the outcome
            return written(sent)
        handles: list[AsyncRecordHandle] = []
        for group in self._groups(topic, records, partition):
            handles += self._run(self._take_all, group)
        self._run(self._client._settled, batches_of(handles))
        return written(handles)

    def _groups(self, topic: str, records: Sequence[Any], partition: int | None) -> Iterator[list[SentRecord]]:
        """The records of ``send_many``, as many as should cross at once, also those before an error."""
        if self._closed or self._loop is None:
            self._running()
        client = self._client
        group: list[SentRecord] = []
        size = 0
        try:
            for key, value in pairs(records):
                if client._closed or client._failure is not None:
                    client._ensure_open()
                record = client._judge(topic, value, key, partition, None, None)
                group.append(record)
                size += record[-1]
                if len(group) == _MOST_QUEUED or size >= _MOST_BYTES:
                    yield group
                    group, size = [], 0
        except Exception:
            yield group
            raise
        yield group

    async def _take_all(self, group: list[SentRecord]) -> list[AsyncRecordHandle]:
        """Append records to their batches. In the loop."""
        client = self._client
        accumulator = client._accumulator
        handles = []
        for record in group:
            handle = None if client._closed or client._failure is not None else accumulator.accept(*record)
            if handle is None or accumulator.gives_way:
                handle = await client._take(record, handle)
            handles.append(handle)
        return handles

    def _cross(self, loop: LoopThread, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function in the loop, after the loop has taken the records that were sent before."""
        if call.__name__ in _ANY_TIME:
            return super()._cross(loop, call, args, kwargs)
        return loop.call(functools.partial(self._in_turn, call, args, kwargs))

    # ------------------------------------------------------------ in the loop

    def _on_start(self, loop: LoopThread) -> None:
        loop.call(self._made_progress)
        self._client._accumulator.callbacks.contained = BaseException  # the caller is no thread of the program
        loop.run_task(self._take_for_ever)

    async def _take_for_ever(self) -> None:
        while True:
            await self._more.wait()
            self._waking = False  # before the look at the queue: a thread that queues later wakes the loop again
            while self._queue:
                await self._take_queue()

    async def _take_queue(self) -> None:
        """Append the queued records to their batches, in order."""
        client, queue = self._client, self._queue
        accept = client._accumulator.accept
        many = len(queue) > _TAKEN_AT_ONCE
        for _ in range(_TAKEN_AT_ONCE if many else len(queue)):
            handle = queue[0]
            record = handle._record
            assert record is not None
            try:
                sent = None if client._closed or client._failure is not None else accept(*record)
                if sent is None:
                    sent = client._append(*record) or await self._append_later(record)
                handle._handle = sent
                if handle._on_delivery is not None:
                    sent.call_on_delivery(handle._on_delivery)
            except Exception as error:
                handle._error = error
                if handle._on_delivery is not None:
                    _call_undelivered(client, record, handle._on_delivery, error)
            handle._record = None
            queue.popleft()
            self._taken += 1
            self._taken_bytes += _size(record)
        self._made_progress()
        if many:
            time.sleep(LET_GO_FOR_S)
        if client._accumulator.gives_way:
            await client._give_way()

    async def _append_later(self, record: SentRecord) -> AsyncRecordHandle:
        """Append a record to which a resize or another thread was faster, at most ``max_block_ms`` after its ``send``.

        The records behind it wait as well. So the time counts from the ``send``, and not from the turn of the record.
        """
        self._made_progress()
        client = self._client
        max_block_ms = client.config.max_block_ms
        with anyio.move_on_after(max(record[6] + max_block_ms - client._env.clock.now_ms(), 0) / 1000):
            while True:
                await client._until_it_fits(*record)
                sent = client._append(*record)
                if sent is not None:
                    return sent
        full = not client._accumulator.has_room(record[-1])
        kind, lacks = (BufferExhaustedError, "no room in the buffer") if full else (KafkaTimeoutError, "no partition")
        raise kind(f"a record for {record[0]} had {lacks} for max_block_ms ({max_block_ms} ms)")

    def _made_progress(self) -> None:
        progress, self._progress = self._progress, anyio.Event()
        if progress is not None:
            progress.set()

    async def _in_turn(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        await self._until_taken()
        result = call(*args, **kwargs)
        return await result if isinstance(result, Awaitable) else result

    async def _until_taken(self) -> None:
        """Wait until the records that are in the queue are in their batches, or have failed."""
        last = self._taken + len(self._queue)
        self._more.set()
        while self._taken < last:
            assert self._progress is not None
            await self._progress.wait()

    async def _until_it_fits(self, record: SentRecord) -> None:
        while not self._client._accumulator.fits(record[0], record[3], record[-1], 0):
            await self._client._until_it_fits(*record)

    async def _close_in_loop(self, timeout_ms: float | None) -> None:
        began = anyio.current_time()
        with anyio.move_on_after(None if timeout_ms is None else timeout_ms / 1000):
            await self._until_taken()
        if timeout_ms is not None:
            timeout_ms = max(timeout_ms - (anyio.current_time() - began) * 1000, 0)
        try:
            await super()._close_in_loop(timeout_ms)
        finally:
            await self._until_taken()  # what is left gets the error of a closed client

    async def _leave_in_loop(self, exc: BaseException | None) -> None:
        if exc is None:
            await self._until_taken()
        try:
            await super()._leave_in_loop(exc)
        finally:
            await self._until_taken()

    def _longest_exit_s(self) -> float:
        return super()._longest_exit_s() + self._client.config.delivery_timeout_ms / 1000

    async def _exit_in_loop(self) -> None:
        unsent = len(self._queue) + sum(batch.count for batch in self._client._accumulator.unresolved())
        timeout_ms = self._client.config.delivery_timeout_ms
        if unsent:
            _log.warning(
                "a Producer was not closed: the program waits up to %.0f s for its last %d records",
                timeout_ms / 1000,
                unsent,
            )
        await self._close_in_loop(timeout_ms)


def _call_undelivered(client: AsyncProducer, record: SentRecord, on_delivery: OnDelivery, error: Any) -> None:
    """Call ``on_delivery`` for a record that no batch took."""
    topic, partition, timestamp_ms = record[0], record[3], record[5]
    place = RecordMetadata(topic, -1 if partition is None else partition, -1, timestamp_ms, 0, -1)
    callbacks = client._accumulator.callbacks
    callbacks.add(functools.partial(on_delivery, error, place))
    callbacks.run()


def _size(record: SentRecord) -> int:
    """The bytes of a record in a batch, at most."""
    if not record[4]:
        return record[7] + _RECORD_OVERHEAD_BYTES
    return estimate_record_bytes(record[1], record[2], record[4])


def _nothing() -> None:
    """Called for a thread that waits for its turn alone."""
