"""The commands for a resize against a cluster of real processes, 4 -> 6 -> 4, and their output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anabranch import Admin, Consumer, NewTopic, Producer, TopicPartition
from anabranch.testing.processes import ProcessCluster, wait_for

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=2) as running:
        yield running


def anabranch(cluster: ProcessCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch.cli.main", *arguments, "-b", cluster.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def described(cluster: ProcessCluster, topic: str) -> dict[str, Any]:
    done = anabranch(cluster, "topics", "describe", topic, "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    return found


async def fill(cluster: ProcessCluster, topic: str, keys: int) -> set[int]:
    """Write ``keys`` records of as many keys. Returns their partitions."""
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        handles = [await producer.send(topic, key=b"key-%d" % n, value=b"%d" % n) for n in range(keys)]
        return {(await handle).partition for handle in handles}


def create_and_fill(cluster: ProcessCluster, topic: str, keys: int) -> None:
    async def work() -> None:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, num_partitions=4, replication_factor=2)])
        await fill(cluster, topic, keys)

    anyio.run(work)


def test_a_topic_is_split_merged_drained_and_described(cluster: ProcessCluster) -> None:
    create_and_fill(cluster, "t", 200)
    dry = anabranch(cluster, "topics", "alter", "t", "--partitions", "6", "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert "about 25.0 % of the keys move" in dry.stdout and "the controller would accept the resize" in dry.stdout
    assert len(described(cluster, "t")["partitions"]) == 4

    grown = anabranch(cluster, "topics", "alter", "t", "--partitions", "6", "--wait")
    assert (grown.returncode, grown.stdout) == (0, "altered t\nt has 6 partitions\n"), grown.stderr
    topic = described(cluster, "t")
    assert (topic["initial_partition_count"], topic["undeleted_partition_count"], topic["layout_version"]) == (4, 6, 1)
    five = topic["partitions"][5]
    assert (five["state"], five["created_from"], five["leader_epoch_after_creation"]) == ("in use", 1, 0)

    below = anabranch(cluster, "topics", "alter", "t", "--partitions", "3", "--dry-run")
    assert below.returncode == 1 and "refused: INVALID_PARTITIONS" in below.stdout

    shrunk = anabranch(cluster, "topics", "alter", "t", "--partitions", "4", "--wait")
    assert shrunk.returncode == 0, shrunk.stderr
    # 4 and 5 have no records, so nothing has to expire.
    wait_for(lambda: len(described(cluster, "t")["partitions"]) == 4, DEADLINE_S, "empty partitions are removed")
    text = anabranch(cluster, "topics", "describe", "t").stdout
    assert "created with 4 partitions, 4 in use" in text


def test_records_of_marked_partitions_are_left_until_every_group_has_read_them(cluster: ProcessCluster) -> None:
    create_and_fill(cluster, "drained", 10)
    assert anabranch(cluster, "topics", "alter", "drained", "--partitions", "6", "--wait").returncode == 0

    async def write_and_commit() -> None:
        assert await fill(cluster, "drained", 100) == set(range(6))
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.alter_group_offsets("g", {TopicPartition("drained", p): 1 for p in range(6)})

    anyio.run(write_and_commit)
    dry = anabranch(
        cluster, "topics", "alter", "drained", "--partitions=4", "--dry-run", "--delete-records-when-drained"
    )
    assert dry.returncode == 0 and "group g has" in dry.stdout, dry.stdout
    done = anabranch(cluster, "topics", "alter", "drained", "--partitions=4", "--delete-records-when-drained", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "partitions 4, 5 take no records any more" in done.stdout

    topic = described(cluster, "drained")
    assert topic["configs"]["delete.records.when.drained"] == "true"
    five = topic["partitions"][5]
    assert (five["state"], five["merged_into"]) == ("marked", 1)
    assert five["to_drain"]["g"] == five["high_watermark"] - 1 > 0
    text = anabranch(cluster, "topics", "describe", "drained").stdout
    assert f"g has {five['to_drain']['g']} to read" in text
    waits = json.loads(anabranch(cluster, "groups", "describe", "g", "--json").stdout)[0]["waits"]
    assert {(wait["partition"], wait["waits_for"]) for wait in waits} >= {(1, 5), (0, 4)}

    early = anabranch(cluster, "topics", "alter", "drained", "--partitions", "8", "--dry-run")
    assert early.returncode == 0 and "the controller would accept the resize" in early.stdout, "they are revived"

    async def read_the_rest() -> None:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            ends = {TopicPartition("drained", p): topic["partitions"][p]["high_watermark"] for p in (4, 5)}
            await admin.alter_group_offsets("g", ends)

    anyio.run(read_the_rest)
    wait_for(lambda: len(described(cluster, "drained")["partitions"]) == 4, DEADLINE_S, "drained ones are removed")
    # A topic without marked partitions can grow again.
    assert anabranch(cluster, "topics", "alter", "drained", "--partitions", "5", "--wait").returncode == 0


def test_groups_describe_names_the_member_whose_flush_callback_delays_a_partition(cluster: ProcessCluster) -> None:
    """After a split, partition 4 waits until the owner of partition 0 has saved the state of the moved keys."""
    create_and_fill(cluster, "waited", 100)

    async def waits() -> list[dict[str, Any]]:
        done = await anyio.to_thread.run_sync(lambda: anabranch(cluster, "groups", "describe", "savers", "--json"))
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)[0]["waits"]
        return found

    async def scenario() -> None:
        seen: list[tuple[int, bytes]] = []
        flushing, may_return, read_before, delivered = anyio.Event(), anyio.Event(), anyio.Event(), anyio.Event()

        class Listener:
            async def on_partition_key_maybe_revoked(self, partitions: list[TopicPartition]) -> None:
                if TopicPartition("waited", 0) in partitions and resized.is_set():
                    flushing.set()
                    await may_return.wait()

        async def consume() -> None:
            async with Consumer(
                bootstrap_servers=cluster.bootstrap, group_id="savers", client_id="saver", auto_offset_reset="earliest"
            ) as consumer:
                consumer.subscribe(["waited"], partition_key_listener=Listener())
                async for record in consumer:
                    seen.append((record.partition, record.key or b""))
                    if len(seen) == 100:
                        read_before.set()
                    if record.partition == 4:
                        delivered.set()

        resized = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            with anyio.fail_after(DEADLINE_S):
                await read_before.wait()
                resized.set()
                async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                    await admin.create_partitions({"waited": 5})
                assert 4 in await fill(cluster, "waited", 100)
                await flushing.wait()
                blocked = [row for row in await waits() if row["partition"] == 4]
                assert [(row["from_epoch"], row["waits_for"], row["blocked"]) for row in blocked] == [(0, 0, True)]
                assert blocked[0]["client_id"] == "saver"
                assert blocked[0]["until"] is not None and (blocked[0]["position"] or 0) < blocked[0]["until"]
                assert all(partition != 4 for partition, _ in seen)
                may_return.set()
                await delivered.wait()
                assert await waits() == []
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
