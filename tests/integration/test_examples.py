"""The examples of the documentation run unchanged, except for the address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from anabranch import ClientClosedError, NewTopic, TopicPartition
from anabranch.sync import Admin, Consumer, Producer
from anabranch.testing.cluster import Cluster

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


def run_lines(lines: list[str], directory: Path, bootstrap: str) -> str:
    """Run the lines of a page in a shell that ends at the first failure, and return what they print."""
    (directory / ".venv").mkdir()
    (directory / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    path = os.pathsep.join([str(directory / ".venv" / "bin"), os.environ["PATH"]])
    environment = {**os.environ, "ANABRANCH_BOOTSTRAP_SERVER": bootstrap, "PATH": path}
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=2 * DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_of_the_readme_run(cluster: Cluster, tmp_path: Path, fresh_name: Callable[[str], str]) -> None:
    """Each line of "A cluster of your own" except ``make up`` runs, with a topic for this test."""
    section = (ROOT / "README.md").read_text().split("\n## A cluster of your own\n")[1].split("\n## ")[0]
    first, *lines = re.findall(r"```\n(.*?)```", section, re.DOTALL)[0].splitlines()
    assert first.startswith("make up ") and len(lines) > 4
    topic = fresh_name("events")
    printed = run_lines([line.replace(" events", f" {topic}") for line in lines], tmp_path, cluster.bootstrap_servers)
    assert set(map(str, range(1, 11))) <= set(printed.split()), "the records that were written"


def test_the_commands_about_topics_in_operations_md_run(
    cluster: Cluster, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "docs" / "operations.md").read_text(), re.DOTALL | re.MULTILINE)
    (lines,) = [block.splitlines() for block in blocks if block.startswith("anabranch topics create ")]
    assert len(lines) > 8 and lines[-1] == "anabranch topics delete events"
    topic = fresh_name("events")
    run_lines([line.replace(" events", f" {topic}") for line in lines], tmp_path, cluster.bootstrap_servers)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert topic not in {listing.name for listing in admin.list_topics()}


def test_metrics_of_clients_are_registered_as_operations_md_shows(
    cluster: Cluster, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = BLOCK.findall((ROOT / "docs" / "operations.md").read_text())
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
    producer = Producer(bootstrap_servers=cluster.bootstrap_servers)
    producer.stop()  # it has nothing to stop yet
    producer.start()
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
