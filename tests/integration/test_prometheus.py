"""A real Prometheus scrapes a real cluster: metrics are valid, dashboards show them, and real faults fire alerts."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import anyio
import pytest

from anabranch import Admin, Consumer, NewTopic, Producer, TopicPartition
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.support.broker.failures import stopped
from tests.support.seen.prometheus_tools import (
    DEADLINE_S,
    KAFKAS_OWN,
    Prometheus,
    expressions,
    needed,
    promtool,
    scraping,
)
from tests.support.seen.public_dashboards import DASHBOARDS, Dashboard

pytestmark = pytest.mark.integration

BROKERS = 3
STOPPED = 3
KEYS = [b"key-%d" % number for number in range(32)]
LIMITS = {
    "AnabranchGroupBehind": ("> 300", "> 0"),
    "AnabranchDrainWaits": ("> 3600", "> 0"),
}
"""Shorter limits for alerts that take minutes in operation, as replacements in their expressions."""
NOT_HERE = {
    "Errors by API and code",
    "Members that wait",
    "Refused for their layout",
    "Hand-overs",
    "Steps",
    "Age",
    "Marked partitions",
    "Waits of marked partitions",
    "Records left to drain",
}
"""Panels that are empty except during a resize or an error."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    needed("prometheus")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ANABRANCH_RETENTION_WARNING_INTERVAL_MS", "200")
        environment.setenv("ANABRANCH_METRICS_LAG_INTERVAL_MS", "200")
        with ProcessCluster(brokers=BROKERS) as running:
            anyio.run(use, running)
            yield running


@pytest.fixture(scope="module")
def prometheus(cluster: ProcessCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with scraping(tmp_path_factory.mktemp("prometheus"), cluster.metrics.values(), LIMITS) as running:
        yield running


async def use(cluster: ProcessCluster) -> None:
    """Create a topic, write it, and read it with a group."""
    async with (
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer,
    ):
        await admin.create_topics([NewTopic("t", 3, 3, {"min.insync.replicas": "3"}), NewTopic("single", 9, 1)])
        consumer.subscribe(["t"])
        await send(producer, "t")
        read = 0
        with anyio.fail_after(DEADLINE_S):
            while read < len(KEYS):
                read += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
        await consumer.commit()


async def send(producer: Producer, topic: str) -> None:
    for handle in [await producer.send(topic, key=key, value=b"v") for key in KEYS]:
        await handle


def test_promtool_finds_no_fault_with_the_metrics_pages(cluster: ProcessCluster) -> None:
    for process, address in cluster.metrics.items():
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_S) as answer:
            done = promtool("check", "metrics", text=answer.read().decode())
        found = [line for line in (done.stdout + done.stderr).splitlines() if line]
        known = KAFKAS_OWN if process.startswith("broker") else ()
        assert [line for line in found if not any(line.startswith(name) and what in line for name, what in known)] == []


def test_the_dashboard_shows_numbers(prometheus: Prometheus) -> None:
    def empty() -> set[str]:
        return {title for title, expression in expressions() if not prometheus.query(expression)}

    wait_for(lambda: empty() <= NOT_HERE, DEADLINE_S, f"{empty() - NOT_HERE} show something")


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.title)
def test_public_dashboards_of_kafka_show_numbers(prometheus: Prometheus, dashboard: Dashboard) -> None:
    def lacking() -> dict[str, set[str]]:
        found = {name: prometheus.query(name) for name in dashboard.asks}
        return {
            name: labels
            for name, labels in dashboard.asks.items()
            if not any(labels <= series["metric"].keys() for series in found[name])
        }

    wait_for(lambda: lacking() == {}, DEADLINE_S, f"{lacking()} are exported")


def test_a_group_that_is_behind_fires_an_alert(cluster: ProcessCluster, prometheus: Prometheus) -> None:
    async def move(offset: int) -> None:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.alter_group_offsets("late", {TopicPartition("t", p): offset for p in range(3)})

    assert "AnabranchGroupBehind" not in prometheus.firing()
    anyio.run(move, 0)
    prometheus.until_firing("AnabranchGroupBehind")
    anyio.run(move, len(KEYS))
    prometheus.until_quiet("AnabranchGroupBehind")


def test_expiring_unread_records_and_a_drain_that_waits_fire_alerts(
    cluster: ProcessCluster, prometheus: Prometheus
) -> None:
    """The group ``slow`` has unread records from before the split, and later also in marked partitions."""

    async def fill() -> None:
        async with (
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
        ):
            await admin.create_topics([NewTopic("watched", 2, 3, {"retention.ms": "600000"})])
            await send(producer, "watched")
            await admin.alter_group_offsets("slow", {TopicPartition("watched", 0): 1})
            await admin.create_partitions({"watched": 4})

    async def shrink() -> None:
        async with (
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
        ):
            await send(producer, "watched")
            await admin.alter_group_offsets("slow", {TopicPartition("watched", p): 0 for p in range(4)})
            await admin.create_partitions({"watched": 2})

    anyio.run(fill)
    prometheus.until_firing("AnabranchUnreadRecordsExpire")
    anyio.run(shrink)
    prometheus.until_firing("AnabranchDrainWaits")


def test_a_stopped_zookeeper_and_a_stopped_controller_fire_alerts(
    cluster: ProcessCluster, prometheus: Prometheus
) -> None:
    pids = cluster.state["pids"]
    with stopped(pids["zookeeper"]):
        prometheus.until_firing("AnabranchZookeeperAway")
    prometheus.until_quiet("AnabranchZookeeperAway", "AnabranchNoActiveController")
    with stopped(pids["controller"][0]):
        prometheus.until_firing("AnabranchNoActiveController", "AnabranchProcessDown")
    prometheus.until_quiet("AnabranchNoActiveController", "AnabranchProcessDown")


def test_a_stopped_broker_fires_alerts(cluster: ProcessCluster, prometheus: Prometheus) -> None:
    """Some partitions have replicas only on this broker. min.insync.replicas and a resize need the broker too."""

    async def grow() -> None:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_partitions({"single": 18})

    with stopped(cluster.broker_pids()[STOPPED]):
        prometheus.until_firing(
            "AnabranchProcessDown",
            "AnabranchUnderReplicatedPartitions",
            "AnabranchUnderMinIsr",
            "AnabranchOfflinePartitions",
        )
        anyio.run(grow)
        prometheus.until_firing("AnabranchResizeStuck")
    prometheus.until_quiet("AnabranchProcessDown", "AnabranchOfflinePartitions", "AnabranchResizeStuck")
