"""Load for tests that kill servers: a producer, and a check that every acknowledged record exists afterwards."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from anabranch.testing.processes import wait_for
from tests.interop.clients import LIBRARIES

DEADLINE_S = 90.0
KEYS = 60
NO_LEADER = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}


class Load:
    """An idempotent librdkafka producer that writes numbered records until it is stopped.

    ``settings`` are added to the producer's configuration.
    """

    def __init__(self, bootstrap: str, topic: str, settings: Mapping[str, Any] | None = None) -> None:
        self.acknowledged: list[tuple[int, bytes]] = []
        self.failed: list[Any] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 2,
                "message.timeout.ms": int(DEADLINE_S * 1000),
                "reconnect.backoff.max.ms": 500,
                "statistics.interval.ms": 100,
                "stats_cb": self._take_statistics,
                **(settings or {}),
            }
        )
        self._topic = topic
        self._thread = threading.Thread(target=self._run)
        self._epochs: list[tuple[int, int]] = []
        """The producer's statistics: how often the producer got an id and epoch, and the present epoch."""

    def _take_statistics(self, statistics: str) -> None:
        of_producer = json.loads(statistics)["eos"]
        self._epochs.append((of_producer["epoch_cnt"], of_producer["producer_epoch"]))

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged.append((message.partition(), message.value()))

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                value = b"%d" % number + b"." * 200
                self._producer.produce(self._topic, value, b"%d" % (number % KEYS), on_delivery=self._delivered)
                number += 1
            except BufferError:
                self._producer.poll(0.05)
            if number % 50 == 0:
                self._producer.poll(0.001)
        self._producer.flush(DEADLINE_S)
        self._epochs.clear()
        while not self._epochs:
            self._producer.poll(DEADLINE_S)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_more(self, records: int) -> None:
        start = len(self.acknowledged)
        wait_for(lambda: len(self.acknowledged) >= start + records, DEADLINE_S, f"{records} more are acknowledged")

    def check(self, bootstrap: str, partitions: int, refused: Collection[int] = ()) -> None:
        """Check that each acknowledged record exists once, in the order in which the records were written.

        Records may fail only with one of the errors ``refused``. If ``refused`` has errors, only loss is checked. When
        librdkafka has raised its producer epoch, it may have written unacknowledged records again. Then only the first
        copy of each record is checked. librdkafka raises the epoch when one sequence overtakes another at a leader
        change (librdkafka 4953).
        """
        unexpected = Counter(error.str() for error in self.failed if error.code() not in refused)
        assert not unexpected, unexpected
        stored_count = records_of(bootstrap, self._topic, partitions)
        seen = LIBRARIES["confluent-kafka"].consume(bootstrap, self._topic, partitions, stored_count)
        expected: dict[int, list[bytes]] = {}
        for partition, value in self.acknowledged:
            expected.setdefault(partition, []).append(value)
        for partition in range(partitions):
            stored = [item.value for item in seen.get(partition, [])]
            assert not set(expected.get(partition, ())) - set(stored)
            if refused:
                continue
            if self._epochs[-1] != (1, 0):
                stored = list(dict.fromkeys(stored))
            numbers = [int(value.split(b".")[0]) for value in stored]
            more = Counter(stored) - Counter(expected[partition])
            assert not more, f"{more.total()} records of partition {partition} are stored more often than acknowledged"
            assert numbers == sorted(numbers), f"the records of partition {partition} are out of order"


def records_of(bootstrap: str, topic: str, partitions: int) -> int:
    """The number of records that consumers can read. Leaders may move meanwhile, for example to preferred replicas."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
    found: dict[int, int] = {}

    def look() -> bool:
        for number in set(range(partitions)) - set(found):
            try:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=DEADLINE_S)
            except KafkaException as error:
                if error.args[0].code() not in NO_LEADER:
                    raise
                return False
            found[number] = high - low
        return True

    wait_for(look, DEADLINE_S, f"the leaders of {topic} answer")
    consumer.close()
    return sum(found.values())


def in_sync(bootstrap: str, topic: str, replicas: int) -> bool:
    """Whether every partition has a leader and all replicas in its ISR."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=DEADLINE_S).topics[topic]
    return all(len(partition.isrs) == replicas and partition.leader > 0 for partition in found.partitions.values())
