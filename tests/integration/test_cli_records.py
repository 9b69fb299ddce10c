"""``produce`` and ``consume`` as processes, with signals and pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from anabranch import NewTopic
from anabranch.sync import Admin
from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import wait_for

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
Fresh = Callable[[str], str]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "anabranch.cli.main", *arguments]


def run(cluster: Cluster, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    line = [*command(*arguments), "-b", cluster.bootstrap_servers]
    return subprocess.run(line, input=given, capture_output=True, timeout=DEADLINE_S)


@contextmanager
def running(cluster: Cluster, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    line = [*command(*arguments), "-b", cluster.bootstrap_servers]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def topic(cluster: Cluster, fresh_name: Fresh) -> str:
    name = fresh_name("cli-records")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])
    return name


def values(cluster: Cluster, topic: str) -> list[str]:
    done = run(cluster, "consume", topic, "--from-beginning", "--timeout-ms", "1000", "--format", "json")
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(line)["value"] for line in done.stdout.splitlines())


def has(cluster: Cluster, topic: str, expected: list[str]) -> bool:
    return values(cluster, topic) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_each_line_is_written_when_it_comes_and_a_signal_says_how_many(
    cluster: Cluster, topic: str, number: signal.Signals
) -> None:
    with running(cluster, "produce", topic) as process:
        assert process.stdin is not None and process.stderr is not None
        for expected in (["1"], ["1", "2"]):
            process.stdin.write(expected[-1].encode() + b"\n")
            process.stdin.flush()
            wait_for(partial(has, cluster, topic, expected), DEADLINE_S, f"{expected} are written")
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 128 + number
        assert process.stderr.read() == b"interrupted: 2 records were written\n"


def test_one_end_of_input_at_a_terminal_ends_it(cluster: Cluster, topic: str) -> None:
    controlling, terminal = os.openpty()
    line = [*command("produce", topic), "-b", cluster.bootstrap_servers]
    with subprocess.Popen(line, stdin=terminal) as process:
        os.write(controlling, b"typed\n\x04")
        assert process.wait(DEADLINE_S) == 0
    os.close(terminal)
    os.close(controlling)
    assert values(cluster, topic) == ["typed"]


def test_a_record_the_broker_refuses_costs_no_other(cluster: Cluster, topic: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.incremental_alter_configs(topics={topic: {"message.timestamp.difference.max.ms": "1000"}})
    lines = [json.dumps({"value": str(n), "partition": 0} | ({"timestamp": 1} if n == 3 else {})) for n in range(5)]
    given = "\n".join(lines).encode()
    done = run(cluster, "produce", topic, "--format", "json", "--set", "linger_ms=200", given=given)
    assert done.returncode == 1
    assert b"line 4 of standard input: INVALID_TIMESTAMP" in done.stderr and b"4 records were written" in done.stderr
    assert values(cluster, topic) == ["0", "1", "2", "4"]
