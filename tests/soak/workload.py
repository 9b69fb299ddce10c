"""Producers and groups of librdkafka and of Anabranch's client record their actions and the responses."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio
from confluent_kafka import OFFSET_BEGINNING, KafkaException
from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import Producer as StockProducer
from confluent_kafka import TopicPartition as StockPartition

from anabranch import Consumer, Producer
from anabranch.client.errors import KafkaError
from anabranch.protocol.types import TopicPartition
from tests.history.events import (
    UNKNOWN,
    Acked,
    Assigned,
    Committed,
    KeysFlushed,
    KeysLoaded,
    NotWritten,
    Polled,
    Revoked,
    Sent,
)
from tests.soak.recorder import Recorder
from tests.support.client.commits import record_commits

STOCK_WRITERS = ("stock-writer-0", "stock-writer-1")
OWN_WRITER = "own-writer"
WRITERS = (*STOCK_WRITERS, OWN_WRITER)
"""The client ids of the producers."""
KEYS = 20
PADDING = b"." * 180
DELIVERY_TIMEOUT_MS = 120_000
COMMIT_EVERY_S = 1.0
OFFSETS_TIMEOUT_S = 5.0
BURST_S = 0.02
CLOSE_LIMIT_S = 120.0
_GENERATION_AT = slice(len(b"CGMDv2:"), len(b"CGMDv2:") + 4)
"""The position of the generation in librdkafka's serialised group metadata, in the machine's byte order."""


def value_id(value: bytes) -> str:
    """The part of a value that names the record; the rest is padding."""
    return bytes(value).partition(b".")[0].decode()


@dataclass(slots=True)
class Pace:
    """Counts the records that are due, at a rate of ``per_s`` a second."""

    per_s: float
    started: float = 0.0
    given: int = 0

    def due(self, now: float) -> int:
        """The number of records to send now; after a delay at most the records of one second."""
        self.started = self.started or now
        self.started = max(self.started, now - 1.0 - self.given / self.per_s)
        count = int((now - self.started) * self.per_s) - self.given
        self.given += count
        return count


@dataclass(slots=True)
class Progress:
    """The positions of a group, for tasks that wait for the group: the next offset of each partition."""

    positions: dict[TopicPartition, int] = field(default_factory=dict)

    def read(self, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = max(self.positions.get(tp, 0), offset + 1)


class Stop:
    """Makes threads and tasks end. With ``abandoned`` the threads and tasks do not even wait for responses."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.abandoned = False

    def set(self) -> None:
        self._event.set()

    def abandon(self) -> None:
        self.abandoned = True
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()


# ---------------------------------------------------------------- librdkafka


class StockWriter:
    """An idempotent librdkafka producer; ``run`` is for a thread.

    While the topic is resized, a batch is refused if the producer still sends its keys to their old partition. After a
    refusal the producer continues with a new epoch, and repeats in it the batches that were written but not
    acknowledged.
    """

    def __init__(self, name: str, bootstrap: str, topic: str, per_s: float, recorder: Recorder) -> None:
        self._name, self._topic, self._recorder = name, topic, recorder
        self._pace = Pace(per_s)
        self._producer = StockProducer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 500,
                "socket.timeout.ms": 10_000,
                "request.timeout.ms": 8_000,
                "topic.metadata.refresh.fast.interval.ms": 100,
                "topic.metadata.refresh.interval.ms": 2_000,
                "partitioner": "murmur2_random",
                "error_cb": self._on_error,
            },
            logger=recorder.logger(name),
        )

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._recorder.problem(f"{self._name}: fatal: {error.str()}")

    def _delivered(self, error: Any, message: Any) -> None:
        recorder, value = self._recorder, value_id(message.value())
        if error is not None:
            recorder.record(NotWritten(recorder.now_ms(), self._name, value, "unknown", error.name()))
            return
        offset = message.offset()
        tp = TopicPartition(self._topic, message.partition())
        known = offset if offset is not None and offset >= 0 else UNKNOWN
        recorder.acknowledged(Acked(recorder.now_ms(), self._name, tp, known, value))

    def run(self, stop: Stop) -> None:
        """Write until ``stop`` or a fatal error. Records that have no outcome then may or may not be written."""
        try:
            self._write(stop)
        except (KafkaException, SystemError) as error:
            # A fatal error may be set while the extension runs other code. Python makes it the cause of a SystemError.
            cause = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(cause, KafkaException):
                raise
            self._recorder.problem(f"{self._name}: {cause}")

    def _write(self, stop: Stop) -> None:
        number = 0
        while not stop.is_set():
            for _ in range(self._pace.due(time.monotonic())):
                key = f"{self._name}-{number % KEYS}"
                value = f"{key}:{number}"
                sent = Sent(self._recorder.now_ms(), self._name, self._topic, key, value, names_layouts=False)
                self._recorder.record(sent)
                while not self._take(key, value) and not stop.abandoned:
                    self._producer.poll(0.05)
                number += 1
            self._producer.poll(BURST_S)
        deadline = time.monotonic() + DELIVERY_TIMEOUT_MS / 1000 + 10
        while (left := self._producer.flush(0.5)) and not stop.abandoned:
            if time.monotonic() > deadline:
                self._recorder.problem(f"{self._name}: {left} records have no outcome")
                break

    def _take(self, key: str, value: str) -> bool:
        try:
            self._producer.produce(self._topic, value.encode() + PADDING, key, on_delivery=self._delivered)
        except BufferError:
            return False
        except KafkaException as error:
            self._recorder.record(NotWritten(self._recorder.now_ms(), self._name, value, "refused", str(error)))
        return True


class StockMember:
    """A group member that commits explicitly, each second and before partitions are revoked. It runs in a thread."""

    def __init__(self, name: str, group: str, bootstrap: str, recorder: Recorder, progress: Progress) -> None:
        self._name, self._group, self._recorder, self._progress = name, group, recorder, progress
        self._consumer: Any = StockConsumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "check.crcs": True,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 1_000,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 5_000,
                "debug": "cgrp,consumer",
            },
            logger=recorder.logger(name),
        )
        self._positions: dict[TopicPartition, int] = {}
        self.last_generation = UNKNOWN
        self.stop = Stop()

    def _generation(self) -> int:
        """The generation of the membership, or the last one: librdkafka may report a rebalance after it has left."""
        with suppress(RuntimeError):
            metadata = bytes(self._consumer.consumer_group_metadata())
            self.last_generation = int.from_bytes(metadata[_GENERATION_AT], sys.byteorder, signed=True)
        return self.last_generation

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        if self.stop.is_set():
            return  # reported while it closes: it reads none of these partitions
        mine = [TopicPartition(found.topic, found.partition) for found in partitions]
        self._recorder.record(
            Assigned(self._recorder.now_ms(), self._group, self._name, self._generation(), mine),
        )
        # librdkafka does not repeat its own request when the coordinator has just moved (librdkafka #5586): the member
        # would stop until the next rebalance. So the offsets are requested here.
        while not self.stop.is_set():
            try:
                found = consumer.committed(partitions, timeout=OFFSETS_TIMEOUT_S)
            except KafkaException:
                continue
            if all(one.error is None for one in found):
                for one in found:
                    one.offset = one.offset if one.offset >= 0 else OFFSET_BEGINNING
                consumer.assign(found)
                return

    def _revoked(self, _consumer: Any, partitions: list[Any]) -> None:
        self._commit()
        self._gone(partitions, lost=False)

    def _lost(self, _consumer: Any, partitions: list[Any]) -> None:
        self._gone(partitions, lost=True)

    def _gone(self, partitions: list[Any], *, lost: bool) -> None:
        mine = [TopicPartition(found.topic, found.partition) for found in partitions]
        for tp in mine:
            self._positions.pop(tp, None)
        generation = self._generation()
        self._recorder.record(Revoked(self._recorder.now_ms(), self._group, self._name, generation, mine, lost))

    def _commit(self) -> None:
        if not self._positions or self.stop.abandoned:
            return
        recorder, asked, generation = self._recorder, self._recorder.now_ms(), self._generation()
        offsets = [StockPartition(tp.topic, tp.partition, offset) for tp, offset in self._positions.items()]
        refused: set[TopicPartition] = set()
        try:
            answered = self._consumer.commit(offsets=offsets, asynchronous=False)
            refused = {TopicPartition(found.topic, found.partition) for found in answered if found.error is not None}
            failed = False
        except KafkaException:
            failed = True  # an earlier attempt may have been written, so no refusal is certain
        recorder.record(
            *(
                Committed(
                    recorder.now_ms(),
                    self._group,
                    self._name,
                    generation,
                    tp,
                    offset,
                    "unknown" if failed or tp in refused else "ok",
                    asked,
                )
                for tp, offset in self._positions.items()
            )
        )
        if not failed:
            self._positions = {tp: offset for tp, offset in self._positions.items() if tp in refused}

    def run(self, topic: str, stop: Stop) -> None:
        self.stop = stop
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        committed_at = time.monotonic()
        while not stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._received(message)
            elif message is not None and message.error().fatal():
                self._recorder.problem(f"{self._name}: fatal: {message.error().str()}")
            if time.monotonic() - committed_at > COMMIT_EVERY_S:
                self._commit()
                committed_at = time.monotonic()
        self._close()

    def _close(self) -> None:
        """Close within a limit: librdkafka 2.16 waits for ever if two of its threads wait for each other's locks."""
        closing = threading.Thread(target=self._consumer.close, daemon=True)
        closing.start()
        closing.join(CLOSE_LIMIT_S)
        if closing.is_alive():
            self._recorder.problem(f"{self._name} did not close within {CLOSE_LIMIT_S:g} s: see {self._name}.log")

    def _received(self, message: Any) -> None:
        recorder, tp = self._recorder, TopicPartition(message.topic(), message.partition())
        epoch = message.leader_epoch()
        recorder.record(
            Polled(
                recorder.now_ms(),
                self._group,
                self._name,
                tp,
                message.offset(),
                value_id(message.value()),
                leader_epoch=UNKNOWN if epoch is None else epoch,
            )
        )
        self._positions[tp] = message.offset() + 1
        self._progress.read(tp, message.offset())


# ---------------------------------------------------------------- our own


async def write(name: str, bootstrap: str, topic: str, per_s: float, recorder: Recorder, stop: Stop) -> None:
    """Write with Anabranch's idempotent producer until ``stop``. Returns when every record has its outcome."""
    pace, number = Pace(per_s), 0
    async with (
        trio.open_nursery() as answers,
        Producer(
            bootstrap_servers=bootstrap,
            client_id=name,
            enable_idempotence=True,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=8_000,
            linger_ms=5,
        ) as producer,
    ):

        async def settle(value: str, handle: Any) -> None:
            try:
                metadata = await handle.wait()
            except KafkaError as error:
                recorder.record(NotWritten(recorder.now_ms(), name, value, "unknown", repr(error)))
                return
            tp = TopicPartition(topic, metadata.partition)
            offset = metadata.offset if metadata.offset >= 0 else UNKNOWN
            recorder.acknowledged(Acked(recorder.now_ms(), name, tp, offset, value))

        while not stop.is_set():
            for _ in range(pace.due(trio.current_time())):
                key = f"{name}-{number % KEYS}"
                value = f"{key}:{number}"
                recorder.record(Sent(recorder.now_ms(), name, topic, key, value))
                try:
                    handle = await producer.send(topic, value.encode() + PADDING, key.encode())
                except KafkaError as error:
                    recorder.record(NotWritten(recorder.now_ms(), name, value, "refused", repr(error)))
                else:
                    answers.start_soon(settle, value, handle)
                number += 1
            await trio.sleep(BURST_S)  # pause: the pace of the load
        await producer.flush()


class OwnMember:
    """Anabranch's consumer in a group. It commits at the same moments as ``StockMember``."""

    def __init__(self, name: str, group: str, bootstrap: str, recorder: Recorder, progress: Progress) -> None:
        self._name, self._group, self._recorder, self._progress = name, group, recorder, progress
        self._consumer = Consumer(
            bootstrap_servers=bootstrap,
            client_id=name,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            request_timeout_ms=8_000,
            default_api_timeout_ms=20_000,
        )
        self._positions: dict[TopicPartition, int] = {}

    def _generation(self) -> int:
        coordinator = self._consumer._coordinator
        return int(coordinator.member.generation_id) if coordinator is not None else UNKNOWN

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        now_ms = self._recorder.now_ms()
        self._recorder.record(Assigned(now_ms, self._group, self._name, self._generation(), list(partitions)))

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        await self._commit()
        self._gone(partitions, lost=False)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._gone(partitions, lost=True)

    def on_partition_key_maybe_revoked(self, partitions: list[TopicPartition]) -> None:
        now_ms = self._recorder.now_ms()
        self._recorder.record(KeysFlushed(now_ms, self._group, self._name, self._generation(), list(partitions)))

    def on_partition_key_assigned(self, partitions: list[TopicPartition]) -> None:
        now_ms = self._recorder.now_ms()
        self._recorder.record(KeysLoaded(now_ms, self._group, self._name, self._generation(), list(partitions)))

    def _gone(self, partitions: list[TopicPartition], *, lost: bool) -> None:
        for tp in partitions:
            self._positions.pop(tp, None)
        recorder, mine = self._recorder, list(partitions)
        recorder.record(Revoked(recorder.now_ms(), self._group, self._name, self._generation(), mine, lost))

    async def _commit(self) -> None:
        if not self._positions:
            return
        with suppress(KafkaError):
            await self._consumer.commit(dict(self._positions))
            self._positions.clear()

    async def run(self, topic: str, stop: Stop) -> None:
        async with self._consumer as consumer:
            record_commits(consumer, self._name, self._recorder.now_ms, self._recorder.record)
            consumer.subscribe([topic], listener=self, partition_key_listener=self)
            committed_at = trio.current_time()
            while not stop.is_set():
                try:
                    batches = await consumer.getmany(timeout_ms=100)
                except KafkaError as error:
                    self._recorder.problem(f"{self._name}: {error!r}")
                    continue
                for tp, records in batches.items():
                    for record in records:
                        self._received(tp, record.offset, record.value)
                if trio.current_time() - committed_at > COMMIT_EVERY_S:
                    await self._commit()
                    committed_at = trio.current_time()

    def _received(self, tp: TopicPartition, offset: int, value: Any) -> None:
        now_ms = self._recorder.now_ms()
        generation = self._generation()
        self._recorder.record(Polled(now_ms, self._group, self._name, tp, offset, value_id(value), generation))
        self._positions[tp] = offset + 1
        self._progress.read(tp, offset)
