"""Commands about topics and groups, against a cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import pytest

from anabranch import NewTopic, TopicPartition
from anabranch.cli.main import main
from anabranch.sync import Admin, Consumer, Producer
from anabranch.testing.cluster import Cluster
from tests.support.seen.terminal import run_on_terminal

pytestmark = pytest.mark.integration

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "-b", cluster.bootstrap_servers])
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run


@pytest.fixture
def topic(cluster: Cluster, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("cli-admin")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])
    return name


def commit(cluster: Cluster, group: str, topic: str) -> None:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.getmany(timeout_ms=100)
        consumer.commit()


def commit_at(cluster: Cluster, group: str, topic: str, offset: int) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): offset, TopicPartition(topic, 1): 0})


def test_a_name_that_does_not_exist_does_not_stop_the_command_for_the_others(
    cluster: Cluster, topic: str, command: Command
) -> None:
    commit(cluster, topic, topic)
    for what in ("topics", "groups"):
        status, out, err = command(what, "describe", f"{topic}x", topic)
        assert status == 1 and topic in out
        kind = what.removesuffix("s")
        assert err == f"anabranch: {kind} {topic}x does not exist; anabranch {what} list shows those that do\n"
    for what in ("groups", "topics"):
        status, out, err = command(what, "delete", f"{topic}x", topic)
        assert (status, out) == (1, f"deleted {topic}\n")
        assert f"{topic}x: " in err


def test_a_partition_that_does_not_exist_is_an_error(topic: str, command: Command) -> None:
    status, _, err = command("groups", "reset-offsets", "g", "--topic", topic, "--partition", "9", "--to-latest")
    assert (status, err) == (1, f"anabranch: topic {topic} has partitions 0 to 1, not 9\n")


def test_the_oldest_records_are_deleted_and_disks_and_lags_are_shown(
    cluster: Cluster, topic: str, command: Command
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=1000 * number).result()
    commit_at(cluster, topic, topic, 4)
    status, out, _ = command("groups", "describe", topic, "--json")
    (row, _) = json.loads(out)[0]["partitions"]
    assert (status, row["lag"]) == (0, 6) and row["lag_seconds"] > 1_000_000
    status, out, _ = command("delete-records", topic, "--before-timestamp", "3000", "--partition", "0", "--dry-run")
    assert status == 0 and out.endswith(f"would delete 3 offsets of {topic}\n")
    status, out, _ = command("delete-records", topic, "--partition", "0", "--before-offset", "2", "--tsv")
    assert (status, out.splitlines()[1]) == (0, "0\t0\t2\t2")
    status, _, err = command("delete-records", topic, "--partition", "0", "--before-offset", "11")
    assert (status, err) == (1, f"anabranch: --before-offset 11: {topic}-0 ends at offset 10\n")
    status, out, _ = command("delete-records", topic, "--all")
    assert status == 0 and out.endswith(f"deleted 8 offsets of {topic}\n")
    status, out, _ = command("log-dirs", topic, "--json")
    rows = json.loads(out)
    assert status == 0 and sum(row["replicas"] for row in rows) == 2 and all(row["error"] is None for row in rows)
    status, out, _ = command("brokers", "--json")
    assert sum(row["replicas"] for row in json.loads(out)) >= 2


def test_top_measures_a_cluster(cluster: Cluster, topic: str, command: Command) -> None:
    commit_at(cluster, topic, topic, 0)
    status, out, _ = command("top", "--json", "--max-rounds", "1", "--interval-ms", "100")
    found = json.loads(out)
    assert status == 0 and found.keys() == {"topics", "groups"}
    assert [row["partitions"] for row in found["topics"] if row["topic"] == topic] == [2]
    assert [row["lag"] for row in found["groups"] if row["group"] == topic] == [0]


def test_top_prints_its_tables_where_a_terminal_cannot_be_drawn_on(cluster: Cluster, topic: str) -> None:
    line = [sys.executable, "-m", "anabranch.cli.main", "top", "--max-rounds", "1", "-b", cluster.bootstrap_servers]
    status, drawn, _ = run_on_terminal(line, os.environ, term="dumb")
    assert status == 0 and "records/s" in drawn and "\033" not in drawn
