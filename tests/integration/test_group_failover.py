"""A group of stock consumers, while the broker of its coordinator is killed, paused and restarted again and again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from anabranch.broker.coordinator.placement import partition_for
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.support.controller.topics import create_topic

PARTITIONS = 6
MEMBERS = 3
GROUP = "readers"
OFFSETS_PARTITIONS = 5
DEADLINE_S = 120.0
SESSION_TIMEOUT_MS = 10_000
COMMIT_EVERY = 20

pytestmark = pytest.mark.integration


class Producing:
    """Writes small records without end."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.005):
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, b"%d" % number, partition=partition)
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(DEADLINE_S) == 0

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Progress:
    """The progress of the group's members, as an observer sees it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.processed: dict[int, set[int]] = {partition: set() for partition in range(PARTITIONS)}
        self.committed: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        """The largest acknowledged commit of each partition."""
        self.commits = 0
        self.by_member: dict[int, int] = dict.fromkeys(range(MEMBERS), 0)
        """The number of records that each member has processed."""
        self.failures: list[str] = []

    def acknowledged(self, partition: int, position: int) -> None:
        with self.lock:
            self.committed[partition] = max(self.committed[partition], position)
            self.commits += 1


class Member:
    """One consumer in a thread: it processes records and then commits them, and waits for each commit."""

    def __init__(self, number: int, bootstrap: str, topic: str, progress: Progress) -> None:
        self._number = number
        self._progress = progress
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "client.id": f"member-{number}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 500,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        since_commit: dict[int, int] = {}
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            partition = self._processed(message)
            since_commit[partition] = since_commit.get(partition, 0) + 1
            if since_commit[partition] >= COMMIT_EVERY:
                since_commit[partition] = 0
                self._commit(message)
        self._consumer.close()

    def _processed(self, message: Message) -> int:
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        with self._progress.lock:
            self._progress.processed[partition].add(offset)
            self._progress.by_member[self._number] += 1
        return partition

    def _commit(self, message: Message) -> None:
        """Commit. An acknowledged commit must exist. After an error the commit may exist or not."""
        try:
            results = self._consumer.commit(message, asynchronous=False)
        except KafkaException:
            return
        for result in results or []:
            if result.error is None:
                self._progress.acknowledged(result.partition, result.offset)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Auditor:
    """Checks the group's committed offsets repeatedly: offsets never fall, and are never below an acknowledged commit.

    Its connection to a paused coordinator stays open. So the auditor also asks a coordinator that does not know yet
    that another broker has replaced it.
    """

    def __init__(self, bootstrap: str, topic: str, progress: Progress) -> None:
        self._progress = progress
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "reconnect.backoff.max.ms": 500})
        self._topic = topic
        self._stop = threading.Event()
        self.answers = 0
        self._seen: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self._look()
        self._consumer.close()

    def _look(self) -> None:
        with self._progress.lock:
            at_least = dict(self._progress.committed)
        for partition, offset in committed(self._consumer, self._topic).items():
            self.answers += 1
            least = max(at_least[partition], self._seen.get(partition, 0))
            if offset < least:
                self._progress.failures.append(f"partition {partition}: {offset} after {least}")
            self._seen[partition] = max(offset, least)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def coordinator(bootstrap: str) -> int:
    """The broker that leads the group's partition of the offsets topic; -1 when there is none."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics("__consumer_offsets", timeout=DEADLINE_S).topics
    return int(topics["__consumer_offsets"].partitions[partition_for(GROUP, OFFSETS_PARTITIONS)].leader)


def present_coordinator(cluster: ProcessCluster) -> int:
    wait_for(lambda: coordinator(cluster.bootstrap) != -1, DEADLINE_S, "the group has a coordinator")
    return coordinator(cluster.bootstrap)


def kill(cluster: ProcessCluster, broker_id: int) -> None:
    cluster.kill_broker(broker_id)


def restart(cluster: ProcessCluster, broker_id: int) -> None:
    cluster.kill_broker(broker_id, signal.SIGTERM)


def pause(cluster: ProcessCluster, broker_id: int) -> None:
    """Stop the process until another broker coordinates the group, then let it continue in its old role."""
    pid = cluster.broker_pids()[broker_id]
    others = ",".join(address for address in cluster.bootstrap.split(",") if address != address_of(cluster, broker_id))
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: coordinator(others) not in (-1, broker_id), DEADLINE_S, "another broker coordinates")
    finally:
        os.kill(pid, signal.SIGCONT)


def address_of(cluster: ProcessCluster, broker_id: int) -> str:
    found = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=DEADLINE_S).brokers[broker_id]
    return f"{found.host}:{found.port}"


FAULTS = [kill, pause, restart, kill]


def wait_for_progress(progress: Progress, what: str) -> None:
    """Wait until every partition has a later commit, and every member has processed more records."""
    with progress.lock:
        committed, by_member = dict(progress.committed), dict(progress.by_member)

    def has_gone_on() -> bool:
        with progress.lock:
            return all(progress.committed[p] > committed[p] for p in committed) and all(
                progress.by_member[m] > by_member[m] for m in by_member
            )

    wait_for(has_gone_on, DEADLINE_S, f"every member and every partition makes progress after {what}")


def test_no_acknowledged_commit_is_lost_while_the_coordinator_dies_again_and_again(
    fresh_name: Callable[[str], str],
) -> None:
    overrides = {"offsets.topic.num.partitions": str(OFFSETS_PARTITIONS), "min.insync.replicas": "2"}
    with ProcessCluster(brokers=3, overrides=overrides) as cluster:
        topic = fresh_name("read")
        create_topic(cluster.bootstrap, topic, PARTITIONS, replication_factor=3)
        progress = Progress()
        members: list[Member] = []
        with Producing(cluster.bootstrap, topic):
            members += [Member(number, cluster.bootstrap, topic, progress) for number in range(MEMBERS)]
            auditor = Auditor(cluster.bootstrap, topic, progress)
            try:
                wait_for_progress(progress, "the start")
                for fault in FAULTS:
                    fault(cluster, present_coordinator(cluster))
                    wait_for_progress(progress, fault.__name__)
            finally:
                for member in members:
                    member.stop()
                auditor.stop()
        assert progress.failures == []
        assert auditor.answers > len(FAULTS)
        check_at_the_end(cluster, topic, progress)


def check_at_the_end(cluster: ProcessCluster, topic: str, progress: Progress) -> None:
    """Check that acknowledged commits exist, also at the next coordinator, and that no record below was skipped."""
    kill(cluster, present_coordinator(cluster))
    found: dict[int, int] = {}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP})
    try:
        wait_for(lambda: found.update(committed(consumer, topic)) or found, DEADLINE_S, "offsets can be fetched")
    finally:
        consumer.close()
    for partition, position in progress.committed.items():
        assert found[partition] >= position
        assert progress.processed[partition] >= set(range(found[partition]))


def committed(consumer: Consumer, topic: str) -> dict[int, int]:
    """The group's committed offsets; empty when no coordinator responds now."""
    try:
        answer = consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=5)
    except KafkaException:
        return {}
    return {} if any(tp.error for tp in answer) else {tp.partition: max(tp.offset, 0) for tp in answer}
