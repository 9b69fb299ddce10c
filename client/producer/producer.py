"""The public producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Never, Unpack

import anyio
import anyio.lowlevel

from anabranch.client import arguments
from anabranch.client.arguments import judged
from anabranch.client.client_metrics import Metrics
from anabranch.client.cluster import Cluster
from anabranch.client.config import ProducerConfig
from anabranch.client.errors import (
    BufferExhaustedError,
    ClientFailedError,
    ErrorCode,
    ForkedClientError,
    KafkaError,
    KafkaTimeoutError,
    PartitionMarkedError,
)
from anabranch.client.lifecycle import Client
from anabranch.client.options import ProducerOptions, SentKey, SentValue
from anabranch.client.producer.accumulator import GIVES_WAY_AFTER_MS, Accumulator
from anabranch.client.producer.message_batch import MessageBatch
from anabranch.client.producer.moved_key_tombstones import MovedKeys
from anabranch.client.producer.partitioner import Partitioner, StickyPartitioner, judged_partitioner
from anabranch.client.producer.placement_while_resized import TopicPlacement
from anabranch.client.producer.producer_batch import OnDelivery, ProducerBatch, RecordHandle, RecordMetadata
from anabranch.client.producer.sender import Sender
from anabranch.client.producer.sent_record import Headers, Judge, SentRecord
from anabranch.client.producer.unwritten_records_placed_again import Placing
from anabranch.client.tasks import Tasks
from anabranch.protocol.batch_layout import Header
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env

_RECORD: dict[str, arguments.Rule] = dict.fromkeys(
    ("topic", "value", "key", "partition", "headers", "timestamp_ms"), arguments.by_itself
)
PRODUCER_RULES: dict[str, dict[str, arguments.Rule]] = {
    "send": {**_RECORD, "on_delivery": arguments.by_itself},
    "send_and_wait": _RECORD,
    "send_many": dict.fromkeys(("topic", "records", "partition"), arguments.by_itself),
    "send_batch": {
        "batch": arguments.instance(MessageBatch),
        "topic": arguments.topic,
        "partition": arguments.partition,
    },
    "partitions_for": {"topic": arguments.topic},
    "list_topics": {"topic": arguments.optional(arguments.topic), "timeout": arguments.optional(arguments.duration)},
}


@judged(PRODUCER_RULES)
class Producer(Client[ProducerConfig], Generic[SentKey, SentValue]):
    """``anabranch.Producer`` with an explicit environment."""

    def __init__(
        self,
        *,
        key_serializer: Callable[[SentKey], bytes | None] | None = None,
        value_serializer: Callable[[SentValue], bytes | None] | None = None,
        partitioner: Partitioner | None = None,
        env: Env,
        **config: Unpack[ProducerOptions],
    ) -> None:
        serializers = {"key_serializer": key_serializer, "value_serializer": value_serializer}
        super().__init__(ProducerConfig.parse({**config, **serializers}), env)
        self._sticky = StickyPartitioner(self._env.rng)
        self._places_by_key = partitioner is None
        self._place: Partitioner = self._sticky.place if partitioner is None else judged_partitioner(partitioner)
        self._judge = Judge(self._config, self._env.clock.now_ms).judged
        self._progress: anyio.Event
        self._memory_waiters = 0
        self._seen_rounds = 0
        """The value of ``Sender.rounds`` at the start of the oldest batch that the sender has not seen."""
        self._accumulator: Accumulator
        self._sender: Sender
        self._moved_keys: MovedKeys

    async def _start(self, tasks: Tasks) -> None:
        config = self._config
        self._progress = anyio.Event()
        self._metadata = self._make_metadata(allow_auto_create=True, topic_idle_ms=config.metadata_max_idle_ms)
        self._accumulator = Accumulator(
            batch_size=config.batch_size,
            linger_ms=config.linger_ms,
            buffer_memory=config.buffer_memory,
            delivery_timeout_ms=config.delivery_timeout_ms,
            compression=config.compression,
            compression_level=config.compression_level,
            max_in_flight=config.max_in_flight_requests_per_connection,
            idempotent=config.enable_idempotence,
            sticky=self._sticky if self._places_by_key else None,
        )
        placing = Placing(
            place=self._place,
            by_key=self._places_by_key,
            batch_size=config.batch_size,
            compression=config.compression,
            compression_level=config.compression_level,
        )
        self._sender = Sender(self._env, config, self._accumulator, self._metadata, self._connections, tasks, placing)
        self._sender.on_progress = self._on_progress
        self._moved_keys = MovedKeys(
            self._env, config, self._accumulator, self._metadata, self._connections, self._make_queries()
        )
        self._moved_keys.on_tombstones = self._sender.wake
        self._connections.on_lost = self._on_lost
        tasks.start_soon(self._metadata.run)
        tasks.start_soon(self._sender.run)
        tasks.start_soon(self._moved_keys.run)
        self._metadata.request_update()

    def _on_failure(self, failure: ClientFailedError) -> None:
        self._accumulator.abort(failure)
        self._on_progress()

    def _on_fork(self) -> None:
        super()._on_fork()
        self._accumulator.forget(ForkedClientError(type(self).__name__))

    async def _stop(self, clean: bool) -> None:
        try:
            if clean:
                await self.flush()
                with anyio.move_on_after(self._config.request_timeout_ms / 1000):
                    await self._moved_keys.settled()
                await self.flush()
        finally:  # also if a flush is cancelled: no task may wait for a handle without end
            self._accumulator.abort(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed"))
            self._on_progress()

    def _on_progress(self) -> None:
        self._accumulator.callbacks.run()
        self._moved_keys.progress()
        progress, self._progress = self._progress, anyio.Event()
        progress.set()

    def _on_lost(self, node_id: int) -> None:
        self._metadata.request_update()
        self._sender.wake()

    # ------------------------------------------------------------ sending

    @arguments.explains_unknown
    async def send(
        self,
        topic: str,
        value: SentValue | None = None,
        key: SentKey | None = None,
        partition: int | None = None,
        headers: Headers = None,
        timestamp_ms: int | None = None,
        *,
        on_delivery: OnDelivery | None = None,
        **unknown: Never,
    ) -> RecordHandle:
        """Take one record into the buffer and return its handle, whose result is a ``RecordMetadata``.

        With ``partition`` the record goes to this partition, whatever its key. Then the caller is responsible for the
        order of the key. The call waits only for the topic's first metadata, for ``partition`` if it does not exist,
        and for room in ``buffer_memory``, together at most ``max_block_ms``. Without ``linger_ms`` the record is sent
        as soon as the caller waits for anything. In a loop that only sends, the sender runs when a batch is full, and
        every 2 ms. So the records go in few requests.
        ``on_delivery(error, metadata)`` is called like a callback of ``RecordHandle.add_done_callback``.
        Raises ``KafkaTimeoutError`` (``BufferExhaustedError``) when there was no room in time, and MESSAGE_TOO_LARGE
        for a record that can never be sent.
        """
        if unknown:
            raise arguments.unknown_argument("Producer.send", unknown)
        if on_delivery is not None:
            arguments.function("on_delivery", on_delivery)
        if self._tasks is None or self._closed or self._failure is not None:
            self._ensure_open()
        record = self._judge(topic, value, key, partition, headers, timestamp_ms)
        accumulator = self._accumulator
        handle = accumulator.accept(*record)
        if handle is None or accumulator.gives_way:
            return await self._take(record, handle, on_delivery)
        if on_delivery is not None:
            handle.call_on_delivery(on_delivery)
        return handle

    async def _take(
        self, record: SentRecord, handle: RecordHandle | None, on_delivery: OnDelivery | None = None
    ) -> RecordHandle:
        """Append a record that lacks something, once it is there, and let the sender run when it should.

        ``handle``: what ``Accumulator.accept`` returned for the record.
        """
        if handle is None:
            handle = self._append(*record)
        while handle is None:
            await self._until_it_fits(*record)
            handle = self._append(*record)
        if on_delivery is not None:
            handle.call_on_delivery(on_delivery)
        if self._accumulator.gives_way:
            await self._give_way()
        return handle

    async def _give_way(self) -> None:
        """Let the sender run."""
        self._accumulator.gives_way = False
        await anyio.lowlevel.checkpoint()

    async def _until_it_fits(
        self,
        topic: str,
        key: bytes | None,
        data: bytes | None,
        partition: int | None,
        pairs: Sequence[Header],
        timestamp_ms: int,
        now_ms: int,
        size: int,
    ) -> None:
        """Wait for the first of the things that a record lacks: the topic's partitions, room, its partition."""
        placement = self._accumulator.topics.get(topic)
        if placement is None or not placement.info.partitions:
            placement = await self._topic_appears(arguments.topic("topic", topic))
        elif not self._accumulator.has_room(size):
            await self._wait_for_room(size)
        else:
            chosen = self._place(placement.info, key) if partition is None else partition
            if chosen not in placement.info.partitions:
                await self._partition_appears(placement, chosen)
            elif chosen >= placement.info.layout[1]:
                raise PartitionMarkedError(TopicPartition(topic, chosen), placement.info.layout[1])

    def _append(
        self,
        topic: str,
        key: bytes | None,
        data: bytes | None,
        partition: int | None,
        pairs: Sequence[Header],
        timestamp_ms: int,
        now_ms: int,
        size: int,
    ) -> RecordHandle | None:
        """Choose the record's partition and append the record to its batch; None if something is lacking for it.

        Between this choice and the append no other task runs. ``Accumulator.gives_way`` is set when the sender should
        run.
        """
        if self._closed or self._failure is not None:
            self._ensure_open()  # otherwise the record would never have an outcome
        handle = self._accumulator.accept(topic, key, data, partition, pairs, timestamp_ms, now_ms, size)
        if handle is None:
            handle = self._append_unusual(topic, key, data, partition, pairs, timestamp_ms, now_ms, size)
        return handle

    def _append_unusual(
        self,
        topic: str,
        key: bytes | None,
        data: bytes | None,
        partition: int | None,
        pairs: Sequence[Header],
        timestamp_ms: int,
        now_ms: int,
        size: int,
    ) -> RecordHandle | None:
        """``_append`` of a record that ``Accumulator.accept`` has not taken."""
        accumulator = self._accumulator
        placement = accumulator.topics.get(topic)
        if placement is None or not placement.info.partitions or not accumulator.has_room(size):
            return None
        info = placement.info
        chosen = self._place(info, key) if partition is None else partition
        if chosen not in info.partitions:
            return None
        pinned = partition is not None
        undeleted = info.layout[1]
        if chosen >= undeleted:
            raise PartitionMarkedError(TopicPartition(topic, chosen), undeleted)
        handle = accumulator.append(topic, chosen, key, data, pairs, timestamp_ms, pinned)
        filled = False
        if handle is None:
            filled = accumulator.has_waiting(topic, chosen)
            if partition is None and key is None and self._places_by_key:
                chosen = self._sticky.next_sticky(info, chosen)
            now = self._env.clock.monotonic()
            handle = accumulator.append_to_new_batch(
                topic, chosen, key, data, pairs, timestamp_ms, now * 1000, pinned=pinned
            )
            self._metadata.touch(topic, now)
            if self._sender.rounds != self._seen_rounds:
                self._seen_rounds = self._sender.rounds
                accumulator.gives_way_at_ms = now_ms + GIVES_WAY_AFTER_MS
            self._sender.wake()
        if placement.watches_keys and key is not None:
            self._moved_keys.sent(placement, key, handle)
        if filled or now_ms >= accumulator.gives_way_at_ms:
            accumulator.give_way(now_ms)
        return handle

    async def send_and_wait(
        self,
        topic: str,
        value: SentValue | None = None,
        key: SentKey | None = None,
        partition: int | None = None,
        headers: Headers = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """``send`` and wait until the record is acknowledged."""
        handle = await self.send(topic, value, key, partition, headers, timestamp_ms)
        return await handle.wait()

    async def send_many(
        self, topic: str, records: Iterable[tuple[SentKey | None, SentValue | None]], *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """Send (key, value) pairs and wait until every one is acknowledged. Returns their metadata in order.

        The records share requests as far as their partitions allow. Once all records have an outcome, the first error
        is raised.
        """
        self._ensure_open()
        accumulator = self._accumulator
        handles: list[RecordHandle] = []
        for key, value in pairs(records):
            if self._closed or self._failure is not None:
                self._ensure_open()
            record = self._judge(topic, value, key, partition, None, None)
            handle = accumulator.accept(*record)
            if handle is None or accumulator.gives_way:
                handle = await self._take(record, handle)
            handles.append(handle)
        await self._settled(batches_of(handles))
        return written(handles)

    async def _settled(self, batches: Iterable[ProducerBatch]) -> None:
        """Wait until the outcome of each batch is known."""
        self._sender.wake()
        for batch in batches:
            await _settled(batch)

    def create_batch(self) -> MessageBatch:
        """An empty batch for ``send_batch``, with the compression and ``batch_size`` of this producer."""
        self._ensure_not_closed()
        config = self._config
        return MessageBatch(config.compression, config.compression_level, config.batch_size, self._env.clock.now_ms)

    async def send_batch(self, batch: MessageBatch, topic: str, *, partition: int) -> RecordHandle:
        """Send a batch to a partition, and return the handle of its first record. A batch is sent once.

        The records stay together and in the partition, whatever their keys: the caller is responsible for the order of
        the keys, as with ``send(partition=)``. Only a broker's limit or a resize splits the batch. Waits as ``send``.
        In a compacted topic keys that a resize moved get no tombstone in their previous partition, as they do with
        ``send``. So their older values stay there, and use space.
        """
        self._ensure_open()
        batch.check_size(self._config.max_request_size)
        placement = self._accumulator.topics.get(topic)
        if placement is None or not placement.info.partitions:
            placement = await self._topic_appears(topic)
        await self._wait_for_room(batch.size())
        while partition not in placement.info.partitions:
            await self._partition_appears(placement, partition)
        # Nothing is awaited between this check and the append to the partition's queue.
        undeleted = placement.info.layout[1]
        if partition >= undeleted:
            raise PartitionMarkedError(TopicPartition(topic, partition), undeleted)
        now = self._env.clock.monotonic()
        builder = batch.take()
        handle = self._accumulator.append_batch(topic, partition, builder, batch.first_timestamp, now * 1000)
        self._metadata.touch(topic, now)
        self._sender.wake()
        await anyio.lowlevel.checkpoint()
        return handle

    async def _topic_appears(self, topic: str) -> TopicPlacement:
        """Wait at most ``max_block_ms`` for a topic's partitions."""
        deadline = self._env.clock.monotonic() + self._config.max_block_ms / 1000
        while True:
            left = max(deadline - self._env.clock.monotonic(), 0.0)
            info = await self._metadata.topic(topic, left * 1000)
            placement = self._accumulator.placement(info)
            if placement.info.partitions:
                return placement
            if left == 0:
                raise KafkaTimeoutError(
                    f"topic {topic}: the brokers' metadata is older than the metadata that this producer already has"
                )
            self._metadata.request_update()
            await self._metadata.wait_update(left)

    async def _partition_appears(self, placement: TopicPlacement, partition: int) -> None:
        """Wait at most ``max_block_ms`` for a partition that the metadata does not list (yet)."""
        deadline = self._env.clock.monotonic() + self._config.max_block_ms / 1000
        layout = placement.layout
        while partition not in placement.info.partitions and placement.layout == layout:
            left = deadline - self._env.clock.monotonic()
            if left <= 0:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {placement.name} has {len(placement.info.partitions)} partitions, there is no partition "
                    f"{partition}",
                )
            self._metadata.want(placement.name)
            self._metadata.request_update()
            await self._metadata.wait_update(left)

    async def _wait_for_room(self, size: int) -> None:
        deadline = self._env.clock.monotonic() + self._config.max_block_ms / 1000
        self._memory_waiters += 1
        self._sender.memory_short = True
        try:
            while not self._accumulator.has_room(size):
                self._sender.wake()
                progress = self._progress
                left = deadline - self._env.clock.monotonic()
                if left > 0:
                    with anyio.move_on_after(left):
                        await progress.wait()
                        continue
                raise BufferExhaustedError(
                    f"buffer_memory ({self._config.buffer_memory} bytes) stayed full for max_block_ms "
                    f"({self._config.max_block_ms} ms)"
                )
        finally:
            self._memory_waiters -= 1
            self._sender.memory_short = self._memory_waiters > 0
        self._ensure_open()

    async def flush(self) -> None:
        """Send without lingering and return once every record sent so far is acknowledged or has failed.

        There is no timeout: each record has an outcome after at most ``delivery_timeout_ms``.
        """
        self._ensure_open()
        accumulator = self._accumulator
        accumulator.flushing += 1
        try:
            waiting_for = accumulator.unresolved()
            self._sender.wake()
            for batch in waiting_for:
                await _settled(batch)
        finally:
            accumulator.flushing -= 1

    def metrics(self) -> Metrics:
        """Metrics of this producer's traffic and of resizes, by group and name.

        docs/metrics.md describes each metric; ``anabranch.prometheus`` exports them to Prometheus.
        """
        self._ensure_open()
        return self._sender.all_metrics()

    async def partitions_for(self, topic: str) -> list[int]:
        """Ids of the topic's partitions that take records, ascending. Partitions marked for deletion take none."""
        self._ensure_open()
        info = await self._metadata.topic(topic, self._config.max_block_ms)
        _, undeleted = info.layout
        return sorted(partition for partition in info.partitions if partition < undeleted)

    async def list_topics(self, topic: str | None = None, timeout: float | None = None) -> Cluster:
        """The brokers and all topics with their partitions, or one topic. No topic is created.

        Waits at most ``timeout`` seconds (default ``max_block_ms``).
        """
        self._ensure_open()
        limit_ms = self._config.max_block_ms if timeout is None else timeout * 1000
        return await self._metadata.describe(None if topic is None else [topic], limit_ms)


def pairs(records: Iterable[Any]) -> Iterator[Any]:
    """The (key, value) pairs of ``send_many``, each judged when it is its turn."""
    for at, pair in enumerate(arguments.items("records", records, "an iterable of pairs of a key and a value")):
        if (type(pair) is not tuple and not isinstance(pair, tuple | list)) or len(pair) != 2:
            raise arguments.refused(TypeError, f"records[{at}]", pair, "a pair of a key and a value")
        yield pair


def batches_of(handles: Iterable[RecordHandle]) -> list[ProducerBatch]:
    """The batches that took the records."""
    return list(dict.fromkeys(handle._batch for handle in handles))


def written(handles: list[Any]) -> list[RecordMetadata]:
    """The places of records whose outcome is known. Raises the first error. The list is empty afterwards.

    So at no time are there a handle and a place of each record, which the garbage collector would go through.
    """
    handles.reverse()
    return [handles.pop().result() for _ in range(len(handles))]


async def _settled(batch: ProducerBatch) -> None:
    """Wait for a batch. If its records moved, also wait for the batches that have them now."""
    await batch.wait()
    for part in dict.fromkeys(part for part, _ in batch.moved or ()):
        await _settled(part)
