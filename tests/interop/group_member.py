"""One member of a consumer group, as a process.

``python -m tests.interop.group_member LIBRARY BOOTSTRAP TOPIC GROUP [instance=ID] [assignor=NAME] [session_ms=N]``

It prints a JSON line for each record that it has processed ({"p": partition, "o": offset, "v": value}). After a change
of its assignment it prints its partitions ({"assigned": [partitions]}). It leaves the group on SIGTERM; SIGKILL is a
crash.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import anyio

HEARTBEAT_MS = 500
COMMIT_MS = 200
POLL_S = 0.1


@dataclass(frozen=True)
class Options:
    """The options of a member. ``instance`` makes it static; ``assignor`` None is the library's default."""

    bootstrap: str
    topic: str
    group: str
    instance: str | None = None
    assignor: str | None = None
    session_ms: int = 6_000

    @classmethod
    def parse(cls, bootstrap: str, topic: str, group: str, *named: str) -> Options:
        given: dict[str, Any] = dict(text.split("=", 1) for text in named)
        if "session_ms" in given:
            given["session_ms"] = int(given["session_ms"])
        return cls(bootstrap, topic, group, **given)

    def underscored(self) -> dict[str, Any]:
        """The config of the libraries whose keys are Kafka's with underscores, without the assignor."""
        return {
            "group_id": self.group,
            "auto_offset_reset": "earliest",
            "group_instance_id": self.instance,
            "session_timeout_ms": self.session_ms,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "auto_commit_interval_ms": COMMIT_MS,
        }


def write_event(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Held:
    """The partitions of a member, as eager and cooperative rebalances add and revoke them."""

    def __init__(self) -> None:
        self._partitions: set[int] = set()

    def add(self, partitions: Iterable[Any]) -> None:
        self._partitions |= {partition.partition for partition in partitions}
        write_event(assigned=sorted(self._partitions))

    def remove(self, partitions: Iterable[Any]) -> None:
        self._partitions -= {partition.partition for partition in partitions}
        write_event(assigned=sorted(self._partitions))


class Stopped:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._request)

    def _request(self, *_: object) -> None:
        self.requested = True


def confluent_kafka(options: Options, held: Held, stopped: Stopped) -> None:
    from confluent_kafka import Consumer

    config: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": options.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "auto.commit.interval.ms": COMMIT_MS,
    }
    if options.instance is not None:
        config["group.instance.id"] = options.instance
    if options.assignor is not None:
        config["partition.assignment.strategy"] = options.assignor
    consumer = Consumer(config)
    consumer.subscribe(
        [options.topic],
        on_assign=lambda _, partitions: held.add(partitions),
        on_revoke=lambda _, partitions: held.remove(partitions),
    )
    while not stopped.requested:
        for message in consumer.consume(200, timeout=POLL_S):
            if message.error() is None:
                write_event(p=message.partition(), o=message.offset(), v=message.value().decode())
    consumer.close()


def kafka_python(options: Options, held: Held, stopped: Stopped) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            held.remove(revoked)

        def on_partitions_assigned(self, assigned: Any) -> None:
            held.add(assigned)

    config = options.underscored()
    if options.assignor is not None:
        known = [RangePartitionAssignor, RoundRobinPartitionAssignor, CooperativeStickyAssignor]
        config["partition_assignment_strategy"] = [cls for cls in known if cls.name == options.assignor]
    consumer = KafkaConsumer(bootstrap_servers=options.bootstrap.split(","), **config)
    consumer.subscribe([options.topic], listener=Listener())
    while not stopped.requested:
        for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            for record in records:
                write_event(p=record.partition, o=record.offset, v=record.value.decode())
    consumer.close()


async def _poll_loop(consumer: Any, stopped: Stopped) -> None:
    while not stopped.requested:
        for records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
            for record in records:
                write_event(p=record.partition, o=record.offset, v=record.value.decode())


def aiokafka(options: Options, held: Held, stopped: Stopped) -> None:
    async def run() -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        class Listener(ConsumerRebalanceListener):
            async def on_partitions_revoked(self, revoked: Any) -> None:
                held.remove(revoked)

            async def on_partitions_assigned(self, assigned: Any) -> None:
                held.add(assigned)

        config = options.underscored()
        if options.assignor is not None:
            known = [RangePartitionAssignor, RoundRobinPartitionAssignor]
            config["partition_assignment_strategy"] = [cls for cls in known if cls.name == options.assignor]
        consumer = AIOKafkaConsumer(bootstrap_servers=options.bootstrap, **config)
        consumer.subscribe([options.topic], listener=Listener())
        await consumer.start()
        try:
            await _poll_loop(consumer, stopped)
        finally:
            await consumer.stop()

    asyncio.run(run())


def anabranch(options: Options, held: Held, stopped: Stopped) -> None:
    async def run() -> None:
        from anabranch import Consumer

        class Listener:
            def on_partitions_revoked(self, revoked: Any) -> None:
                held.remove(revoked)

            def on_partitions_assigned(self, assigned: Any) -> None:
                held.add(assigned)

        config = options.underscored()
        if options.assignor is not None:
            config["partition_assignment_strategy"] = options.assignor
        async with Consumer(bootstrap_servers=options.bootstrap, **config) as consumer:
            consumer.subscribe([options.topic], listener=Listener())
            await _poll_loop(consumer, stopped)

    anyio.run(run)


MEMBERS = {
    "confluent-kafka": confluent_kafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "anabranch": anabranch,
}

if __name__ == "__main__":
    MEMBERS[sys.argv[1]](Options.parse(*sys.argv[2:]), Held(), Stopped())
