"""A consumer group whose coordinator is killed continues at its position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from anabranch.sync import Admin
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.support.broker.failures import DEADLINE_S, numbered, wait_until_led, write
from tests.support.controller.topics import create_topic

pytestmark = pytest.mark.integration

PARTITIONS = 4


def member(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "reconnect.backoff.max.ms": 200,
        }
    )


def take(members: list[Consumer], seen: Counter[bytes], count: int) -> None:
    """Poll the members in turn until they have read ``count`` different values in total, then commit synchronously."""

    def enough() -> bool:
        for consumer in members:
            for message in consumer.consume(100, 0.1):
                assert message.error() is None or message.error().retriable(), message.error()
                if message.error() is None:
                    seen[message.value()] += 1
        return len(seen) >= count

    wait_for(enough, DEADLINE_S, f"{count} records are read")


def committed(consumer: Consumer, topic: str) -> list[int]:
    asked = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    return [found.offset for found in consumer.committed(asked, timeout=30)]


def test_a_group_survives_kill_9_of_its_coordinator(fresh_name: Callable[[str], str]) -> None:
    with ProcessCluster(brokers=2) as cluster:
        topic, group = fresh_name("group"), fresh_name("group")
        create_topic(cluster.bootstrap, topic, PARTITIONS)
        wait_until_led(cluster, topic)
        for partition in range(PARTITIONS):
            assert write(cluster.bootstrap, topic, numbered(partition * 1000, 100), partition=partition) == []
        members = [member(cluster.bootstrap, group), member(cluster.bootstrap, group)]
        seen: Counter[bytes] = Counter()
        try:
            for consumer in members:
                consumer.subscribe([topic])
            take(members, seen, PARTITIONS * 100)
            for consumer in members:
                consumer.commit(asynchronous=False)
            assert committed(members[0], topic) == [100] * PARTITIONS
            with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                coordinator = admin.describe_groups([group])[group].coordinator.id
            cluster.kill_broker(coordinator)
            for partition in range(PARTITIONS):
                assert write(cluster.bootstrap, topic, numbered(partition * 1000 + 100, 50), partition=partition) == []
            take(members, seen, PARTITIONS * 150)
            assert committed(members[1], topic) == [100] * PARTITIONS
            members.append(member(cluster.bootstrap, group))
            members[-1].subscribe([topic])

            def spread() -> bool:
                for consumer in members:
                    consumer.consume(1, 0.1)
                return sorted(len(consumer.assignment()) for consumer in members) == [1, 1, 2]

            wait_for(spread, DEADLINE_S, "the third member has its share")
        finally:
            for consumer in members:
                consumer.close()
