"""Common functions of the failure tests: a stock client that writes and reads a cluster's topics."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer
from kazoo.client import KazooClient

from anabranch.client.errors import ErrorCode, KafkaError
from anabranch.sync import Admin
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.interop.clients import LIBRARIES

DEADLINE_S = 60.0


def write(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes],
    *,
    partition: int = 0,
    timeout_s: float = 45.0,
    retry: bool = True,
) -> list[Any]:
    """Write ``values`` to one partition, and return the errors of the refused values, in order.

    The producer is idempotent. Without ``retry`` it is a plain producer, which shows the broker's first response.
    """
    errors: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "message.timeout.ms": int(timeout_s * 1000),
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.fast.interval.ms": 100,
            "linger.ms": 5,
            **({"enable.idempotence": True} if retry else {"retries": 0}),
        }
    )
    for value in values:
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error) if error else None
        )
    assert producer.flush(timeout_s + 10) == 0
    return errors


def read(bootstrap: str, topic: str, count: int, *, partitions: int = 1) -> list[bytes]:
    """The first ``count`` values of a topic, partition after partition."""
    seen = LIBRARIES["confluent-kafka"].consume(bootstrap, topic, partitions, count)
    return [item.value for partition in sorted(seen) for item in seen[partition]]


def numbered(start: int, count: int) -> list[bytes]:
    return [b"%06d" % number + b"." * 100 for number in range(start, start + count)]


def leaders(cluster: ProcessCluster, topic: str) -> list[int]:
    """The leader of each partition in a broker's metadata, -1 for none. Empty while the metadata lacks the topic."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        try:
            found = admin.describe_topics([topic])[topic]
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return []
    return [partition.leader for partition in found.partitions]


@contextmanager
def zookeeper(cluster: ProcessCluster) -> Iterator[KazooClient]:
    """A session with the ZooKeeper of a cluster."""
    client = KazooClient(hosts=cluster.state["zookeeper"])
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def controller_log(cluster: ProcessCluster) -> str:
    """The logs of all controllers of a cluster."""
    logs = sorted((cluster.directory / "data" / "logs").glob("controller-*.log"))
    return "".join(log.read_text(errors="replace") for log in logs)


def wait_until_led(cluster: ProcessCluster, topic: str) -> None:
    wait_for(lambda: min(leaders(cluster, topic), default=-1) >= 0, DEADLINE_S, f"{topic} has its leaders")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the process by SIGSTOP during the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
