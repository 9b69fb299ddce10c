"""Measures how long producers wait when a leader dies: from its kill -9 to the next leader's first acknowledgement."""

from __future__ import annotations

import time
from typing import Any

from bench.targets import Target

DEADLINE_S = 120.0
POLL_S = 0.02


def fail_over(target: Target, topic: str) -> dict[str, float]:
    """Kill the leader of the topic's partition 0 under a librdkafka producer, and restart it afterwards."""
    from confluent_kafka import Producer

    leader = wait_in_sync(target, topic)
    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "topic.metadata.refresh.fast.interval.ms": 20,
            "log_level": 0,
        }
    )
    acknowledged: list[float] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is None:
            acknowledged.append(time.perf_counter())

    producer.produce(topic, b"before", partition=0, on_delivery=delivered)
    producer.flush(DEADLINE_S)
    assert acknowledged, f"{target.name} did not acknowledge a record before its leader was killed"
    acknowledged.clear()
    target.kill(leader)
    killed = time.perf_counter()
    while not acknowledged and time.perf_counter() - killed < DEADLINE_S:
        producer.produce(topic, b"after", partition=0, on_delivery=delivered)
        producer.poll(POLL_S)
    waited_s = acknowledged[0] - killed
    producer.flush(DEADLINE_S)
    target.restart(leader)
    wait_in_sync(target, topic)
    return {"fail_over_s": waited_s}


def wait_in_sync(target: Target, topic: str) -> int:
    """Wait until every partition has all replicas in its ISR. Returns the leader of partition 0."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    deadline = time.perf_counter() + DEADLINE_S
    while time.perf_counter() < deadline:
        partitions = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        if partitions and all(len(p.isrs) == target.replicas and p.leader >= 0 for p in partitions.values()):
            return int(partitions[0].leader)
        time.sleep(0.1)
    raise SystemExit(f"{target.name}: {topic} is not in sync again in time")
