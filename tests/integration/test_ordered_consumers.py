"""Consumer groups on real processes while their topic is split and merged: every key keeps its order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from anabranch import Admin, Consumer, NewTopic, Producer, TopicPartition
from anabranch.testing.processes import ProcessCluster

pytestmark = pytest.mark.integration

DEADLINE_S = 120.0
KEYS = 24


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=2) as running:
        yield running


class Member:
    """Keeps the last number of each key. Writes to and reads from a shared store happen only in the callbacks."""

    def __init__(self, store: dict[bytes, int]) -> None:
        self.store = store
        self.own: dict[bytes, tuple[int, int]] = {}
        """By key: the last number and its partition since the last flush or load."""
        self.loaded = 0
        self.seen = 0
        self.violations: list[Any] = []

    def flush(self, partitions: list[TopicPartition]) -> None:
        numbers = {tp.partition for tp in partitions}
        for key, (number, partition) in list(self.own.items()):
            if partition in numbers:
                self.store[key] = max(number, self.store.get(key, -1))

    def forget(self, partitions: list[TopicPartition]) -> None:
        self.flush(partitions)
        numbers = {tp.partition for tp in partitions}
        self.own = {key: value for key, value in self.own.items() if value[1] not in numbers}

    on_partition_key_maybe_revoked = forget
    on_partitions_revoked = forget

    def on_partition_key_assigned(self, partitions: list[TopicPartition]) -> None:
        self.loaded += len(partitions)

    def take(self, partition: int, key: bytes, number: int) -> None:
        known = self.own[key][0] if key in self.own else self.store.get(key, -1)
        if number != known + 1:
            self.violations.append((partition, key, known, number))
        self.own[key] = (number, partition)
        self.seen += 1


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_no_key_is_out_of_order_while_a_topic_is_resized_from_4_to_6_9_6_and_4_partitions(
    cluster: ProcessCluster, strategy: str
) -> None:
    """A key's state continues the state of the key's previous owner, even if the key was in another partition."""
    topic = f"ordered-{strategy}"
    sent: dict[bytes, int] = defaultdict(int)
    store: dict[bytes, int] = {}
    members = [Member(store) for _ in range(3)]
    done = anyio.Event

    async def produce(stop: anyio.Event) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            while not stop.is_set():
                handles = []
                for n in range(KEYS):
                    key = b"key-%d" % n
                    handles.append(await producer.send(topic, key=key, value=b"%d" % sent[key]))
                    sent[key] += 1
                for handle in handles:
                    await handle

    async def consume(member: Member, stop: anyio.Event) -> None:
        async with Consumer(
            bootstrap_servers=cluster.bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            partition_assignment_strategy=strategy,
        ) as consumer:
            consumer.subscribe([topic], listener=member, partition_key_listener=member)
            while not stop.is_set():
                for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                    for record in records:
                        member.take(tp.partition, record.key, int(record.value))

    async def until(holds: Any) -> None:
        while not holds():
            await anyio.sleep(0.02)  # polls: until the members have read far enough

    async def work() -> None:
        with anyio.fail_after(DEADLINE_S):
            async with Admin(bootstrap_servers=cluster.bootstrap) as admin, anyio.create_task_group() as tasks:
                await admin.create_topics([NewTopic(topic, num_partitions=4, replication_factor=2)])
                produced, read = done(), done()
                tasks.start_soon(produce, produced)
                for member in members:
                    tasks.start_soon(consume, member, read)
                for count in (6, 9, 6, 4):
                    target = sum(sent.values()) + 40 * KEYS
                    await until(lambda target=target: sum(m.seen for m in members) >= target)
                    await admin.create_partitions({topic: count})
                target = sum(sent.values()) + 40 * KEYS
                await until(lambda: sum(sent.values()) >= target)
                produced.set()
                await until(lambda: sum(m.seen for m in members) >= sum(sent.values()))
                read.set()

    anyio.run(work)
    assert [violation for member in members for violation in member.violations] == []
    assert sum(member.loaded for member in members) > 0
