"""Stock producers and group consumers that continue through a resize, each library in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.key_placement import positive_hash
from tests.interop.clients import Item

METADATA_MAX_AGE_MS = 1_000
SEND_DEADLINE_S = 60.0
COMMIT_EVERY_MS = 200
SESSION_TIMEOUT_MS = 6_000
"""The time by which a group member that never reports its positions delays a removal."""
POLL_MS = 100
OUTLASTING_POLL_MS = 5_000
"""The poll time for kafka-python 3.0.12, which drops an assignment that completes between two polls.

A poll that gets records ends at once.
"""
PAUSE_S = 0.02
RECORD_ERRORS = frozenset({ErrorCode.POLICY_VIOLATION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""The errors that a producer may get during a resize: a refused layout, or a removed partition."""


class Outcome(NamedTuple):
    """The outcome of one record. ``offset`` is -1 for a record that was refused with ``error``."""

    partition: int
    offset: int
    error: int = 0


class StockProducer(ABC):
    """One producer of one library. Used by one thread only."""

    @abstractmethod
    def send(self, item: Item, partition: int | None = None) -> Outcome:
        """Write one record in a batch of its own, and wait for its outcome."""

    @abstractmethod
    def close(self) -> None: ...


class _Confluent(StockProducer):
    def __init__(self, bootstrap: str, topic: str, partitioner: str) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": partitioner,
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

    def send(self, item: Item, partition: int | None = None) -> Outcome:
        from confluent_kafka import KafkaError, KafkaException

        outcomes: list[Outcome] = []

        def delivered(error: Any, message: Any) -> None:
            code = 0 if error is None else int(error.code())
            if code in (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            outcomes.append(Outcome(message.partition(), -1 if code else message.offset(), code))

        chosen = {} if partition is None else {"partition": partition}
        try:
            self._producer.produce(self._topic, item.value, item.key, on_delivery=delivered, **chosen)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            return Outcome(-1 if partition is None else partition, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert self._producer.flush(SEND_DEADLINE_S) == 0, "a record is neither acknowledged nor refused"
        return outcomes[0]

    def close(self) -> None:
        self._producer.flush(SEND_DEADLINE_S)


class _KafkaPython(StockProducer):
    def __init__(self, bootstrap: str, topic: str, *, idempotent: bool) -> None:
        from kafka import KafkaProducer

        self._topic = topic
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            acks="all",
            enable_idempotence=idempotent,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )

    def send(self, item: Item, partition: int | None = None) -> Outcome:
        from kafka.errors import KafkaError

        try:
            sent = self._producer.send(self._topic, key=item.key, value=item.value, partition=partition)
            written = sent.get(SEND_DEADLINE_S)
        except KafkaError as error:
            if error.errno <= 0:
                raise
            return Outcome(-1 if partition is None else partition, -1, error.errno)
        return Outcome(written.partition, written.offset)

    def close(self) -> None:
        self._producer.close(SEND_DEADLINE_S)


class _AioKafka(StockProducer):
    def __init__(self, bootstrap: str, topic: str, *, idempotent: bool) -> None:
        from aiokafka import AIOKafkaProducer

        self._topic = topic
        self._loop = asyncio.new_event_loop()

        async def start() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, enable_idempotence=idempotent, metadata_max_age_ms=METADATA_MAX_AGE_MS
            )
            await producer.start()
            return producer

        self._producer = self._loop.run_until_complete(start())

    def send(self, item: Item, partition: int | None = None) -> Outcome:
        from aiokafka.errors import KafkaError, NotLeaderForPartitionError

        sent = self._producer.send_and_wait(self._topic, key=item.key, value=item.value, partition=partition)
        try:
            written = self._loop.run_until_complete(asyncio.wait_for(sent, SEND_DEADLINE_S))
        except NotLeaderForPartitionError:
            # aiokafka raises this after its request timeout when the partition was removed before the record was sent.
            return Outcome(-1 if partition is None else partition, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        except KafkaError as error:
            if error.errno <= 0:
                raise
            return Outcome(-1 if partition is None else partition, -1, error.errno)
        return Outcome(written.partition, written.offset)

    def close(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()


class Stock(NamedTuple):
    """A stock producer as users configure it: the function that opens it, and its hash of keys."""

    open: Callable[[str, str], StockProducer]
    key_hash: Callable[[bytes], int]


PRODUCERS = {
    "librdkafka, murmur2_random": Stock(lambda b, t: _Confluent(b, t, "murmur2_random"), positive_hash),
    "librdkafka, its default": Stock(lambda b, t: _Confluent(b, t, "consistent_random"), zlib.crc32),
    "kafka-python": Stock(lambda b, t: _KafkaPython(b, t, idempotent=False), positive_hash),
    "aiokafka": Stock(lambda b, t: _AioKafka(b, t, idempotent=False), positive_hash),
}
"""The producers that continue after a refusal."""

STRANDED = {
    "kafka-python, idempotent": Stock(lambda b, t: _KafkaPython(b, t, idempotent=True), positive_hash),
    "aiokafka, idempotent": Stock(lambda b, t: _AioKafka(b, t, idempotent=True), positive_hash),
}
"""Idempotent producers that cannot continue after a permanent refusal.

kafka-python, whose producer is idempotent by default, enters a fatal state. aiokafka leaves a gap in the partition's
sequence. librdkafka and Java raise the producer epoch instead.
"""


class _Thread(ABC):
    """Runs ``_run`` until the ``with`` block ends. The end of the block raises an exception of ``_run``."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error

    @abstractmethod
    def _run(self) -> None: ...

    def check(self) -> None:
        """Raise the error that ended the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join(SEND_DEADLINE_S)
        if kind is None:
            self.check()
            assert not self._thread.is_alive(), f"the producer or consumer did not stop within {SEND_DEADLINE_S} s"


class KeyedLoad(_Thread):
    """Writes one record of each key, round after round. Values are unique: name, round, key."""

    def __init__(self, name: str, bootstrap: str, topic: str, keys: Sequence[bytes]) -> None:
        super().__init__()
        self.acknowledged: dict[bytes, Outcome] = {}
        self.refused: dict[bytes, Outcome] = {}
        self.rounds: list[dict[bytes, Outcome]] = []
        self._where = (bootstrap, topic)
        self.name, self._keys = name, keys

    def _run(self) -> None:
        producer = PRODUCERS[self.name].open(*self._where)
        while not self._stop.is_set():
            outcomes = {}
            for key in self._keys:
                value = b"%s %d %s" % (self.name.encode(), len(self.rounds), key)
                outcome = outcomes[key] = producer.send(Item(key, value))
                assert outcome.error in (ErrorCode.NONE, *RECORD_ERRORS), outcome
                (self.refused if outcome.error else self.acknowledged)[value] = outcome
            self.rounds.append(outcomes)
            time.sleep(PAUSE_S)  # pause: leaves CPU time for the clients in other threads
        producer.close()


class GroupReader(_Thread):
    """A group's only member. It reads from the earliest offset on. ``seen`` is ``{value: {(partition, offset)}}``."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__()
        self.seen: dict[bytes, set[tuple[int, int]]] = {}
        self._bootstrap, self._topic, self._group = bootstrap, topic, group

    def take(self, value: bytes, partition: int, offset: int) -> None:
        self.seen.setdefault(value, set()).add((partition, offset))

    def underscored(self) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": COMMIT_EVERY_MS,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
        }


class _ConfluentReader(GroupReader):
    def _run(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": COMMIT_EVERY_MS,
                "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "log_level": 0,
            }
        )
        consumer.subscribe([self._topic])
        while not self._stop.is_set():
            for message in consumer.consume(500, POLL_MS / 1000):
                if message.error() is not None:
                    assert message.error().code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message.error()
                    continue
                self.take(message.value(), message.partition(), message.offset())
        consumer.close()


class _KafkaPythonReader(GroupReader):
    def _run(self) -> None:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            self._topic, bootstrap_servers=self._bootstrap.split(","), enable_auto_commit=True, **self.underscored()
        )
        while not self._stop.is_set():
            for partition, records in consumer.poll(timeout_ms=OUTLASTING_POLL_MS).items():
                for record in records:
                    self.take(record.value, partition.partition, record.offset)
        consumer.close()


class _AioKafkaReader(GroupReader):
    def _run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(self._topic, bootstrap_servers=self._bootstrap, **self.underscored())
        await consumer.start()
        try:
            while not self._stop.is_set():
                for partition, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                    for record in records:
                        self.take(record.value, partition.partition, record.offset)
        finally:
            await consumer.stop()


READERS: dict[str, type[GroupReader]] = {
    "librdkafka": _ConfluentReader,
    "kafka-python": _KafkaPythonReader,
    "aiokafka": _AioKafkaReader,
}


@contextmanager
def all_stock_clients(
    bootstrap: str, topic: str, keys: Sequence[bytes]
) -> Iterator[tuple[list[KeyedLoad], list[GroupReader]]]:
    """Run every stock producer and a group of each library."""
    with ExitStack() as clients:
        readers = [clients.enter_context(kind(bootstrap, topic, f"{topic} {name}")) for name, kind in READERS.items()]
        loads = [clients.enter_context(KeyedLoad(name, bootstrap, topic, keys)) for name in PRODUCERS]
        yield loads, readers
