"""The examples of the documentation run unchanged, except for the address."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from anabranch import ClientClosedError, NewTopic, TopicPartition
from anabranch.sync import Admin, Consumer, Producer
from anabranch.testing.cluster import Cluster
from tests.support.seen.examples import renamed

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
DEADLINE_S = 60


@pytest.mark.parametrize("page", ["README.md", "docs/clients.md"])
def test_the_examples_run(cluster: Cluster, tmp_path: Path, page: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        if "events" not in {listing.name for listing in admin.list_topics()}:
            admin.create_topics([NewTopic("events", num_partitions=2, replication_factor=1)])
    programs = BLOCK.findall((ROOT / page).read_text())
    assert programs
    for program in programs:
        file = tmp_path / "client.py"  # a user's module of this name must not hide Anabranch's
        file.write_text(program.replace("127.0.0.1:9092", cluster.bootstrap_servers))
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr


def test_the_example_of_callbacks_counts_the_keys_and_commits(
    cluster: Cluster, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    """The program of ordered-resize.md reads for ever. Here it ends once it has counted records."""
    topic = fresh_name("events")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            written = producer.send_many(topic, [(b"key", b"v")] * 3)
        (program,) = BLOCK.findall((ROOT / "docs" / "ordered-resize.md").read_text())
        assert program.count("while True:") == 1
        program = program.replace("while True:", "while not any(states.counts.values()):").replace(
            '"events"', repr(topic)
        )
        file = tmp_path / "counters.py"
        file.write_text(program.replace("127.0.0.1:9092", cluster.bootstrap_servers))
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        committed = admin.list_group_offsets("counters")
    assert committed[TopicPartition(topic, written[0].partition)].offset == 3


def on_this_cluster(program: str, cluster: Cluster, topic: str, group: str) -> str:
    """A program of from-other-clients.md with a topic and a group of its own."""
    names = {"127.0.0.1:9092": cluster.bootstrap_servers, '"events"': repr(topic), '"readers"': repr(group)}
    for name, here in names.items():
        program = program.replace(name, here)
    return program


def test_the_program_for_each_task_runs(cluster: Cluster, tmp_path: Path, fresh_name: Callable[[str], str]) -> None:
    topic, group = fresh_name("events"), fresh_name("readers")
    for block in BLOCK.findall((ROOT / "docs" / "from-other-clients.md").read_text()):
        if name := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / name[1]).write_text(on_this_cluster(block, cluster, topic, group))

    def output_of(name: str) -> list[str]:
        done = subprocess.run([sys.executable, tmp_path / name], capture_output=True, text=True, timeout=DEADLINE_S)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    assert output_of("create_topic.py") == ["created", "3 partitions"]
    assert output_of("create_topic.py") == ["exists already", "3 partitions"]
    assert output_of("read_to_end.py") == []
    written = [line.split() for line in output_of("produce.py")]
    assert [line[:2] for line in written] == [["written:", topic]] * 10
    read = sorted(output_of("read_to_end.py"))
    assert [line.split()[:2] for line in read] == sorted(line[2:] for line in written)
    assert sorted(line.split(maxsplit=4)[4] for line in read) == [f"b'value {number}'" for number in range(10)]
    with subprocess.Popen([sys.executable, tmp_path / "consume.py"], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert sorted(running.stdout.readline().rstrip() for _ in range(10)) == read
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=DEADLINE_S)
        finally:
            running.kill()
    assert (output, running.returncode) == ("stopped\n", 0)


def test_the_loop_that_ends_with_ctrl_c_commits_what_it_stored(
    cluster: Cluster, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    topic, group = fresh_name("events"), fresh_name("readers")
    page = (ROOT / "docs" / "from-other-clients.md").read_text()
    (program,) = [block for block in BLOCK.findall(page) if "store_offsets" in block]
    file = tmp_path / "reader.py"
    file.write_text(on_this_cluster(program, cluster, topic, group))
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send_many(topic, [(None, b"%d" % number) for number in range(3)])
        with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            try:
                assert [running.stdout.readline() for _ in range(3)] == ["b'0'\n", "b'1'\n", "b'2'\n"]
                running.send_signal(signal.SIGINT)
                output, _ = running.communicate(timeout=DEADLINE_S)
            finally:
                running.kill()
        assert (output, running.returncode) == ("the end of the block commits and leaves the group\n", 0)
        committed = admin.list_group_offsets(group)[TopicPartition(topic, 0)].offset
    assert committed in (2, 3), "the signal may come before the last offset is stored"


def test_metrics_of_clients_are_registered_as_metrics_md_shows(
    cluster: Cluster, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = BLOCK.findall((ROOT / "docs" / "metrics.md").read_text())
    registry, topic = CollectorRegistry(), fresh_name("measured")
    monkeypatch.setattr("prometheus_client.REGISTRY", registry)
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers, client_id=topic) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        producer.send_and_wait(topic, value=b"v")
        exec(program, {"producer": producer, "consumer": consumer})
        sent = "kafka_producer_producer_metrics_record_send_total"
        assert registry.get_sample_value(sent, {"client_id": topic}) == 1


def test_the_blocking_classes_are_started_and_stopped_and_give_batches(
    cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("blocking")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
    unused = Producer(bootstrap_servers=cluster.bootstrap_servers)
    unused.stop()
    with pytest.raises(ClientClosedError):
        unused.start()
    producer = Producer(bootstrap_servers=cluster.bootstrap_servers).start()
    for partition in (0, 1):
        producer.send_many(topic, [(None, b"v")] * 3, partition=partition)
    producer.stop()
    producer.stop()
    consumer = Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest").start()
    consumer.subscribe([topic])
    found: dict[TopicPartition, int] = {}
    for records in consumer.batches(max_records=2):
        found[records.partition] = found.get(records.partition, 0) + len(records)
        if sum(found.values()) == 6:
            break
    assert found == {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 3}
    consumer.stop()
    with pytest.raises(ClientClosedError):
        next(consumer.batches())


@pytest.mark.parametrize("loop", ["anyio", "asyncio", "trio"])
def test_clients_are_fixtures_of_each_pytest_plugin(cluster: Cluster, loop: str) -> None:
    environment = {**os.environ, "ANABRANCH_BOOTSTRAP_SERVER": cluster.bootstrap_servers}
    command = [sys.executable, "-m", "pytest", "-W", "error", f"examples/test_on_{loop}.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("2 passed" if loop == "anyio" else "1 passed", done.stdout)


def test_a_producer_starts_and_stops_with_a_web_service(
    cluster: Cluster, tmp_path: Path, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_BOOTSTRAP_SERVER", cluster.bootstrap_servers)
    app = runpy.run_path(str(renamed(tmp_path, "web_service.py", clicks=fresh_name("clicks"))))["app"]
    with TestClient(app) as client:
        offsets = [client.post("/clicks/ada").json()["offset"] for _ in range(2)]
    assert offsets == [0, 1]
