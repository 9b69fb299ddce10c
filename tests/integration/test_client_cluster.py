"""Anabranch's client against real brokers: every codec, changing groups, commits, a killed broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import anyio
import pytest

from anabranch import Admin, Consumer, KafkaError, NewTopic, Producer, TopicPartition
from anabranch import sync as blocking
from anabranch.client.errors import ErrorCode
from anabranch.testing.cluster import Cluster

pytestmark = pytest.mark.integration

PARTITIONS = 6
DEADLINE_S = 60.0
Names = Callable[[str], str]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """Run an async function under both event loops, with a deadline."""

    def run_async(function: Callable[[], Awaitable[Any]]) -> Any:
        async def with_deadline() -> Any:
            with anyio.fail_after(DEADLINE_S):
                return await function()

        return anyio.run(with_deadline, backend=request.param)

    return run_async


Run = Callable[[Callable[[], Awaitable[Any]]], Any]


async def create(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])


async def read_all(consumer: Consumer, count: int) -> list[Any]:
    records: list[Any] = []
    while len(records) < count:
        for batch in (await consumer.getmany(timeout_ms=1000)).values():
            records += batch
    return records


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec_are_written_and_read(cluster: Cluster, fresh_name: Names, run: Run, codec: str) -> None:
    topic = fresh_name("client-codec")

    async def check() -> None:
        await create(cluster.bootstrap, topic)
        async with Producer(bootstrap_servers=cluster.bootstrap, compression_type=codec, linger_ms=20) as producer:
            for number in range(500):
                await producer.send(
                    topic, key=b"%d" % (number % 50), value=b"%d" % number, headers={"n": b"%d" % number}
                )
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, p) for p in range(PARTITIONS)])
            records = await read_all(consumer, 500)
        by_key: dict[bytes, list[int]] = {}
        for record in records:
            assert record.headers == [("n", record.value)]
            by_key.setdefault(record.key, []).append(int(record.value))
        assert all(numbers == sorted(numbers) for numbers in by_key.values())
        assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(500))

    run(check)


class Watch:
    """A listener that records the owners of partitions: no partition may have two owners."""

    owners: dict[TopicPartition, str]

    def __init__(self, name: str, owners: dict[TopicPartition, str]) -> None:
        self.name = name
        self.owners = owners

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            assert self.owners.get(tp, self.name) == self.name, f"{tp} has two owners"
            self.owners[tp] = self.name

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            assert self.owners.pop(tp) == self.name


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_that_grows_and_shrinks_delivers_each_record_once(
    cluster: Cluster, fresh_name: Names, run: Run, strategy: str
) -> None:
    topic, group = fresh_name("client-group"), fresh_name("client-group")
    seen: list[tuple[int, int]] = []
    owners: dict[TopicPartition, str] = {}

    async def member(name: str, stop: anyio.Event) -> None:
        async with Consumer(
            bootstrap_servers=cluster.bootstrap,
            group_id=group,
            client_id=name,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            partition_assignment_strategy=strategy,
        ) as consumer:
            consumer.subscribe([topic], listener=Watch(name, owners))
            while not stop.is_set():
                for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                    seen.extend((tp.partition, record.offset) for record in records)

    async def settled(members: int) -> None:
        while len(owners) < PARTITIONS or len(set(owners.values())) != members:
            await anyio.sleep(0.05)  # polls: the condition of the loop

    async def check() -> None:
        await create(cluster.bootstrap, topic)
        stops = [anyio.Event() for _ in range(3)]
        async with anyio.create_task_group() as tasks, Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number, stop in enumerate(stops):
                tasks.start_soon(member, f"m{number}", stop)
                await settled(number + 1)
                for value in range(100):
                    await producer.send(topic, key=b"%d" % value, value=b"x")
            stops[0].set()
            await settled(2)
            for value in range(100):
                await producer.send(topic, key=b"%d" % value, value=b"x")
            await producer.flush()
            while len(seen) < 400:
                await anyio.sleep(0.05)  # polls: the condition of the loop
            for stop in stops:
                stop.set()

    run(check)
    assert len(seen) == 400
    assert len(set(seen)) == 400


def test_the_next_member_begins_at_the_committed_offset(cluster: Cluster, fresh_name: Names, run: Run) -> None:
    topic, group = fresh_name("client-commit"), fresh_name("client-commit")

    async def check() -> None:
        await create(cluster.bootstrap, topic)
        tp = TopicPartition(topic, 0)
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(20):
                await producer.send(topic, value=b"%d" % number, partition=0)
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with Consumer(**settings) as consumer:
            consumer.subscribe([topic])
            async for record in consumer:
                if record.offset == 11:
                    break
            await consumer.commit()
            assert await consumer.committed(tp) == 12
        async with Consumer(**settings) as consumer:
            consumer.subscribe(pattern=f"{topic}$")
            assert (await consumer.getone()).offset == 12
            await consumer.commit({tp: 5})
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            assert (await admin.list_group_offsets(group))[tp].offset == 5
            await admin.delete_groups([group])
            assert await admin.list_group_offsets(group) == {}

    run(check)


def test_a_member_that_is_cancelled_leaves_its_group(cluster: Cluster, fresh_name: Names, run: Run) -> None:
    """The member leaves even during a join, while the broker sends no other response on that connection."""
    topic, group = fresh_name("client-cancel"), fresh_name("client-cancel")
    has_joined = anyio.Event()

    async def busy() -> None:
        async with Consumer(bootstrap_servers=cluster.bootstrap, group_id=group) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=100)
            has_joined.set()
            await anyio.sleep_forever()  # the rebalance lasts until this member polls

    async def joining() -> None:
        async with Consumer(bootstrap_servers=cluster.bootstrap, group_id=group) as consumer:
            consumer.subscribe([topic])
            while True:
                await consumer.getmany(timeout_ms=100)

    async def members(admin: Admin, count: int) -> None:
        with anyio.fail_after(20):  # the session would end only after 45 s
            while len((await admin.describe_groups([group]))[group].members) != count:
                await anyio.sleep(0.05)  # polls: the condition of the loop

    async def check() -> None:
        await create(cluster.bootstrap, topic)
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin, anyio.create_task_group() as outer:
            outer.start_soon(busy)
            await has_joined.wait()
            async with anyio.create_task_group() as inner:
                inner.start_soon(joining)
                await members(admin, 2)
                inner.cancel_scope.cancel()
            await members(admin, 1)
            outer.cancel_scope.cancel()
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await members(admin, 0)

    run(check)


def test_changes_by_the_admin_client_are_seen(cluster: Cluster, fresh_name: Names, run: Run) -> None:
    topic = fresh_name("client-admin")

    async def check() -> None:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            created = await admin.create_topics([NewTopic(topic, 2, 1, configs={"retention.ms": "1000000"})])
            assert created[topic].num_partitions == 2
            with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
                await admin.create_topics([NewTopic(topic, 2, 1)])
            await admin.create_partitions({topic: 4})
            while len((await admin.describe_topics([topic]))[topic].partitions) < 4:
                await anyio.sleep(0.05)  # polls: the condition of the loop
            await admin.incremental_alter_configs(topics={topic: {"segment.bytes": "1048576"}})
            while (await admin.describe_configs(topics=[topic]))[topic]["segment.bytes"].value != "1048576":
                await anyio.sleep(0.05)  # polls: the condition of the loop
            assert (await admin.describe_configs(topics=[topic]))[topic]["retention.ms"].value == "1000000"
            with pytest.raises(KafkaError, match="INVALID_CONFIG"):
                await admin.incremental_alter_configs(topics={topic: {"no.such.key": "1"}})
            tp = TopicPartition(topic, 3)
            async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                for _ in range(10):
                    await producer.send(topic, value=b"x", partition=3)
            assert (await admin.list_offsets({tp: "latest"}))[tp].offset == 10
            assert await admin.delete_records({tp: 4}) == {tp: 4}
            assert (await admin.list_offsets({tp: "earliest"}))[tp].offset == 4
            dirs = await admin.describe_log_dirs()
            assert sum(tp in d.partitions for described in dirs.values() for d in described) == 1
            for described in dirs.values():
                assert all(0 < (d.usable_bytes or 0) < (d.total_bytes or 0) for d in described)
            assert {await admin.describe_release(broker) for broker in dirs} == {version("anabranch")}
            await admin.delete_topics([topic])
            while topic in {listing.name for listing in await admin.list_topics()}:
                await anyio.sleep(0.05)  # polls: the condition of the loop

    run(check)


def test_committed_offsets_are_set_used_by_a_seek_and_deleted(cluster: Cluster, fresh_name: Names, run: Run) -> None:
    topic, group = fresh_name("client-offsets"), fresh_name("client-offsets")
    tp = TopicPartition(topic, 0)

    async def check() -> None:
        await create(cluster.bootstrap, topic)
        settings: Any = {"bootstrap_servers": cluster.bootstrap, "group_id": group, "enable_auto_commit": False}
        async with (
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
        ):
            for number in range(5):
                await (await producer.send(topic, value=b"%d" % number, partition=0))
            await admin.alter_group_offsets(group, {tp: 3})
            async with Consumer(**settings) as consumer:
                consumer.assign([tp])
                assert consumer.highwater(tp) is None
                assert [(await consumer.getone()).offset for _ in range(2)] == [3, 4]
                assert consumer.highwater(tp) == 5
                await consumer.seek_to_committed(tp)
                assert (await consumer.getone()).offset == 3
            async with Consumer(**settings) as member:
                member.subscribe([topic])
                while not member.assignment():
                    await member.getmany(timeout_ms=100)
                with pytest.raises(KafkaError) as refused:
                    await admin.delete_group_offsets(group, [tp])
                assert refused.value.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            await admin.delete_group_offsets(group, [tp])
            assert tp not in await admin.list_group_offsets(group)

    run(check)


def test_the_blocking_client_writes_reads_and_commits(cluster: Cluster, fresh_name: Names) -> None:
    topic, group = fresh_name("client-sync"), fresh_name("client-sync")
    with blocking.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    with blocking.Producer(bootstrap_servers=cluster.bootstrap, backend="trio") as producer:
        assert producer.send(topic, value=b"a").result().offset == 0
        assert producer.send_and_wait(topic, value=b"b").offset == 1
    with blocking.Consumer(
        bootstrap_servers=cluster.bootstrap, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        records = iter(consumer)
        assert [next(records).value for _ in range(2)] == [b"a", b"b"]
        consumer.commit()
        assert consumer.committed(TopicPartition(topic, 0)) == 2
