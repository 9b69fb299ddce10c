"""The output of commands with ``--json`` is valid by ``docs/cli.schema.json``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from anabranch import NewTopic, TopicPartition
from anabranch.cli.main import main
from anabranch.sync import Admin, Producer
from anabranch.testing.cluster import Cluster
from anabranch.zk_schemas.features import GROUP_COORDINATOR
from tests.support.seen.cli_schema import valid_json

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0


@pytest.fixture
def valid(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """A function that runs a command with ``--json``, validates its output, and returns it."""

    def run(command: str, *arguments: str, status: int = 0) -> Any:
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), *arguments, "--json", "-b", cluster.bootstrap_servers])
        output = capsys.readouterr()
        assert ended.value.code == status, output.err
        return valid_json(command, output.out)

    return run


def fill(cluster: Cluster, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [(b"%d" % n, b"v") for n in range(100)])


def test_the_json_of_every_command_is_valid(
    cluster: Cluster, fresh_name: Callable[[str], str], valid: Callable[..., Any]
) -> None:
    name, group = fresh_name("cli-json"), fresh_name("cli-json-group")
    assert valid("topics create", name, "--partitions", "2", "--replication-factor", "1")["created"]
    assert not valid("topics create", name, "--if-not-exists")["created"]
    fill(cluster, name)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.alter_group_offsets(group, {TopicPartition(name, 0): 1, TopicPartition(name, 1): 0})
    assert valid("topics alter", name, "--partitions", "4", "--dry-run")["resize"]["moves"]
    assert valid("topics alter", name, "--partitions", "4", "--wait")["is_resized"]
    fill(cluster, name)
    assert valid("topics alter", name, "--partitions", "2", "--wait")["draining"] == [2, 3]
    assert valid("topics alter", name, "--partitions", "auto", "--dry-run")["autoscale"]
    assert name in {row["name"] for row in valid("topics list")}
    valid("topics list", "--under-replicated")
    (described,) = valid("topics describe", name)
    assert [row["state"] for row in described["partitions"]] == ["in use", "in use", "marked", "marked"]
    assert valid("topics reassign", name) == []
    assert valid("topics reassign", name, "--replicas", "99", status=1)["failed"][f"{name}-0"]["error"]
    assert valid("topics elect-leaders", name, "--partition", "9", status=1)["failed"]
    assert group in {row["group"] for row in valid("groups list")}
    assert valid("groups describe", group)[0]["waits"]
    assert valid("groups reset-offsets", group, "--topic", name, "--to-latest", "--dry-run")
    assert valid("configs alter", "topic", name, "--set", "retention.ms=1000000")["configs"]
    assert valid("configs describe", "topic", name)[0]["name"] == "retention.ms"
    valid("features describe")
    assert valid("features upgrade", "--all", "--dry-run")["changes"] == []
    lower = ("--feature", f"{GROUP_COORDINATOR}=1", "--force", "--yes", "--dry-run")
    blocked = valid("features downgrade", *lower, status=1)
    assert (blocked["changes"][0]["operation"], list(blocked["failed"])) == ("downgrade", [GROUP_COORDINATOR])
    refused = valid("features upgrade", "--feature", "nothing=1", "--dry-run", status=1)
    assert refused["failed"]["nothing"]["error"] == "INVALID_REQUEST"
    brokers, controller = valid("brokers"), valid("cluster")["controller"]
    assert controller not in {row["broker"] for row in brokers}, "controllers are processes of their own"
    assert not any(row["is_controller"] for row in brokers)
    valid("log-dirs", name)
    assert valid("delete-records", name, "--partition", "0", "--before-offset", "1")[0]["records"] == 1
    assert valid("top", "--max-rounds", "1", "--interval-ms", "100")["groups"]
    assert valid("groups delete", group, f"{group}x", status=1)["failed"][f"{group}x"]
    assert valid("topics delete", name, f"{name}x", status=1)["deleted"] == [name]


@pytest.mark.parametrize(("lines", "failed"), [(b"a\nb\n", []), (b'{"value": "a"}\n{"vaule": "b"}\n', [2])])
def test_the_json_of_produce_counts_written_records_and_names_failed_lines(
    cluster: Cluster, fresh_name: Callable[[str], str], lines: bytes, failed: list[int]
) -> None:
    name = fresh_name("cli-json")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    form = "json" if failed else "text"
    command = [sys.executable, "-m", "anabranch.cli.main", "produce", name, "--json", "--format", form]
    done = subprocess.run(
        [*command, "-b", cluster.bootstrap_servers], input=lines, capture_output=True, timeout=DEADLINE_S
    )
    assert done.returncode == (1 if failed else 0), done.stderr
    found = valid_json("produce", done.stdout)
    assert (found["written"], [row["line"] for row in found["failed"]]) == (2 - len(failed), failed)


def test_the_json_of_consume_is_valid(
    cluster: Cluster, fresh_name: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = fresh_name("cli-json")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(name, b"\xff", key=b"k", headers=[("h", b"x")]).result()
        producer.send(name, None).result()
    with pytest.raises(SystemExit):
        main(
            ["consume", name, "--tail", "2", "--max-messages", "2", "--format", "json", "-b", cluster.bootstrap_servers]
        )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        valid_json("consume", line)
