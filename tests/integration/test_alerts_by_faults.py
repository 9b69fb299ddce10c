"""Every alert of ``deploy/prometheus`` fires for a real fault of disks, processes, groups or znodes in a real cluster.

``FAULTS`` names the fault and its test for each alert. Alerts that take minutes in operation have shorter limits.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from kazoo.client import KazooClient

from anabranch import Admin, Consumer, KafkaError, NewTopic, Producer, TopicPartition
from anabranch.runtime.env import CreateOp
from anabranch.runtime.zk_requests import DEFAULT_MAX_REQUEST_BYTES, request_bytes
from anabranch.testing.processes import ProcessCluster, wait_for
from anabranch.zk_schemas import paths
from tests.support.broker.failures import stopped
from tests.support.seen.prometheus_tools import DEADLINE_S, Prometheus, needed, rules, scraping

pytestmark = pytest.mark.integration

KEYS = [b"key-%d" % number for number in range(32)]
LIMITS = {
    "AnabranchMemberWaits": ("> 300", "> 0"),
    "AnabranchLoopHeldUp": ("[5m]", "[10s]"),
}
SMALL_DISK_BYTES = 32 << 20
HELD_UP_S = 0.7
OF_OTHERS = "test_prometheus.py"


class Fault(NamedTuple):
    """A fault and the test with it. ``file`` is the test's file, and empty for this file."""

    what: str
    test: str
    file: str = ""


FAULTS = {
    "AnabranchProcessDown": Fault("a broker hangs", "test_a_stopped_broker_fires_alerts", OF_OTHERS),
    "AnabranchNoActiveController": Fault(
        "the controller hangs", "test_a_stopped_zookeeper_and_a_stopped_controller_fire_alerts", OF_OTHERS
    ),
    "AnabranchOfflinePartitions": Fault(
        "the only replica's broker hangs", "test_a_stopped_broker_fires_alerts", OF_OTHERS
    ),
    "AnabranchUnderMinIsr": Fault(
        "a broker hangs that min.insync.replicas needs", "test_a_stopped_broker_fires_alerts", OF_OTHERS
    ),
    "AnabranchUnderReplicatedPartitions": Fault("a broker hangs", "test_a_stopped_broker_fires_alerts", OF_OTHERS),
    "AnabranchZookeeperAway": Fault(
        "ZooKeeper hangs", "test_a_stopped_zookeeper_and_a_stopped_controller_fire_alerts", OF_OTHERS
    ),
    "AnabranchGroupBehind": Fault(
        "a group's offset is set back", "test_a_group_that_is_behind_fires_an_alert", OF_OTHERS
    ),
    "AnabranchResizeStuck": Fault("a leader hangs during a resize", "test_a_stopped_broker_fires_alerts", OF_OTHERS),
    "AnabranchDrainWaits": Fault(
        "a group does not read",
        "test_expiring_unread_records_and_a_drain_that_waits_fire_alerts",
        OF_OTHERS,
    ),
    "AnabranchUnreadRecordsExpire": Fault(
        "a group has not read records that are about to expire",
        "test_expiring_unread_records_and_a_drain_that_waits_fire_alerts",
        OF_OTHERS,
    ),
    "AnabranchUncleanElection": Fault(
        "the broker in sync hangs, and a broker out of sync returns", "test_an_unclean_election_fires_an_alert"
    ),
    "AnabranchLogDirLost": Fault(
        "a log dir is no directory", "test_a_small_disk_and_a_log_dir_that_is_no_directory_fire_alerts"
    ),
    "AnabranchRecordsAheadOfClock": Fault(
        "a producer writes microseconds", "test_a_record_with_a_timestamp_in_microseconds_fires_an_alert"
    ),
    "AnabranchDiskAlmostFull": Fault(
        "a file fills a small disk", "test_a_small_disk_and_a_log_dir_that_is_no_directory_fire_alerts"
    ),
    "AnabranchOfflineReplicas": Fault(
        "the directory of a log is removed", "test_a_log_whose_directory_is_removed_fires_an_alert"
    ),
    "AnabranchBackgroundFailing": Fault(
        "bytes of a segment that is to be compacted are overwritten", "test_a_damaged_segment_fires_an_alert"
    ),
    "AnabranchLoopHeldUp": Fault(
        "a busy process repeatedly gets no CPU", "test_a_process_without_cpu_or_without_descriptors_fires_alerts"
    ),
    "AnabranchFewDescriptorsLeft": Fault(
        "the limit of open files is low", "test_a_process_without_cpu_or_without_descriptors_fires_alerts"
    ),
    "AnabranchMemberWaits": Fault(
        "a member reads nothing after a split", "test_a_member_that_waits_for_another_fires_an_alert"
    ),
    "AnabranchOrderMayBeLost": Fault(
        "a group does not read before a split for longer than stock consumers are held",
        "test_a_group_that_is_no_longer_waited_for_fires_an_alert",
    ),
    "AnabranchFrozenTopics": Fault("a partition's state is deleted by hand", "test_znodes_edited_by_hand_fire_alerts"),
    "AnabranchGivenUpStep": Fault(
        "a znode has the largest size that ZooKeeper accepts", "test_znodes_edited_by_hand_fire_alerts"
    ),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    needed("prometheus")
    overrides = {
        "zookeeper.session.timeout.ms": "3000",
        "log.cleaner.backoff.ms": "200",
        "log.retention.check.interval.ms": "1000",
    }
    with ProcessCluster(brokers=2, overrides=overrides) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(cluster: ProcessCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus in which no alert fires before its fault, except for slow loops on a slow machine."""
    with scraping(tmp_path_factory.mktemp("prometheus"), cluster.metrics.values(), LIMITS) as running:
        running.until_quiet(*FAULTS.keys() - {"AnabranchLoopHeldUp"})
        yield running


async def send(producer: Producer, topic: str) -> None:
    """Send records, each in a batch of its own."""
    for key in KEYS:
        await (await producer.send(topic, key=key, value=b"v" * 100))


async def filled(cluster: ProcessCluster, topic: NewTopic) -> None:
    async with (
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
    ):
        await admin.create_topics([topic])
        await send(producer, topic.name)


def test_each_alert_has_a_fault_whose_test_waits_for_the_alert() -> None:
    assert set(FAULTS) == {rule["alert"] for rule in rules()}
    here = Path(__file__)
    for alert, fault in FAULTS.items():
        text = (here.parent / (fault.file or here.name)).read_text()
        body = text.partition(f"def {fault.test}(")[2].partition("\ndef ")[0]
        assert f'"{alert}"' in body and "until_firing" in body, alert


def test_a_member_that_waits_for_another_fires_an_alert(cluster: ProcessCluster, prometheus: Prometheus) -> None:
    """The owner of partition 0 does not read the records from before the split. The other member waits for them.

    The alert ends once those records are read, although each member still asks for the other's positions.
    """
    first = TopicPartition("handed", 0)
    is_over = anyio.Event()

    async def read(consumer: Consumer) -> None:
        while True:
            if first in consumer.assignment():
                (consumer.resume if is_over.is_set() else consumer.pause)(first)
            await consumer.getmany(timeout_ms=100, max_records=1)  # few records before the pause

    async def work() -> None:
        settings = {"bootstrap_servers": cluster.bootstrap, "group_id": "pair", "auto_offset_reset": "earliest"}
        async with (
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
            Consumer(client_id="one", **settings) as one,  # type: ignore[arg-type]
            Consumer(client_id="two", **settings) as two,  # type: ignore[arg-type]
        ):
            await admin.create_topics([NewTopic("handed", 1, 1)])
            await send(producer, "handed")
            await admin.create_partitions({"handed": 2})
            await send(producer, "handed")
            async with anyio.create_task_group() as tasks:
                for consumer in (one, two):
                    consumer.subscribe(["handed"])
                    tasks.start_soon(read, consumer)
                await anyio.to_thread.run_sync(prometheus.until_firing, "AnabranchMemberWaits")
                is_over.set()
                await anyio.to_thread.run_sync(prometheus.until_quiet, "AnabranchMemberWaits")
                tasks.cancel_scope.cancel()

    anyio.run(work)


def test_a_group_that_is_no_longer_waited_for_fires_an_alert(cluster: ProcessCluster, prometheus: Prometheus) -> None:
    configs = {
        "ordered.delivery.stock.consumers": "withhold",
        "ordered.delivery.stock.consumers.max.withhold.ms": "2000",
    }

    async def split() -> None:
        await filled(cluster, NewTopic("let-go", 1, 1, configs))
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.alter_group_offsets("slow", {TopicPartition("let-go", 0): 1})
            await admin.create_partitions({"let-go": 2})

    anyio.run(split)
    prometheus.until_firing("AnabranchOrderMayBeLost")


def test_a_damaged_segment_fires_an_alert(cluster: ProcessCluster, prometheus: Prometheus) -> None:
    """The segment is damaged before the topic is set to be compacted, so that the cleaner reads it."""

    async def damage() -> None:
        await filled(cluster, NewTopic("damaged", 1, replica_assignments={0: [2]}, configs={"segment.bytes": "1024"}))
        segment = min((cluster.log_dir(2) / "damaged-0").glob("*.log"))
        with segment.open("r+b") as file:
            file.seek(segment.stat().st_size - 20)
            file.write(b"?" * 10)
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
            await admin.incremental_alter_configs(topics={"damaged": compacted})

    anyio.run(damage)
    prometheus.until_firing("AnabranchBackgroundFailing")


def test_znodes_edited_by_hand_fire_alerts(cluster: ProcessCluster, prometheus: Prometheus) -> None:
    """One alert is for a topic znode without space for the controller's fields, the other for a deleted state znode."""
    anyio.run(filled, cluster, NewTopic("frozen", 1, 1))

    async def split() -> None:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_partitions({"frozen": 2})

    anyio.run(split)
    zookeeper = KazooClient(cluster.state["zookeeper"])
    zookeeper.start(DEADLINE_S)
    try:
        path, data = paths.topic("large"), b'{"version":1,"partitions":{"0":[1]},"padding":"%s"}'
        free = DEFAULT_MAX_REQUEST_BYTES - request_bytes([CreateOp(path, data % b"")])
        zookeeper.create(path, data % (b"x" * free))
        prometheus.until_firing("AnabranchGivenUpStep")
        zookeeper.delete(path)
        zookeeper.delete(paths.partition("frozen", 0), recursive=True)
        os.kill(cluster.state["pids"]["controller"][0], signal.SIGKILL)
        prometheus.until_firing("AnabranchFrozenTopics")
    finally:
        zookeeper.stop()
        zookeeper.close()


@contextmanager
def busy(address: str) -> Iterator[None]:
    """Keep the process at the address busy with scrapes."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            with suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_S) as answer:
                answer.read()

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_process_without_cpu_or_without_descriptors_fires_alerts(
    cluster: ProcessCluster, prometheus: Prometheus
) -> None:
    pid = cluster.broker_pids()[2]

    def held_up() -> bool:
        with stopped(pid):
            time.sleep(HELD_UP_S)  # pause: the process gets no CPU
        time.sleep(HELD_UP_S)  # pause: it gets CPU, and is scraped
        return "AnabranchLoopHeldUp" in prometheus.firing()

    with busy(cluster.metrics["broker-2"]):
        wait_for(held_up, DEADLINE_S, "the loop is held up")
    prometheus.until_firing("AnabranchLoopHeldUp")
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 8, hard))
    try:
        prometheus.until_firing("AnabranchFewDescriptorsLeft")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    prometheus.until_quiet("AnabranchFewDescriptorsLeft")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system. Skips the test when this user may not mount one."""
    place = tmp_path / "small"
    place.mkdir()
    options = f"size={SMALL_DISK_BYTES}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path, leave_bytes: int) -> None:
    """Write a file until only ``leave_bytes`` are free."""
    usage = os.statvfs(place)
    rest = usage.f_bavail * usage.f_frsize - leave_bytes
    with (place / "other-files").open("ab") as file, suppress(OSError):
        while rest > 0:
            written = min(rest, 1 << 20)
            file.write(b"x" * written)
            file.flush()
            rest -= written


def test_a_small_disk_and_a_log_dir_that_is_no_directory_fire_alerts(
    cluster: ProcessCluster, prometheus: Prometheus, small_disk: Path, tmp_path: Path
) -> None:
    no_directory = tmp_path / "file"
    no_directory.write_bytes(b"")
    properties = cluster.directory / "data" / "broker-1.properties"
    directories = f"log.dirs={cluster.log_dir(1)},{small_disk / 'logs'},{no_directory}\n"
    properties.write_text(properties.read_text() + directories)
    cluster.restart_broker(1)
    prometheus.until_firing("AnabranchLogDirLost")
    fill(small_disk, SMALL_DISK_BYTES // 20)
    prometheus.until_firing("AnabranchDiskAlmostFull")


def test_a_record_with_a_timestamp_in_microseconds_fires_an_alert(
    cluster: ProcessCluster, prometheus: Prometheus
) -> None:
    async def write() -> None:
        configs = {"message.timestamp.after.max.ms": str(2**63 - 1)}
        await filled(cluster, NewTopic("microseconds", 1, 1, configs=configs))
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("microseconds", value=b"v", timestamp_ms=time.time_ns() // 1000)

    anyio.run(write)
    prometheus.until_firing("AnabranchRecordsAheadOfClock")


def test_a_log_whose_directory_is_removed_fires_an_alert(cluster: ProcessCluster, prometheus: Prometheus) -> None:
    """The log's next segment cannot be created."""

    async def write() -> None:
        settings = {"bootstrap_servers": cluster.bootstrap, "request_timeout_ms": 1000, "delivery_timeout_ms": 2000}
        topic = NewTopic("removed", replica_assignments={0: [2]}, configs={"segment.bytes": "1024"})
        await filled(cluster, topic)
        await anyio.to_thread.run_sync(shutil.rmtree, cluster.log_dir(2) / "removed-0")
        async with Producer(**settings) as producer:  # type: ignore[arg-type]
            with pytest.raises(KafkaError):
                await send(producer, "removed")

    anyio.run(write)
    prometheus.until_firing("AnabranchOfflineReplicas")


def test_an_unclean_election_fires_an_alert(cluster: ProcessCluster, prometheus: Prometheus) -> None:
    """Broker 2 hangs until it is out of sync, then broker 1 until there is no leader, then broker 2 continues."""
    configs = {"unclean.leader.election.enable": "true"}
    anyio.run(filled, cluster, NewTopic("unclean", 1, replica_assignments={0: [1, 2]}, configs=configs))

    def shows(expression: str) -> None:
        wait_for(lambda: prometheus.query(expression), DEADLINE_S, expression)

    pids = cluster.broker_pids()
    with ExitStack() as second:
        second.enter_context(stopped(pids[2]))
        shows('kafka_topic_partition_in_sync_replica{topic="unclean"} == 1')
        with stopped(pids[1]):
            shows("kafka_controller_kafkacontroller_offlinepartitionscount > 0")
            second.close()
            prometheus.until_firing("AnabranchUncleanElection")
