"""A compacted topic is resized while it is written, read and cleaned: no deleted key reappears (hole 24)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import anyio
import pytest
from confluent_kafka import Producer as RdKafkaProducer

from anabranch import Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.testing.processes import ProcessCluster
from tests.support.resize.resizes import create_resizable

pytestmark = pytest.mark.integration

DEADLINE_S = 120.0
CLEANED_SOON = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "200",
    "delete.retention.ms": "0",
}
REPLICAS = 2
NUMBER = "number"
HOME, CHILD = 0, 2
"""Partitions of the topic: the keys of CHILD were in HOME when there were two partitions."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    soon = {"log.cleaner.backoff.ms": "50", "group.initial.rebalance.delay.ms": "0"}
    with ProcessCluster(brokers=REPLICAS, overrides=soon) as running:
        yield running


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await anyio.sleep(0.02)  # polls: until the condition holds


def number_of(record: ConsumerRecord) -> int:
    [number] = [content for name, content in record.headers if name == NUMBER]
    return int(number or b"")


class Writer:
    """Updates the keys in ``busy`` without end, round by round. It numbers the records of each key."""

    def __init__(self, bootstrap: str, topic: str, busy: Collection[bytes]) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.busy = set(busy)
        self.rounds = 0
        self.stops = self.ended = False
        self.numbers: dict[bytes, int] = defaultdict(int)
        self.values: dict[bytes, bytes] = {}
        """The last value of each key that is not deleted."""
        self.placed: dict[bytes, int] = {}
        """The partition of the last record of each key."""
        self._deleting: list[bytes] = []

    def next_number(self, key: bytes) -> int:
        self.numbers[key] += 1
        return self.numbers[key]

    async def run(self) -> None:
        async with Producer(bootstrap_servers=self.bootstrap, linger_ms=10) as producer:
            while not self.stops:
                deleting, self._deleting = self._deleting, []
                handles = {}
                for key in [*sorted(self.busy), *deleting]:
                    number = b"%d" % self.next_number(key)
                    value = None if key in deleting else b"value-" + number
                    handles[key] = await producer.send(self.topic, value, key, headers=[(NUMBER, number)])
                    if value is None:
                        self.values.pop(key, None)
                    else:
                        self.values[key] = value
                for key, handle in handles.items():
                    self.placed[key] = (await handle).partition
                self.rounds += 1
        self.ended = True

    async def rest(self, keys: Collection[bytes]) -> None:
        """Stop writing these keys, and wait until all their records are acknowledged."""
        self.busy -= set(keys)
        await self._whole_round()

    async def delete(self, keys: Collection[bytes]) -> None:
        self.busy -= set(keys)
        self._deleting += keys
        await self._whole_round()

    async def write_to(self, partition: int, keys: Collection[bytes]) -> None:
        """Wait until the last records of all these keys are in the partition."""
        await until(lambda: all(self.placed.get(key) == partition for key in keys))

    async def _whole_round(self) -> None:
        target = self.rounds + 2
        await until(lambda: self.rounds >= target)


def delete_as_stock_clients_do(writer: Writer, keys: Collection[bytes], partition: int) -> None:
    """Write tombstones with a producer that does not know about moved keys."""
    failed = []
    producer = RdKafkaProducer({"bootstrap.servers": writer.bootstrap})
    for key in keys:
        writer.values.pop(key, None)
        headers = [(NUMBER, b"%d" % writer.next_number(key))]
        producer.produce(
            writer.topic,
            key=key,
            partition=partition,
            headers=headers,
            on_delivery=lambda error, message: failed.append(error) if error is not None else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failed == []


def cleaned_to(cluster: ProcessCluster, tp: TopicPartition) -> list[int]:
    """Read from the brokers' checkpoints where the dirty part of each replica begins; -1: it was never cleaned."""
    return [dirty_from(cluster.log_dir(broker), tp) for broker in cluster.broker_ids]


def dirty_from(log_dir: Path, tp: TopicPartition) -> int:
    path = log_dir / "cleaner-offset-checkpoint"
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(f"{tp.topic} {tp.partition} "):
            return int(line.split()[2])
    return -1


async def cleaned(cluster: ProcessCluster, topic: str, *partitions: int) -> None:
    """Wait for two cleanings of every replica up to its present end. The second one removes tombstones."""
    tps = [TopicPartition(topic, partition) for partition in partitions]
    async with Consumer(bootstrap_servers=cluster.bootstrap) as asking:
        ends = await asking.end_offsets(tps)
    for tp in tps:
        await until(lambda tp=tp: all(offset >= ends[tp] for offset in cleaned_to(cluster, tp)))
        before = cleaned_to(cluster, tp)
        await until(lambda tp=tp, before=before: all(n > b for n, b in zip(cleaned_to(cluster, tp), before)))


async def read_anew(cluster: ProcessCluster, topic: str) -> list[ConsumerRecord]:
    """Read the topic up to its present ends with a new reader. Returns the records in the order of delivery."""
    found: list[ConsumerRecord] = []
    async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as reader:
        tps = [TopicPartition(topic, partition) for partition in await reader.partitions_for_topic(topic)]
        ends = await reader.end_offsets(tps)
        reader.assign(tps)
        while any([await reader.position(tp) < ends[tp] for tp in tps]):
            for records in (await reader.getmany(timeout_ms=100)).values():
                found += records
    return found


def table(records: Collection[ConsumerRecord]) -> dict[bytes, bytes]:
    """The table that a reader builds: the last value of each key, without keys whose last record is a tombstone."""
    last = {record.key: record.value for record in records}
    return {key: value for key, value in last.items() if value is not None}


def backwards(numbers: Collection[tuple[bytes, int]]) -> list[tuple[bytes, int, int]]:
    """Return (key, number, previous number) wherever a key's number is not above the key's previous number."""
    found, last = [], dict[bytes, int]()
    for key, number in numbers:
        if number <= last.get(key, 0):
            found.append((key, number, last[key]))
        last[key] = number
    return found


class KeyScenario:
    """A topic that is resized 2 -> 3 -> 2 -> 3. Its keys are in groups; all keys of a group have the same history."""

    def __init__(self, cluster: ProcessCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        names = [b"key-%d" % n for n in range(100)]
        moved = [key for key in names if place(positive_hash(key), 2, 3) == CHILD][:9]
        others = [key for key in names if key not in moved][:12]
        self.deleted_in_child, self.deleted_by_stock, self.living = moved[:2], moved[2:3], moved[5:]
        self.deleted_after_merge, self.last_in_child = moved[3:4], moved[4:5]
        self.deleted_before, self.unmoved = others[:2], others[2:]
        self.writer = Writer(cluster.bootstrap, topic, [*moved, *others])
        self.given: list[tuple[bytes, int]] = []
        """(key, number) of each record, in the order of delivery to the group."""
        self.latest: dict[bytes, int] = {}

    async def consume(self, stop: anyio.Event) -> None:
        async with Consumer(
            bootstrap_servers=self.cluster.bootstrap, group_id=self.topic, auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([self.topic])
            while not stop.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        self.given.append((record.key, number_of(record)))
                        self.latest[record.key] = number_of(record)

    async def split(self, admin: Admin) -> None:
        await self.writer.delete(self.deleted_before)
        await self.writer.rest([*self.deleted_in_child, *self.deleted_by_stock])
        await admin.create_partitions({self.topic: 3})
        await self.writer.write_to(CHILD, [*self.living, *self.deleted_after_merge, *self.last_in_child])
        await self.writer.delete(self.deleted_in_child)
        await anyio.to_thread.run_sync(delete_as_stock_clients_do, self.writer, self.deleted_by_stock, CHILD)
        await cleaned(self.cluster, self.topic, HOME, CHILD)
        records = await self.read_in_order()
        old = {record.key for record in records if record.partition == HOME and record.value is not None}
        assert old >= set(self.deleted_by_stock), (
            "the parent still has the values that the tombstone in the child hides"
        )
        assert not table(records).keys() & {*self.deleted_before, *self.deleted_in_child, *self.deleted_by_stock}

    async def merge(self, admin: Admin) -> None:
        await self.writer.rest(self.last_in_child)
        advice = await admin.create_partitions({self.topic: 2})
        assert advice[self.topic].startswith(f"The topic is compacted: partition {CHILD} stays, because it has")
        await self.writer.write_to(HOME, [*self.living, *self.deleted_after_merge])
        await self.writer.delete(self.deleted_after_merge)
        await cleaned(self.cluster, self.topic, HOME)
        records = await self.read_in_order()
        old = {record.key for record in records if record.partition == CHILD and record.value is not None}
        assert old >= {*self.deleted_after_merge, *self.last_in_child}, "the marked partition keeps its records"
        found = table(records)
        assert not found.keys() & {*self.deleted_before, *self.deleted_in_child, *self.deleted_after_merge}
        assert [found[key] for key in self.last_in_child] == [self.writer.values[key] for key in self.last_in_child]

    async def revive(self, admin: Admin) -> None:
        await admin.create_partitions({self.topic: 3})
        await self.writer.write_to(CHILD, self.living)

    async def end(self) -> None:
        await cleaned(self.cluster, self.topic, HOME, CHILD)
        self.writer.stops = True
        await until(lambda: self.writer.ended)
        assert table(await self.read_in_order()) == self.writer.values
        assert self.writer.values.keys() == {*self.living, *self.last_in_child, *self.unmoved}
        await until(lambda: all(self.latest[key] == self.writer.numbers[key] for key in self.writer.values))

    async def read_in_order(self) -> list[ConsumerRecord]:
        records = await read_anew(self.cluster, self.topic)
        assert backwards([(record.key, number_of(record)) for record in records]) == []
        return records


def test_no_deleted_key_reappears_after_a_split_a_merge_and_a_revival(cluster: ProcessCluster) -> None:
    """Some keys that move to the child are deleted there, and the cleaner removes their old values in the parent.

    A stock producer deletes one key: its old value stays in the parent, and its tombstone in the child. Then the child
    is merged, but not removed: it has the last value of one key, and an older value of a key that is deleted in the
    parent.
    """
    scenario = KeyScenario(cluster, "table")
    create_resizable(cluster.bootstrap, scenario.topic, 2, CLEANED_SOON, replication_factor=REPLICAS)

    async def work() -> None:
        with anyio.fail_after(DEADLINE_S):
            async with Admin(bootstrap_servers=cluster.bootstrap) as admin, anyio.create_task_group() as tasks:
                stop = anyio.Event()
                tasks.start_soon(scenario.writer.run)
                for _ in range(2):
                    tasks.start_soon(scenario.consume, stop)
                await until(lambda: scenario.latest.keys() >= scenario.writer.busy)
                await scenario.split(admin)
                await scenario.merge(admin)
                await scenario.revive(admin)
                await scenario.end()
                stop.set()

    anyio.run(work)
    assert backwards(scenario.given) == []
