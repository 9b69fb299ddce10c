"""Members of consumer groups, all of one Python library. A test decides when a member has processed a record.

python -m tests.interop.slow_members LIBRARY BOOTSTRAP TOPIC GROUP:RESET[,GROUP:RESET...]

There is a member for each GROUP:RESET; RESET is its ``auto.offset.reset``. A record that is handed out is printed as a
JSON line, ``{"m": member, "p": partition, "k": key, "n": value}``. The record's processing ends when standard input has
a line with the member and the partition, such as ``0 3``. A changed assignment is printed as ``{"m": member,
"assigned": [partitions]}``. At the end of standard input all members leave. A member commits only records that it has
processed. The programs in ``java`` and ``go`` do the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any, NamedTuple

COMMIT_MS = 200
HEARTBEAT_MS = 500
METADATA_MAX_AGE_MS = 1_000
SESSION_TIMEOUT_MS = 6_000
POLL_MS = 100
OUTLASTING_POLL_MS = 5_000
"""The poll time for kafka-python, which drops an assignment that completes between two calls of ``poll``."""


class Processing:
    """The records in process: one at a time for each partition of a member."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._ended: set[tuple[int, int]] = set()
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            member, partition = map(int, line.split())
            with self._changed:
                self._ended.add((member, partition))
                self._changed.notify_all()
        with self._changed:
            self.stopped.set()
            self._changed.notify_all()

    def process(self, member: int, partition: int, key: bytes, value: bytes) -> bool:
        """Wait until the record is processed. Returns False when the process ends first."""
        write_event(m=member, p=partition, k=key.decode(), n=int(value))
        with self._changed:
            self._changed.wait_for(lambda: (member, partition) in self._ended or self.stopped.is_set())
            if self.stopped.is_set():
                return False
            self._ended.remove((member, partition))
            return True


class MemberToBe(NamedTuple):
    number: int
    bootstrap: str
    topic: str
    group: str
    reset: str

    def underscored(self) -> dict[str, Any]:
        """The config of the libraries whose keys are Kafka's with underscores, without the assignor."""
        return {
            "group_id": self.group,
            "auto_offset_reset": self.reset,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        }


def write_event(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Held:
    """The partitions that a member holds."""

    def __init__(self, member: int) -> None:
        self._member = member
        self._partitions: set[int] = set()

    def add(self, partitions: Iterable[Any]) -> None:
        self._partitions |= {partition.partition for partition in partitions}
        write_event(m=self._member, assigned=sorted(self._partitions))

    def remove(self, partitions: Iterable[Any]) -> None:
        self._partitions -= {partition.partition for partition in partitions}
        write_event(m=self._member, assigned=sorted(self._partitions))


def librdkafka(member: MemberToBe, held: Held, processing: Processing) -> None:
    """Run a member of librdkafka. It stores offsets after processing; the default stores them before."""
    from confluent_kafka import Consumer, KafkaError

    consumer = Consumer(
        {
            "bootstrap.servers": member.bootstrap,
            "group.id": member.group,
            "auto.offset.reset": member.reset,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.commit.interval.ms": COMMIT_MS,
            "enable.auto.offset.store": False,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
            "log_level": 0,
        }
    )
    consumer.subscribe(
        [member.topic],
        on_assign=lambda _, partitions: held.add(partitions),
        on_revoke=lambda _, partitions: held.remove(partitions),
    )
    while not processing.stopped.is_set():
        message = consumer.poll(POLL_MS / 1000)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART, message.error()
        elif processing.process(member.number, message.partition(), message.key(), message.value()):
            consumer.store_offsets(message)
    consumer.close()


def kafka_python(member: MemberToBe, held: Held, processing: Processing) -> None:
    """Run a member of kafka-python. Its ``poll`` commits the records that earlier calls returned."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            held.remove(revoked)

        def on_partitions_assigned(self, assigned: Any) -> None:
            held.add(assigned)

    consumer = KafkaConsumer(
        bootstrap_servers=member.bootstrap.split(","),
        auto_commit_interval_ms=COMMIT_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
        **member.underscored(),
    )
    consumer.subscribe([member.topic], listener=Listener())
    while not processing.stopped.is_set():
        for records in consumer.poll(timeout_ms=OUTLASTING_POLL_MS, max_records=1).values():
            for record in records:
                processing.process(member.number, record.partition, record.key, record.value)
    consumer.close()


def aiokafka(member: MemberToBe, held: Held, processing: Processing) -> None:
    """Run a member of aiokafka. It commits explicitly: automatic commits would include records in process.

    Its listener waits for the records in process. Otherwise the member would rebalance during the processing.
    """

    async def run() -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        busy = asyncio.Lock()
        processed: dict[Any, int] = {}
        committed_at = time.monotonic()

        async def commit() -> None:
            nonlocal committed_at
            if processed:
                await consumer.commit(processed)
                processed.clear()
            committed_at = time.monotonic()

        class Listener(ConsumerRebalanceListener):
            async def on_partitions_revoked(self, revoked: Any) -> None:
                async with busy:
                    await commit()
                    held.remove(revoked)

            async def on_partitions_assigned(self, assigned: Any) -> None:
                held.add(assigned)

        consumer = AIOKafkaConsumer(
            bootstrap_servers=member.bootstrap,
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
            **member.underscored(),
        )
        consumer.subscribe([member.topic], listener=Listener())
        await consumer.start()
        try:
            while not processing.stopped.is_set():
                # Outside of the lock: ``getmany`` waits for the end of a rebalance, and so for the listener. It returns
                # no records while a rebalance is in progress.
                found = await consumer.getmany(timeout_ms=POLL_MS, max_records=1)
                async with busy:
                    for partition, (record,) in ((p, records) for p, records in found.items() if records):
                        arguments = (member.number, record.partition, record.key, record.value)
                        if await asyncio.to_thread(processing.process, *arguments):
                            processed[partition] = record.offset + 1
                    if time.monotonic() - committed_at >= COMMIT_MS / 1000:
                        await commit()
        finally:
            await consumer.stop()

    asyncio.run(run())


LIBRARIES = {"librdkafka": librdkafka, "kafka-python": kafka_python, "aiokafka": aiokafka}


def run(library: str, member: MemberToBe, processing: Processing) -> None:
    """Run a member to its end. An error ends the whole process."""
    try:
        LIBRARIES[library](member, Held(member.number), processing)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main(library: str, bootstrap: str, topic: str, groups: str) -> None:
    processing = Processing()
    threads = []
    for number, group in enumerate(groups.split(",")):
        member = MemberToBe(number, bootstrap, topic, *group.split(":"))
        threads.append(threading.Thread(target=run, args=(library, member, processing)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
