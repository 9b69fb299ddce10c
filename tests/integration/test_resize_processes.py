"""Splits and merges on real processes and a real ZooKeeper: bad input, edits by hand, kill -9 in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from confluent_kafka import KafkaError as RdKafkaError
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError

from anabranch import Admin, KafkaError
from anabranch.protocol.errors import ErrorCode
from anabranch.testing.processes import ProcessCluster, wait_for
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionLayout, PartitionState
from tests.support.broker.failures import controller_log, zookeeper
from tests.support.broker.load import Load
from tests.support.controller.topics import create_topic
from tests.support.resize.resizes import create_resizable, is_settled, resize, with_admin

pytestmark = pytest.mark.integration

DEADLINE_S = 90.0
OVERRIDES = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "zookeeper.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=3, controllers=2, overrides=OVERRIDES) as cluster:
        yield cluster


def settled(cluster: ProcessCluster, topic: str, count: int) -> None:
    wait_for(lambda: is_settled(cluster.bootstrap, topic, count), DEADLINE_S, f"{topic} has {count} partitions")


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("count", [0, -1, 3, 4, 2**31 - 1])
def test_a_bad_count_is_refused_and_changes_nothing(
    processes: ProcessCluster, fresh_name: Callable[[str], str], count: int
) -> None:
    topic = fresh_name("bad-count")
    create_topic(processes.bootstrap, topic, 4)
    with zookeeper(processes) as zk:
        before, _ = zk.get(paths.topic(topic))
        with pytest.raises(KafkaError) as refused:
            resize(processes.bootstrap, topic, count)
        assert refused.value.code is ErrorCode.INVALID_PARTITIONS
        assert zk.get(paths.topic(topic))[0] == before


def test_unknown_internal_and_deleted_topics_cannot_be_resized(
    processes: ProcessCluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("going")
    for name, code in (
        (fresh_name("never-created"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (offsets_topic(processes), ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(KafkaError) as refused:
            resize(processes.bootstrap, name, 8)
        assert refused.value.code is code
    create_topic(processes.bootstrap, topic, 4, replication_factor=3)
    with zookeeper(processes) as zk:
        os.kill(processes.broker_pids()[3], signal.SIGSTOP)
        try:
            zk.create(paths.delete_topic(topic))
            with pytest.raises(KafkaError) as refused:
                resize(",".join(processes.bootstrap.split(",")[:2]), topic, 8)
            assert refused.value.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
        finally:
            os.kill(processes.broker_pids()[3], signal.SIGCONT)
        wait_for(lambda: zk.exists(paths.topic(topic)) is None, DEADLINE_S, "the topic is deleted completely")


def offsets_topic(cluster: ProcessCluster) -> str:
    """The internal topic; its first use creates it."""
    with_admin(cluster.bootstrap, lambda admin: admin.describe_groups(["nobody"]))
    return "__consumer_offsets"


def test_the_second_of_two_alters_is_queued(processes: ProcessCluster, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("twice")
    create_resizable(processes.bootstrap, topic, 4, replication_factor=3)
    answers: dict[int, KafkaError | None] = {}

    async def ask(count: int) -> None:
        try:
            async with Admin(bootstrap_servers=processes.bootstrap) as admin:
                await admin.create_partitions({topic: count})
            answers[count] = None
        except KafkaError as error:
            answers[count] = error

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, 6)
            tasks.start_soon(ask, 9)

    anyio.run(both)
    assert answers == {6: None, 9: None}, "the second waits for the first"
    with zookeeper(processes) as zk:

        def is_done() -> bool:
            found = json.loads(zk.get(paths.topic(topic))[0])
            count = found["undeleted_partition_count"]
            return "wanted" not in found and count in answers and is_settled(processes.bootstrap, topic, count)

        wait_for(is_done, DEADLINE_S, "the count requested last is done")


# ---------------------------------------------------------------- edits by hand


def edit(zk: KazooClient, topic: str, change: Callable[[dict[str, Any]], Any]) -> None:
    data, stat = zk.get(paths.topic(topic))
    fields = json.loads(data)
    change(fields)
    zk.set(paths.topic(topic), json.dumps(fields).encode(), version=stat.version)


def edit_until_settled(
    cluster: ProcessCluster, zk: KazooClient, topic: str, change: Callable[[dict[str, Any]], Any], count: int
) -> None:
    """Edit the topic's znode until its resize is complete. The edit is repeated: another write may replace it."""

    def done() -> bool:
        fields = json.loads(zk.get(paths.topic(topic))[0])
        change(fields)
        if fields != json.loads(zk.get(paths.topic(topic))[0]):
            with contextlib.suppress(BadVersionError):
                edit(zk, topic, change)
        return is_settled(cluster.bootstrap, topic, count)

    wait_for(done, DEADLINE_S, f"{topic} has {count} partitions")


def test_the_znode_edited_by_hand_splits_and_merges(
    processes: ProcessCluster, fresh_name: Callable[[str], str]
) -> None:
    """The edit has no layout version: an admin does not need to know it."""
    topic = fresh_name("by-hand")
    create_resizable(processes.bootstrap, topic, 4, replication_factor=3)
    with zookeeper(processes) as zk:
        added = {"4": [1, 2, 3], "5": [2, 3, 1]}
        edit_until_settled(processes, zk, topic, lambda fields: fields["partitions"].update(added), 6)
        for count in (7, 4):
            edit_until_settled(processes, zk, topic, partial(set_count, count=count), count)
        found = json.loads(zk.get(paths.topic(topic))[0])
        assert (found["initial_partition_count"], found["layout_version"]) == (4, 3)


def set_count(fields: dict[str, Any], count: int) -> None:
    fields["undeleted_partition_count"] = count


BAD_EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "below the initial count": lambda fields: fields.update(undeleted_partition_count=3),
    "above the largest count": lambda fields: fields.update(undeleted_partition_count=2**31 - 1),
    "another count than is assigned": lambda fields: (
        fields["partitions"].update({"6": [1, 2, 3]}),
        fields.update(undeleted_partition_count=9),
    ),
    "another initial count": lambda fields: fields.update(initial_partition_count=2),
    "a partition is missing": lambda fields: fields["partitions"].pop("5"),
    "fewer replicas": lambda fields: fields["partitions"].update({"6": [1]}),
    "a gap": lambda fields: fields["partitions"].update({"8": [1, 2, 3]}),
    "a count that is no number": lambda fields: fields.update(undeleted_partition_count="four"),
    "no partitions": lambda fields: fields.pop("partitions"),
}


def test_a_bad_edit_is_undone_with_a_line_in_the_log(
    processes: ProcessCluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("bad-edit")
    create_resizable(processes.bootstrap, topic, 4, replication_factor=3)
    resize(processes.bootstrap, topic, 6)
    with zookeeper(processes) as zk:
        before = json.loads(zk.get(paths.topic(topic))[0])
        lines = controller_log(processes).count(f"{paths.topic(topic)}")
        for what, change in BAD_EDITS.items():
            edit(zk, topic, change)
            undone = lambda: json.loads(zk.get(paths.topic(topic))[0]) == before  # noqa: E731
            wait_for(undone, DEADLINE_S, f"undone: {what}")
            named_lines = lambda: controller_log(processes).count(f"{paths.topic(topic)}")  # noqa: E731
            wait_for(lambda: named_lines() > lines, DEADLINE_S, f"named in the log: {what}")  # noqa: B023
            lines = named_lines()
        zk.set(paths.topic(topic), b"{not json")
        wait_for(lambda: zk.get(paths.topic(topic))[0].startswith(b'{"'), DEADLINE_S, "undone: text that is not JSON")
        assert json.loads(zk.get(paths.topic(topic))[0]) == before
    resize(processes.bootstrap, topic, 4)


# ---------------------------------------------------------------- kill -9


def killed_meanwhile(cluster: ProcessCluster, who: str, topic: str, count: int) -> None:
    """Request a count, and kill a process when the active controller has logged the first step of the resize."""
    of_topic = f"event='resize.step' topic='{topic}' "
    steps = controller_log(cluster).count(of_topic)
    asked = threading.Thread(target=asked_until_done, args=(cluster.bootstrap, topic, count))
    asked.start()
    wait_for(lambda: controller_log(cluster).count(of_topic) > steps, DEADLINE_S, "the resize has begun")
    if who == "controller":
        for pid in cluster.state["pids"]["controller"]:
            os.kill(pid, signal.SIGKILL)
    else:
        cluster.kill_broker(cluster.broker_ids[count % 3])
    asked.join(DEADLINE_S)
    assert not asked.is_alive()
    wait_for(lambda: has_layout(cluster, topic, count), DEADLINE_S, f"every leader has the layout of {count}")


def has_layout(cluster: ProcessCluster, topic: str, count: int) -> bool:
    """Whether every partition has the layout, and the ``count`` partitions have leaders. Closed ones may drain."""
    with zookeeper(cluster) as zk:
        found = json.loads(zk.get(paths.topic(topic))[0])
        if found["undeleted_partition_count"] != count:
            return False
        names = [paths.partition_state(topic, int(index)) for index in found["partitions"]]
        states = [PartitionState.decode(name, zk.get(name)[0]) for name in names]
        layout = PartitionLayout(count, found["layout_version"])
        return all(state.layout == layout for state in states) and all(state.leader > 0 for state in states[:count])


def asked_until_done(bootstrap: str, topic: str, count: int) -> None:
    """Request the count until it is accepted. After a lost response the topic may already have the count.

    The request is also repeated while another resize is in progress.
    """

    def done() -> bool:
        try:
            resize(bootstrap, topic, count, settle=False)
        except KafkaError as error:
            return "already has" in str(error)
        return True

    wait_for(done, DEADLINE_S, f"{count} partitions are asked for")


@pytest.mark.parametrize("who", ["controller", "broker"])
def test_no_acknowledged_record_is_lost_by_kill_9_during_a_split_or_a_merge(
    processes: ProcessCluster, fresh_name: Callable[[str], str], who: str
) -> None:
    """The load's producer knows no layouts. Whichever process died, all acknowledged records exist."""
    topic = fresh_name(f"killed-{who}")
    bootstrap = processes.bootstrap
    gone = {ErrorCode.POLICY_VIOLATION, RdKafkaError._UNKNOWN_PARTITION}
    create_topic(bootstrap, topic, 4, {"ordered.delivery.stock.producers": "accept"}, replication_factor=3)
    with Load(bootstrap, topic, {"topic.metadata.refresh.interval.ms": 1_000}) as load:
        load.wait_for_more(500)
        killed_meanwhile(processes, who, topic, 8)
        wait_for(lambda: {found for found, _ in load.acknowledged} == set(range(8)), DEADLINE_S, "all partitions fill")
        killed_meanwhile(processes, who, topic, 4)
        load.wait_for_more(500)
    load.check(bootstrap, 8, gone)
