"""One member of a consumer group, as a process: ``python -m tests.interop.group_member LIBRARY BOOTSTRAP TOPIC GROUP``.

Prints a JSON line for each record it processed ({"p": partition, "o": offset, "v": value}) and for each assignment
({"assigned": [partitions]}). SIGTERM leaves the group properly; SIGKILL is a crash.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterable
from typing import Any

import anyio

SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 500
COMMIT_MS = 200
POLL_S = 0.1


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def say_assigned(partitions: Iterable[Any]) -> None:
    say(assigned=sorted(partition.partition for partition in partitions))


class Stopped:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._request)

    def _request(self, *_: object) -> None:
        self.requested = True


def confluent_kafka(bootstrap: str, topic: str, group: str, stopped: Stopped) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.commit.interval.ms": COMMIT_MS,
        }
    )
    consumer.subscribe([topic], on_assign=lambda _, partitions: say_assigned(partitions))
    while not stopped.requested:
        for message in consumer.consume(200, timeout=POLL_S):
            if message.error() is None:
                say(p=message.partition(), o=message.offset(), v=message.value().decode())
    consumer.close()


def kafka_python(bootstrap: str, topic: str, group: str, stopped: Stopped) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            return None

        def on_partitions_assigned(self, assigned: Any) -> None:
            say_assigned(assigned)

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_commit_interval_ms=COMMIT_MS,
    )
    consumer.subscribe([topic], listener=Listener())
    while not stopped.requested:
        for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            for record in records:
                say(p=record.partition, o=record.offset, v=record.value.decode())
    consumer.close()


async def _poll_loop(consumer: Any, stopped: Stopped) -> None:
    while not stopped.requested:
        for records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
            for record in records:
                say(p=record.partition, o=record.offset, v=record.value.decode())


def aiokafka(bootstrap: str, topic: str, group: str, stopped: Stopped) -> None:
    async def run() -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

        class Listener(ConsumerRebalanceListener):
            async def on_partitions_revoked(self, revoked: Any) -> None:
                return None

            async def on_partitions_assigned(self, assigned: Any) -> None:
                say_assigned(assigned)

        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_commit_interval_ms=COMMIT_MS,
        )
        consumer.subscribe([topic], listener=Listener())
        await consumer.start()
        try:
            await _poll_loop(consumer, stopped)
        finally:
            await consumer.stop()

    asyncio.run(run())


def anabranch(bootstrap: str, topic: str, group: str, stopped: Stopped) -> None:
    async def run() -> None:
        from anabranch import Consumer

        class Listener:
            def on_partitions_revoked(self, revoked: Any) -> None:
                return None

            def on_partitions_assigned(self, assigned: Any) -> None:
                say_assigned(assigned)

        async with Consumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_commit_interval_ms=COMMIT_MS,
        ) as consumer:
            consumer.subscribe([topic], listener=Listener())
            await _poll_loop(consumer, stopped)

    anyio.run(run)


MEMBERS = {
    "confluent-kafka": confluent_kafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "anabranch": anabranch,
}

if __name__ == "__main__":
    MEMBERS[sys.argv[1]](sys.argv[2], sys.argv[3], sys.argv[4], Stopped())
