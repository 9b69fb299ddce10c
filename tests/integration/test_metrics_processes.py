"""The metrics of a resize that an operator sees in running processes: brokers, the controller, clients."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import anyio
import confluent_kafka
import pytest

from anabranch import Admin, Consumer, NewTopic, Producer, TopicPartition
from anabranch.client.client_metrics import CONSUMER_GROUP, PRODUCER_GROUP
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.testing.processes import ProcessCluster, wait_for
from anabranch.view.retained import RetainedRecords
from anabranch.view.topics import describe_topics
from tests.support.seen.metrics_page import PAGE, families, of_processes, page_rows

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
KEYS = [b"key-%d" % number for number in range(32)]
NEVER_MS = 600_000
WAIT = "anabranch_consumergroup_wait_seconds"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ANABRANCH_RETENTION_WARNING_INTERVAL_MS", "200")
        with ProcessCluster(brokers=2) as running:
            yield running


def scraped(cluster: ProcessCluster, *processes: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """The values by name and label values, summed over processes."""
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for process in processes:
        for family in families(cluster, process):
            for sample in family.samples:
                key = (sample.name, tuple(sample.labels[name] for name in sorted(sample.labels)))
                found[key] = found.get(key, 0) + sample.value
    return found


def of_brokers(cluster: ProcessCluster) -> dict[tuple[str, tuple[str, ...]], float]:
    return scraped(cluster, *(f"broker-{broker_id}" for broker_id in cluster.broker_ids))


def of_controller(cluster: ProcessCluster) -> dict[tuple[str, tuple[str, ...]], float]:
    return scraped(cluster, "controller-1000")


async def send(producer: Producer, topic: str) -> None:
    for handle in [await producer.send(topic, key=key, value=b"v") for key in KEYS]:
        await handle


async def read(consumer: Consumer, count: int) -> None:
    """Read until ``count`` records have arrived."""
    with anyio.fail_after(DEADLINE_S):
        while count > 0:
            count -= sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))


async def resize(cluster: ProcessCluster, topic: str, count: int) -> None:
    """Resize the topic also if stock producers wrote, and return when the leaders have the new layout."""
    command = [sys.executable, "-m", "anabranch.cli.main", "topics", "alter", topic, f"--partitions={count}"]
    await anyio.run_process([*command, "--wait", "--force", "-b", cluster.bootstrap])


def test_rounds_of_the_loop_and_garbage_collections_are_measured(cluster: ProcessCluster) -> None:
    for process in (of_brokers(cluster), of_controller(cluster)):
        assert process["anabranch_loop_lag_seconds_count", ()] > 0
        assert process["anabranch_garbage_collection_seconds_count", ()] > 0


def test_records_that_consumers_read_are_counted_without_those_that_followers_fetch(cluster: ProcessCluster) -> None:
    topic = "read"
    out = ("anabranch_messages_out_total", (topic,))

    async def work() -> None:
        async with (
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
            Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            await admin.create_topics([NewTopic(topic, 2, 2)])
            await send(producer, topic)  # acks=all: the followers have fetched
            assert of_brokers(cluster).get(out, 0) == 0
            consumer.subscribe([topic])
            await read(consumer, len(KEYS))

    anyio.run(work)
    brokers = of_brokers(cluster)
    assert brokers[out] == brokers["kafka_server_brokertopicmetrics_messagesin_total", (topic,)] == len(KEYS)
    assert brokers["kafka_server_brokertopicmetrics_replicationbytesout_total", (topic,)] > 0


def test_clients_and_brokers_count_the_same_hand_overs_and_refused_layouts(cluster: ProcessCluster) -> None:
    """Neither client refreshes its metadata in time, so the producer is refused. Brokers and clients count the same.

    The consumer may be refused too, or see the leader's new epoch. The consumer does not report a committed position
    before the coordinator requests the position.
    """
    topic = "t"

    async def work() -> tuple[dict[str, float], dict[str, float]]:
        async with (
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=NEVER_MS) as producer,
            Consumer(
                bootstrap_servers=cluster.bootstrap,
                group_id="readers",
                auto_offset_reset="earliest",
                metadata_max_age_ms=NEVER_MS,
            ) as consumer,
        ):
            await admin.create_topics([NewTopic(topic, 2, 2)])
            consumer.subscribe([topic])
            await send(producer, topic)
            await read(consumer, len(KEYS))
            await resize(cluster, topic, 4)
            await send(producer, topic)
            await read(consumer, len(KEYS))
            await resize(cluster, topic, 2)
            await send(producer, topic)
            await read(consumer, len(KEYS))
            produced = producer.metrics()[PRODUCER_GROUP]
            consumed = consumer.metrics()[CONSUMER_GROUP]
            return produced, consumed

    produced, consumed = anyio.run(work)
    assert (produced["layout-changes-total"], produced["pause-total"], produced["paused-topics"]) == (2, 2, 0)
    assert produced["layout-refusals-total"] >= 2
    assert 0 < produced["records-moved-total"] <= 2 * len(KEYS)
    # partitions 2 and 3 wait after the split, 0 and 1 after the merge
    assert consumed["blocked-total"] >= 4 and consumed["blocked-partitions"] == 0
    assert consumed["hand-over-total"] >= 4
    assert 0 < consumed["hand-over-time-p50-ms"] <= consumed["hand-over-time-max-ms"]
    assert consumed["position-report-total"] >= 1
    brokers = of_brokers(cluster)
    assert brokers["anabranch_layout_refusals_total", (topic,)] == produced["layout-refusals-total"]
    controller = of_controller(cluster)
    assert (controller["anabranch_active_controller", ()], controller["anabranch_unfinished_resizes", ()]) == (1, 0)
    assert controller["anabranch_resize_steps_total", ("asked-for", topic)] == 2


def test_a_wait_of_a_member_is_shown_while_it_lasts_and_then_measured(cluster: ProcessCluster) -> None:
    """A rebalance does not end a wait.

    After the wait a member still asks for the position, because the position may be lowered. The metric does not count
    this asking as a wait.
    """
    topic, other = "waited", "not-waited"
    parent = TopicPartition(topic, 0)

    @dataclass
    class Pauses:
        """Pauses the parent at each assignment, because a rebalance drops pauses."""

        member: Consumer

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            self.member.pause(*[tp for tp in partitions if tp == parent])

    def waits() -> dict[tuple[str, str], float]:
        """Return the seconds of each wait by (awaited partition, the client that reads this partition)."""
        found = of_brokers(cluster).items()
        return {(labels[2], labels[1]): s for (name, labels), s in found if name == WAIT and labels[0] == "waiters"}

    async def shown(condition: Callable[[dict[tuple[str, str], float]], bool]) -> float:
        """Wait until the shown waits meet the condition. Returns the seconds of the longest wait."""
        with anyio.fail_after(DEADLINE_S):
            while not condition(found := await anyio.to_thread.run_sync(waits)):
                await anyio.sleep(0.05)  # polls: until the page has these waits
        return max(found.values(), default=0.0)

    async def keep_reading(consumer: Consumer) -> None:
        while True:
            await consumer.getmany(timeout_ms=100)

    async def work() -> None:
        def member(client_id: str) -> Consumer:
            return Consumer(
                bootstrap_servers=cluster.bootstrap,
                group_id="waiters",
                client_id=client_id,
                auto_offset_reset="earliest",
                metadata_max_age_ms=200,
            )

        async with (
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
            member("first") as first,
            member("second") as second,
            member("third") as third,
            anyio.create_task_group() as tasks,
        ):
            await admin.create_topics([NewTopic(topic, 2, 2), NewTopic(other, 1, 2)])
            for one in (first, second):
                one.subscribe([topic], listener=Pauses(one))
                tasks.start_soon(keep_reading, one)
            with anyio.fail_after(DEADLINE_S):
                while not (first.assignment() and second.assignment()):
                    await anyio.sleep(0.05)  # polls: until both members have a partition
            await send(producer, topic)
            before = of_brokers(cluster)["anabranch_hand_over_seconds_count", ()]
            await resize(cluster, topic, 4)
            await send(producer, topic)
            # Waits for other partitions end soon. A wait that began after the rebalance is shorter than two seconds.
            await shown(lambda found: {tp for tp, _ in found} == {"0"} and min(found.values()) >= 2)
            third.subscribe([other])
            with anyio.fail_after(DEADLINE_S):
                while not third.assignment():
                    await third.getmany(timeout_ms=100)
            tasks.start_soon(keep_reading, third)
            assert await shown(lambda found: {tp for tp, _ in found} == {"0"}) >= 2
            owner, name = (first, "first") if parent in first.assignment() else (second, "second")
            assert set(await anyio.to_thread.run_sync(waits)) == {("0", name)}
            owner.resume(parent)
            await shown(lambda found: not found)
            assert of_brokers(cluster)["anabranch_hand_over_seconds_count", ()] > before
            tasks.cancel_scope.cancel()

    anyio.run(work)


def refused_by(cluster: ProcessCluster, topic: str, key: bytes, partitions: Sequence[int]) -> list[int]:
    """The errors that a librdkafka producer gets for a record of ``key`` in each of ``partitions``."""
    errors: list[int] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})

    def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        errors.append(error.code() if error else 0)

    for partition in partitions:
        producer.produce(topic, key=key, value=b"v", partition=partition, on_delivery=delivered)
        assert producer.flush(DEADLINE_S) == 0
    return errors


def test_stock_producers_closed_partitions_and_retention_are_counted(cluster: ProcessCluster) -> None:
    """All records are about to expire: ``retention.ms`` is as long as ``retention.warning.ms``."""
    topic = "watched"
    key = next(key for key in KEYS if place(positive_hash(key), 2, 4) == 3)

    async def fill() -> None:
        async with (
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
        ):
            await admin.create_topics([NewTopic(topic, 2, 2, {"retention.ms": "600000"})])
            await send(producer, topic)
            await admin.alter_group_offsets("slow", {TopicPartition(topic, 0): 1})
        await resize(cluster, topic, 4)

    anyio.run(fill)
    assert refused_by(cluster, topic, key, [1, 3]) == [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
    assert of_brokers(cluster)["anabranch_stock_produce_refusals_total", (topic,)] == 1
    wait_for(
        lambda: of_controller(cluster).get(("anabranch_retention_warnings_total", ("slow", topic)), 0) > 0,
        DEADLINE_S,
        "the controller warns of records that slow has not read",
    )
    anyio.run(resize, cluster, topic, 2)
    # Partition 2 is empty and may be gone already; 3 holds a record.
    assert of_brokers(cluster)["anabranch_closed_partitions", ()] >= 1
    assert of_controller(cluster)["anabranch_marked_partitions", ()] >= 1


def test_records_that_retention_holds_for_a_group_are_shown(cluster: ProcessCluster) -> None:
    """All records are older than ``retention.ms``. A group still needs partition 0's records from before its split."""
    topic = "paused"
    configs = {"retention.ms": "1", "ordered.delivery.retention.waits": "true"}

    async def fill() -> None:
        async with (
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
        ):
            await admin.create_topics([NewTopic(topic, 1, 2, configs)])
            await send(producer, topic)
            await admin.alter_group_offsets("behind", {TopicPartition(topic, 0): 1})
        await resize(cluster, topic, 2)

    async def described() -> list[RetainedRecords]:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            return (await describe_topics(admin, [topic]))[0].retained

    anyio.run(fill)
    wait_for(
        lambda: of_brokers(cluster).get(("anabranch_retained_records", ("behind", topic)), 0) == len(KEYS),
        DEADLINE_S,
        "the leader holds the records that the group has not read",
    )
    wait_for(
        lambda: (
            [(row.partition, row.end_offset, row.group) for row in anyio.run(described)] == [(0, len(KEYS), "behind")]
        ),
        DEADLINE_S,
        "topics describe shows it",
    )


def test_levels_of_loggers_are_changed_by_the_command_line(cluster: ProcessCluster) -> None:
    name = "anabranch.broker.net.connection"

    def configs(*arguments: str) -> str:
        command = [sys.executable, "-m", "anabranch.cli.main", "configs", *arguments, "-b", cluster.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

    def level() -> str:
        entries = json.loads(configs("describe", "loggers", "2", "--json"))
        return next(str(entry["value"]) for entry in entries if entry["name"] == name)

    assert level() == "INFO"
    assert "altered loggers 2" in configs("alter", "loggers", "2", "--set", f"{name}=DEBUG")
    assert level() == "DEBUG"
    configs("alter", "loggers", "2", "--delete", name)
    assert level() == "INFO"
    assert "levels are TRACE" in configs("alter", "loggers", "2", "--set", f"{name}=LOUD")
    assert configs("describe", "loggers", "all").startswith("2: ")
    properties = (cluster.directory / "data" / "controller-1000.properties").read_text()
    (address,) = re.findall(r"controller\.listener=PLAINTEXT://(\S+)", properties)
    of_controller = ("loggers", "1000", "--bootstrap-controller", address)
    assert "altered loggers 1000" in configs("alter", *of_controller, "--set", "anabranch.controller=DEBUG")
    entries = json.loads(configs("describe", *of_controller, "--json"))
    assert {entry["name"]: entry["value"] for entry in entries}["anabranch.controller.active"] == "DEBUG"
    assert configs("describe", "topic", "t", "--bootstrap-controller", address).startswith("2: ")


def test_the_page_names_every_metric_and_no_other(cluster: ProcessCluster) -> None:
    """Labels are compared for metrics that have values here; an unused metric has none."""
    rows = of_processes(cluster)
    documented = page_rows(PAGE.read_text())
    assert {name: row[:2] for name, row in documented.items()} == {name: row[:2] for name, row in rows.items()}
    assert {name: row.meaning for name, row in documented.items()} == {name: row.meaning for name, row in rows.items()}
    labelled = {name: row.labels for name, row in rows.items() if row.labels is not None}
    assert {name: documented[name].labels for name in labelled} == labelled
    assert len(labelled) > 0.9 * len(rows)
