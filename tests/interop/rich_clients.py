"""Uses all parts of a record, and the settings of a producer, with each Python client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

DEADLINE_S = 60.0


class Rich(NamedTuple):
    """A record with all its parts; ``timestamp`` in ms."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int


class RichLibrary(Protocol):
    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Rich], acks: int | str, max_bytes: int = 1_000_000
    ) -> None:
        """Write to partition 0 without idempotence; a refusal of the broker raises the library's error.

        ``max_bytes`` is the client's own limit for a request.
        """
        ...

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Rich]:
        """Read ``count`` records of partition 0 from its start, as read_committed."""
        ...

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int | None:
        """The first offset of partition 0 at or after a timestamp; None when there is none."""
        ...


class ConfluentKafka:
    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Rich], acks: int | str, max_bytes: int = 1_000_000
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        errors: list[Any] = []
        producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "message.max.bytes": max_bytes})
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=0,
                timestamp=record.timestamp,
                headers=list(record.headers),
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        assert producer.flush(DEADLINE_S) == 0
        if errors:
            raise KafkaException(errors[0])

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Rich]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        seen: list[Rich] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(seen) < count and time.monotonic() < deadline:
            for message in consumer.consume(100, timeout=0.5):
                assert message.error() is None, message.error()
                headers = tuple(message.headers() or ())
                seen.append(Rich(message.key(), message.value(), headers, message.timestamp()[1]))
        consumer.close()
        return seen

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int | None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], timeout=DEADLINE_S)
        assert found.error is None, found.error
        consumer.close()
        return None if found.offset < 0 else int(found.offset)


class KafkaPython:
    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Rich], acks: int | str, max_bytes: int = 1_000_000
    ) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","), acks=acks, enable_idempotence=False, max_request_size=max_bytes
        )
        try:
            futures = [
                producer.send(
                    topic, record.value, record.key, list(record.headers), partition=0, timestamp_ms=record.timestamp
                )
                for record in records
            ]
            for future in futures:
                future.get(DEADLINE_S)
        finally:
            producer.close()

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Rich]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), isolation_level="read_committed")
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        seen: list[Rich] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(seen) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                seen += [Rich(r.key, r.value, tuple(r.headers), r.timestamp) for r in records]
        consumer.close()
        return seen

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int | None:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","))
        found = consumer.offsets_for_times({TopicPartition(topic, 0): timestamp})[TopicPartition(topic, 0)]
        consumer.close()
        return None if found is None else int(found.offset)


class AioKafka:
    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Rich], acks: int | str, max_bytes: int = 1_000_000
    ) -> None:
        async def run() -> None:
            from aiokafka import AIOKafkaProducer

            async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=acks, max_request_size=max_bytes) as producer:
                for record in records:
                    await producer.send_and_wait(
                        topic,
                        record.value,
                        record.key,
                        partition=0,
                        timestamp_ms=record.timestamp,
                        headers=list(record.headers),
                    )

        asyncio.run(run())

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Rich]:
        async def run() -> list[Rich]:
            from aiokafka import AIOKafkaConsumer, TopicPartition

            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
            await consumer.start()
            try:
                consumer.assign([TopicPartition(topic, 0)])
                await consumer.seek_to_beginning()
                seen: list[Rich] = []
                deadline = time.monotonic() + DEADLINE_S
                while len(seen) < count and time.monotonic() < deadline:
                    for records in (await consumer.getmany(timeout_ms=500)).values():
                        seen += [Rich(r.key, r.value, tuple(r.headers), r.timestamp) for r in records]
                return seen
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int | None:
        async def run() -> int | None:
            from aiokafka import AIOKafkaConsumer, TopicPartition

            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
            await consumer.start()
            try:
                partition = TopicPartition(topic, 0)
                found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
                return None if found is None else int(found.offset)
            finally:
                await consumer.stop()

        return asyncio.run(run())


class AnabranchSync:
    """Anabranch's client, through its blocking façade."""

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Rich], acks: int | str, max_bytes: int = 1_000_000
    ) -> None:
        from anabranch.sync import Producer

        with Producer(bootstrap_servers=bootstrap, acks=acks, max_request_size=max_bytes) as producer:
            handles = [
                producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    partition=0,
                    timestamp_ms=record.timestamp,
                    headers=record.headers,
                )
                for record in records
            ]
            for handle in handles:
                handle.result()

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Rich]:
        from anabranch import TopicPartition
        from anabranch.sync import Consumer

        seen: list[Rich] = []
        deadline = time.monotonic() + DEADLINE_S
        with Consumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            while len(seen) < count and time.monotonic() < deadline:
                for records in consumer.getmany(timeout_ms=500).values():
                    seen += [Rich(r.key, r.value, tuple(r.headers), r.timestamp) for r in records]
        return seen

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int | None:
        from anabranch import TopicPartition
        from anabranch.sync import Consumer

        partition = TopicPartition(topic, 0)
        with Consumer(bootstrap_servers=bootstrap) as consumer:
            found = consumer.offsets_for_times({partition: timestamp})[partition]
        return None if found is None else int(found.offset)


RICH_LIBRARIES: dict[str, RichLibrary] = {
    "confluent-kafka": ConfluentKafka(),
    "kafka-python": KafkaPython(),
    "aiokafka": AioKafka(),
    "anabranch.sync": AnabranchSync(),
}
