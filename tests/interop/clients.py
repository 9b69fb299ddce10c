"""The same operations with each client library: produce keyed records, and read a topic from its start."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import anyio

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
READ_DEADLINE_S = 60.0


class Item(NamedTuple):
    """A record as every library can write and read it."""

    key: bytes | None
    value: bytes


class ClientLibrary(Protocol):
    def produce(self, bootstrap: str, topic: str, items: Sequence[Item], codec: str) -> None:
        """Write all items with acks=all and wait until they are acknowledged."""
        ...

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> dict[int, list[Item]]:
        """Read ``count`` records from the start, without a group, in offset order per partition."""
        ...


class ConfluentKafka:
    def produce(self, bootstrap: str, topic: str, items: Sequence[Item], codec: str) -> None:
        from confluent_kafka import Producer

        errors: list[Any] = []
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
            }
        )
        for item in items:
            producer.produce(
                topic, item.value, item.key, on_delivery=lambda error, _: errors.append(error) if error else None
            )
        assert producer.flush(READ_DEADLINE_S) == 0
        assert errors == []

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> dict[int, list[Item]]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        seen: dict[int, list[Item]] = {}
        deadline = time.monotonic() + READ_DEADLINE_S
        while sum(map(len, seen.values())) < count and time.monotonic() < deadline:
            for message in consumer.consume(500, timeout=0.5):
                assert message.error() is None, message.error()
                seen.setdefault(message.partition(), []).append(Item(message.key(), message.value()))
        consumer.close()
        return seen


class KafkaPython:
    def produce(self, bootstrap: str, topic: str, items: Sequence[Item], codec: str) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            acks="all",
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
        )
        futures = [producer.send(topic, key=item.key, value=item.value) for item in items]
        producer.flush(READ_DEADLINE_S)
        for future in futures:
            future.get(READ_DEADLINE_S)
        producer.close()

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> dict[int, list[Item]]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), enable_auto_commit=False)
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        seen: dict[int, list[Item]] = {}
        deadline = time.monotonic() + READ_DEADLINE_S
        while sum(map(len, seen.values())) < count and time.monotonic() < deadline:
            for partition, records in consumer.poll(timeout_ms=500).items():
                seen.setdefault(partition.partition, []).extend(Item(record.key, record.value) for record in records)
        consumer.close()
        return seen


async def _produce_all(producer: Any, topic: str, items: Sequence[Item]) -> None:
    handles = [await producer.send(topic, key=item.key, value=item.value) for item in items]
    for handle in handles:
        await handle


async def _poll_until(consumer: Any, count: int) -> dict[int, list[Item]]:
    seen: dict[int, list[Item]] = {}
    deadline = time.monotonic() + READ_DEADLINE_S
    while sum(map(len, seen.values())) < count and time.monotonic() < deadline:
        for partition, records in (await consumer.getmany(timeout_ms=500)).items():
            seen.setdefault(partition.partition, []).extend(Item(record.key, record.value) for record in records)
    return seen


class AioKafka:
    def produce(self, bootstrap: str, topic: str, items: Sequence[Item], codec: str) -> None:
        async def run() -> None:
            from aiokafka import AIOKafkaProducer

            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                enable_idempotence=True,
                compression_type=None if codec == "none" else codec,
                linger_ms=20,
            )
            await producer.start()
            try:
                await _produce_all(producer, topic, items)
            finally:
                await producer.stop()

        asyncio.run(run())

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> dict[int, list[Item]]:
        async def run() -> dict[int, list[Item]]:
            from aiokafka import AIOKafkaConsumer, TopicPartition

            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
            await consumer.start()
            try:
                assigned = [TopicPartition(topic, number) for number in range(partitions)]
                consumer.assign(assigned)
                await consumer.seek_to_beginning(*assigned)
                return await _poll_until(consumer, count)
            finally:
                await consumer.stop()

        return asyncio.run(run())


class Kcat:
    """librdkafka from Debian's kcat: an older release than the one inside confluent-kafka."""

    def produce(self, bootstrap: str, topic: str, items: Sequence[Item], codec: str) -> None:
        lines = b"".join(b"%s\t%s\n" % item for item in items)
        settings = ["-X", "acks=all", "-X", "partitioner=murmur2_random", "-X", "linger.ms=20", "-z", codec]
        command = ["kcat", "-P", "-b", bootstrap, "-t", topic, "-K", "\t", *settings]
        subprocess.run(command, input=lines, capture_output=True, check=True, timeout=READ_DEADLINE_S)

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> dict[int, list[Item]]:
        command = ["kcat", "-C", "-b", bootstrap, "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%p\t%k\t%s\n"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=READ_DEADLINE_S)
        seen: dict[int, list[Item]] = {}
        for line in done.stdout.splitlines():
            partition, key, value = line.split(b"\t")
            seen.setdefault(int(partition), []).append(Item(key, value))
        return seen


class Anabranch:
    def produce(self, bootstrap: str, topic: str, items: Sequence[Item], codec: str) -> None:
        async def run() -> None:
            from anabranch import Producer

            async with Producer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=20) as producer:
                await _produce_all(producer, topic, items)

        anyio.run(run)

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> dict[int, list[Item]]:
        async def run() -> dict[int, list[Item]]:
            from anabranch import Consumer, TopicPartition

            async with Consumer(
                bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
            ) as consumer:
                consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
                return await _poll_until(consumer, count)

        return anyio.run(run)


LIBRARIES: dict[str, ClientLibrary] = {
    "confluent-kafka": ConfluentKafka(),
    "kafka-python": KafkaPython(),
    "aiokafka": AioKafka(),
    "kcat": Kcat(),
    "anabranch": Anabranch(),
}


def unavailable(library: str) -> str | None:
    """The reason why a library is not available on this machine; None for an available library."""
    if library == "kcat" and shutil.which("kcat") is None:
        return "kcat is not installed (Debian package kcat)"
    return None
