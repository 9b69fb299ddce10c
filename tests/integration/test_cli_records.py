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

from anabranch import NewTopic, TopicPartition
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
def test_produce_writes_each_line_at_once_and_prints_the_count_at_a_signal(
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


def test_produce_creates_a_missing_topic_only_on_request(cluster: Cluster, fresh_name: Fresh) -> None:
    name = fresh_name("cli-records")
    refused = run(cluster, "produce", name, given=b"1")
    assert (refused.returncode, refused.stderr.split(b";")[0]) == (
        1,
        f"anabranch: topic {name} does not exist".encode(),
    )
    assert run(cluster, "consume", name, "--timeout-ms", "0").returncode == 1, "the topic was created"
    done = run(cluster, "produce", name, "--create", given=b"1")
    assert (done.returncode, values(cluster, name)) == (0, ["1"]), done.stderr


def test_one_end_of_input_at_a_terminal_ends_produce(cluster: Cluster, topic: str) -> None:
    controlling, terminal = os.openpty()
    line = [*command("produce", topic), "-b", cluster.bootstrap_servers]
    with subprocess.Popen(line, stdin=terminal) as process:
        os.write(controlling, b"typed\n\x04")
        assert process.wait(DEADLINE_S) == 0
    os.close(terminal)
    os.close(controlling)
    assert values(cluster, topic) == ["typed"]


def test_a_record_that_the_broker_refuses_does_not_stop_the_others(cluster: Cluster, topic: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.incremental_alter_configs(topics={topic: {"message.timestamp.difference.max.ms": "1000"}})
    lines = [json.dumps({"value": str(n), "partition": 0} | ({"timestamp": 1} if n == 3 else {})) for n in range(5)]
    given = "\n".join(lines).encode()
    done = run(cluster, "produce", topic, "--format", "json", "--set", "linger_ms=200", given=given)
    assert done.returncode == 1
    assert b"line 4 of standard input: INVALID_TIMESTAMP" in done.stderr and b"4 records were written" in done.stderr
    assert values(cluster, topic) == ["0", "1", "2", "4"]


def fill(cluster: Cluster, topic: str, count: int, *, partition: int = 0) -> None:
    lines = [json.dumps({"key": f"k{n}", "value": f"v{n}", "partition": partition}) for n in range(count)]
    done = run(cluster, "produce", topic, "--format", "json", given="\n".join(lines).encode())
    assert done.returncode == 0, done.stderr


def test_without_a_group_records_of_partitions_that_are_added_later_are_printed(cluster: Cluster, topic: str) -> None:
    with running(cluster, "consume", topic, "--from-beginning", "--max-messages", "200") as process:
        assert process.stdout is not None
        keys = [f"{n}:{n}" for n in range(100)]
        done = run(cluster, "produce", topic, "--key-separator", ":", given="\n".join(keys).encode())
        assert done.returncode == 0, done.stderr
        first = [process.stdout.readline() for _ in range(50)]
        done = run(cluster, "topics", "alter", topic, "--partitions", "6", "--wait")
        assert done.returncode == 0, done.stderr
        done = run(cluster, "produce", topic, "--key-separator", ":", given="\n".join(keys).encode())
        assert done.returncode == 0, done.stderr
        rest = process.stdout.read().splitlines(keepends=True)
        assert process.wait(DEADLINE_S) == 0
    assert sorted(first + rest) == sorted([b"%d\n" % n for n in range(100)] * 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_consume_commits_the_printed_records_and_leaves_the_group_at_a_signal(
    cluster: Cluster, topic: str, fresh_name: Fresh, number: signal.Signals
) -> None:
    group = fresh_name("cli-group")
    fill(cluster, topic, 5)
    with running(cluster, "consume", topic, "--group", group, "--from-beginning") as process:
        assert process.stdout is not None and process.stderr is not None
        assert [process.stdout.readline() for _ in range(5)] == [b"v%d\n" % n for n in range(5)]
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 128 + number
        assert process.stderr.read() == b""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert admin.describe_groups([group])[group].state == "Empty"
        assert admin.list_group_offsets(group)[TopicPartition(topic, 0)].offset == 5


@pytest.mark.parametrize("in_group", [False, True])
def test_a_topic_that_does_not_exist_is_an_error_and_is_not_created(
    cluster: Cluster, topic: str, in_group: bool
) -> None:
    misspelt = f"{topic}x"
    group = ("--group", f"{topic}-group") if in_group else ()
    done = run(cluster, "consume", topic, misspelt, *group)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        f"anabranch: topic {misspelt} does not exist; anabranch topics list shows those that do\n"
    )
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert misspelt not in {listing.name for listing in admin.list_topics()}


def test_a_partition_or_an_offset_that_does_not_exist_is_an_error(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 3)
    done = run(cluster, "consume", topic, "--partition", "7")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"anabranch: topic {topic} has partitions 0 to 1, not 7\n"
    done = run(cluster, "consume", topic, "--partition", "0", "--offset", "4")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"anabranch: --offset 4: {topic}-0 has offsets 0 to 3\n"


def test_options_set_the_start_and_the_output_format_of_consume(cluster: Cluster, topic: str) -> None:
    stamped = [{"value": f"v{n}", "key": "k", "partition": 0, "timestamp": 1000 * n} for n in range(1, 6)]
    other = [{"value": "a\tb", "partition": 1, "timestamp": 1000}]
    given = "\n".join(map(json.dumps, stamped + other)).encode()
    assert run(cluster, "produce", topic, "--format", "json", given=given).returncode == 0
    until_quiet = ("--timeout-ms", "1000")
    done = run(cluster, "consume", topic, "--tail", "2", "--format", "%p %o %k=%s\\n", *until_quiet)
    assert sorted(done.stdout.splitlines()) == [b"0 3 k=v4", b"0 4 k=v5", b"1 0 =a\tb"]
    done = run(cluster, "consume", topic, "--from-timestamp", "4000", *until_quiet)
    assert done.stdout == b"v4\nv5\n"
    done = run(cluster, "consume", topic, "--from-timestamp", "1970-01-01T00:00:05+00:00", *until_quiet)
    assert done.stdout == b"v5\n"
    done = run(cluster, "consume", topic, "--partition", "1", "--offset", "0", "--format", "tsv", *until_quiet)
    assert done.stdout.decode() == f"{topic}\t1\t0\t1000\t\\N\ta\\tb\n"


def test_a_closed_pipe_ends_consume_and_bytes_that_are_no_text_are_printed(cluster: Cluster, topic: str) -> None:
    given = b"\xff\xfe\n" + b"\n".join(b"%d" % n for n in range(20_000))
    assert run(cluster, "produce", topic, given=given).returncode == 0
    with running(cluster, "consume", topic, "--from-beginning") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 141
        assert process.stderr.read() == b""
    done = run(cluster, "consume", topic, "--from-beginning", "--max-messages", "20001")
    assert b"\xff\xfe" in done.stdout.splitlines()


@pytest.mark.parametrize("arguments", [("topics", "list"), ("topics", "describe"), ("topics", "create", "--help")])
def test_a_command_whose_output_is_closed_ends_without_a_message(
    cluster: Cluster, topic: str, arguments: tuple[str, ...]
) -> None:
    with running(cluster, *arguments) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 141
        assert process.stderr.read() == b""
