"""Faults of a cluster: processes and ZooKeeper are killed, stopped and restarted, and znodes are edited by hand."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from kazoo.exceptions import NoNodeError

from anabranch import NewTopic
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.sync import Admin
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.support.broker.failures import (
    DEADLINE_S,
    controller_log,
    leaders,
    numbered,
    read,
    wait_until_led,
    write,
    zookeeper,
)
from tests.support.controller.topics import create_topic

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pair() -> Iterator[ProcessCluster]:
    """Two brokers and two controllers."""
    with ProcessCluster(brokers=2, controllers=2) as running:
        yield running


def active_controller(cluster: ProcessCluster) -> tuple[int, int]:
    """The id and the process id of the active controller."""
    found: list[int] = []

    def is_active() -> bool:
        with suppress(NoNodeError):  # the old one is gone and the next one is not elected yet
            found.append(int(json.loads(client.get("/controller")[0])["brokerid"]))
        return bool(found)

    with zookeeper(cluster) as client:
        wait_for(is_active, DEADLINE_S, "a controller is active")
    return found[0], cluster.state["pids"]["controller"][found[0] - 1000]


@contextmanager
def allowed(code: ErrorCode) -> Iterator[None]:
    """A block that may end with this error."""
    try:
        yield
    except KafkaError as error:
        if error.code is not code:
            raise


def test_a_standby_takes_over_while_topics_are_created_and_deleted(
    pair: ProcessCluster, fresh_name: Callable[[str], str]
) -> None:
    names = [fresh_name("takeover") for _ in range(24)]
    kept, dropped = names[::2], names[1::2]
    failures: list[BaseException] = []
    halfway = threading.Event()

    def change_topics() -> None:
        try:
            with Admin(bootstrap_servers=pair.bootstrap) as admin:
                for index in range(0, len(names), 2):
                    # A killed controller may have made the change without a response. Then the retry gets this error.
                    with allowed(ErrorCode.TOPIC_ALREADY_EXISTS):
                        admin.create_topics([NewTopic(n, num_partitions=3) for n in names[index : index + 2]])
                    with allowed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                        admin.delete_topics([names[index + 1]])
                    if index >= 8:
                        halfway.set()
        except BaseException as error:
            failures.append(error)
            halfway.set()

    before, pid = active_controller(pair)
    with Admin(bootstrap_servers=pair.bootstrap) as admin:

        def standby() -> list[int] | None:
            found = admin.describe_cluster().standby_controllers
            return None if found is None else [one.id for one in found]

        wait_for(lambda: standby() == [2001 - before], DEADLINE_S, "the other controller is the standby one")
    changing = threading.Thread(target=change_topics)
    changing.start()
    assert halfway.wait(DEADLINE_S)
    os.kill(pid, signal.SIGKILL)
    changing.join(DEADLINE_S)
    assert not changing.is_alive() and failures == []
    for name in kept:
        wait_until_led(pair, name)
        assert write(pair.bootstrap, name, [b"x"]) == []
    with zookeeper(pair) as client:
        wait_for(lambda: not client.get_children("/admin/delete_topics"), DEADLINE_S, "every deletion is complete")
        assert not set(dropped) & set(client.get_children("/brokers/topics"))
    wait_for(lambda: pair.state["pids"]["controller"][before - 1000] != pid, DEADLINE_S, "the controller is restarted")


def test_a_controller_that_was_stopped_does_not_take_over_again(
    pair: ProcessCluster, fresh_name: Callable[[str], str]
) -> None:
    before, pid = active_controller(pair)
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: active_controller(pair)[0] != before, DEADLINE_S, "the other controller is active")
        create_topic(pair.bootstrap, first := fresh_name("stopped"), 2)
    finally:
        os.kill(pid, signal.SIGCONT)
    with zookeeper(pair) as client:
        epoch = int(client.get("/controller_epoch")[0])
        create_topic(pair.bootstrap, second := fresh_name("stopped"), 2)
        for name in (first, second):
            wait_until_led(pair, name)
            for partition in range(2):
                state = json.loads(client.get(f"/brokers/topics/{name}/partitions/{partition}/state")[0])
                assert state["controller_epoch"] == epoch
        assert int(client.get("/controller_epoch")[0]) == epoch


def test_a_broker_stopped_for_longer_than_its_session_registers_again(
    pair: ProcessCluster, fresh_name: Callable[[str], str]
) -> None:
    create_topic(pair.bootstrap, topic := fresh_name("sleeper"), 2)
    wait_until_led(pair, topic)
    home = leaders(pair, topic)
    asleep = home.index(1)
    assert write(pair.bootstrap, topic, numbered(0, 500), partition=asleep) == []
    pid = pair.broker_pids()[1]
    with zookeeper(pair) as client:
        old_epoch = client.exists("/brokers/ids/1").czxid
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: client.exists("/brokers/ids/1") is None, DEADLINE_S, "its session ends")
            path = f"/brokers/topics/{topic}/partitions/{asleep}/state"
            wait_for(lambda: json.loads(client.get(path)[0])["leader"] == -1, DEADLINE_S, "its partition is offline")
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: client.exists("/brokers/ids/1") is not None, DEADLINE_S, "it registers again")
        assert client.exists("/brokers/ids/1").czxid > old_epoch
    assert write(pair.bootstrap, topic, numbered(500, 100), partition=asleep) == []
    assert leaders(pair, topic) == home
    assert read(pair.bootstrap, topic, 600, partitions=2) == numbered(0, 600)


def test_brokers_serve_while_zookeeper_is_away(pair: ProcessCluster, fresh_name: Callable[[str], str]) -> None:
    create_topic(pair.bootstrap, topic := fresh_name("no-zookeeper"), 2)
    wait_until_led(pair, topic)
    pids = pair.state["pids"]
    os.kill(pids["zookeeper"], signal.SIGKILL)
    for partition in range(2):
        assert write(pair.bootstrap, topic, numbered(0, 200), partition=partition, timeout_s=20) == []
    assert len(read(pair.bootstrap, topic, 400, partitions=2)) == 400
    wait_for(lambda: pair.state["pids"]["zookeeper"] != pids["zookeeper"], DEADLINE_S, "ZooKeeper is restarted")
    create_topic(pair.bootstrap, later := fresh_name("zookeeper-back"), 2)
    wait_until_led(pair, later)
    assert write(pair.bootstrap, topic, numbered(200, 10)) == []
    assert pair.state["pids"]["brokers"] == pids["brokers"]


@pytest.mark.parametrize("where", ["topic", "state"])
def test_a_malformed_znode_does_not_affect_other_topics(
    pair: ProcessCluster, fresh_name: Callable[[str], str], where: str
) -> None:
    create_topic(pair.bootstrap, broken := fresh_name("malformed"), 1)
    wait_until_led(pair, broken)
    path = f"/brokers/topics/{broken}" + ("/partitions/0/state" if where == "state" else "")
    with zookeeper(pair) as client:
        good, _ = client.get(path)
        client.set(path, b'{"version": 1, "partitions": 7')
        try:
            before, pid = active_controller(pair)
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: pair.state["pids"]["controller"][before - 1000] != pid, DEADLINE_S, "it is restarted")
            create_topic(pair.bootstrap, other := fresh_name("beside"), 2)
            wait_until_led(pair, other)
            assert write(pair.bootstrap, other, [b"x"]) == []
            assert path in controller_log(pair)
        finally:
            client.set(path, good)


def test_a_partition_added_by_hand_takes_effect(pair: ProcessCluster, fresh_name: Callable[[str], str]) -> None:
    create_topic(pair.bootstrap, topic := fresh_name("by-hand"), 1)
    wait_until_led(pair, topic)
    with zookeeper(pair) as client:
        znode = json.loads(client.get(f"/brokers/topics/{topic}")[0])
        znode["partitions"]["1"] = [2]
        client.set(f"/brokers/topics/{topic}", json.dumps(znode).encode())
    wait_for(lambda: leaders(pair, topic)[1:] == [2], DEADLINE_S, "broker 2 leads the new partition")
    assert write(pair.bootstrap, topic, [b"new"], partition=1) == []


def test_a_recreated_topic_starts_empty(pair: ProcessCluster, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("again")
    with Admin(bootstrap_servers=pair.bootstrap) as admin:
        for generation in range(5):
            admin.create_topics([NewTopic(topic, num_partitions=1)])
            values = [b"%d:%d" % (generation, number) for number in range(100)]
            assert write(pair.bootstrap, topic, values) == []
            assert read(pair.bootstrap, topic, 100) == values
            admin.delete_topics([topic])
