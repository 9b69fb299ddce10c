"""kill -9 of a broker under load: what was acknowledged is there afterwards, once, in order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from anabranch.testing.processes import ProcessCluster, wait_for
from tests.interop.clients import LIBRARIES
from tests.topics import create_topic

PARTITIONS = 6
DEADLINE_S = 90.0
KEYS = 60

pytestmark = pytest.mark.integration


class Load:
    """An idempotent librdkafka producer that writes numbered records until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
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
            }
        )
        self._topic = topic
        self._thread = threading.Thread(target=self._run)

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

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_more(self, records: int) -> None:
        start = len(self.acknowledged)
        wait_for(lambda: len(self.acknowledged) >= start + records, DEADLINE_S, f"{records} more are acknowledged")


@pytest.mark.parametrize(
    ("replicas", "overrides"),
    [
        (1, {"log.flush.interval.messages": "1"}),
        (3, {"min.insync.replicas": "2"}),
        (3, {"min.insync.replicas": "2", "log.flush": "ack"}),
    ],
    ids=["one replica flushed", "three replicas", "three replicas flushed"],
)
def test_every_acknowledged_record_survives_kill_9(
    fresh_name: Callable[[str], str], replicas: int, overrides: dict[str, str]
) -> None:
    with ProcessCluster(brokers=3, overrides={"log.segment.bytes": "1048576", **overrides}) as cluster:
        topic = fresh_name("killed")
        create_topic(cluster.bootstrap, topic, PARTITIONS, replication_factor=replicas)
        with Load(cluster.bootstrap, topic) as load:
            for broker_id in (1, 2, 3):
                load.wait_for_more(2_000)
                cluster.kill_broker(broker_id)
                wait_for(lambda: in_sync(cluster.bootstrap, topic, replicas), DEADLINE_S, "every replica is in sync")
            load.wait_for_more(2_000)
        assert load.failed == []
        seen = LIBRARIES["confluent-kafka"].consume(cluster.bootstrap, topic, PARTITIONS, len(load.acknowledged))
        wait_for(lambda: in_sync(cluster.bootstrap, topic, replicas), DEADLINE_S, "every replica is in sync")
        directories = [cluster.log_dir(broker_id) for broker_id in (1, 2, 3)]
        expected: dict[int, list[bytes]] = {}
        for partition, value in load.acknowledged:
            expected.setdefault(partition, []).append(value)
        for partition in range(PARTITIONS):
            stored = [item.value for item in seen[partition]]
            assert Counter(stored) == Counter(expected[partition])
            assert stored == sorted(stored, key=lambda value: int(value.split(b".")[0]))
            copies = [content for root in directories if (content := log_bytes(root, f"{topic}-{partition}"))]
            assert len(copies) == replicas and len(set(copies)) == 1, f"the replicas of {topic}-{partition} differ"


def in_sync(bootstrap: str, topic: str, replicas: int) -> bool:
    """Whether every partition has a leader and its whole ISR."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=DEADLINE_S).topics[topic]
    return all(len(partition.isrs) == replicas and partition.leader > 0 for partition in found.partitions.values())


def log_bytes(root: Path, partition: str) -> bytes:
    """All segments of a replica, one after the other; nothing when there is no replica here."""
    return b"".join(path.read_bytes() for path in sorted((root / partition).glob("*.log")))
