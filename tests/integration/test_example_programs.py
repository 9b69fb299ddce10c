"""The programs in ``examples/`` run as a user runs them, on a cluster, with topics and groups of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anabranch import NewTopic
from anabranch.sync import Admin, Consumer, Producer
from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import wait_for
from tests.support.seen.examples import EXAMPLES, renamed

pytestmark = pytest.mark.integration

DEADLINE_S = 120.0
Name = Callable[[str], str]


def create(cluster: Cluster, name: str, partitions: int = 4) -> str:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions, 1)])
    return name


@contextmanager
def started(cluster: Cluster, program: Path, *arguments: str) -> Iterator[Path]:
    """The program as a process; yields the file of its output. Ctrl-C ends it, and it has to end without an error."""
    output = program.with_suffix(f".{len(list(program.parent.iterdir()))}.out")
    environment = {**os.environ, "ANABRANCH_BOOTSTRAP_SERVER": cluster.bootstrap_servers, "PYTHONUNBUFFERED": "1"}
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, program, *arguments], env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield output
        assert process.poll() is None, output.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


def run(cluster: Cluster, program: Path, *arguments: str) -> str:
    environment = {**os.environ, "ANABRANCH_BOOTSTRAP_SERVER": cluster.bootstrap_servers}
    done = subprocess.run(
        [sys.executable, program, *arguments], env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(cluster: Cluster, topic: str, count: int) -> list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]]:
    found = []
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            found.append((record.key, record.value, dict(record.headers)))
            if len(found) == count:
                return found
    return found


def test_a_web_service_writes_each_request_and_refuses_a_record_that_is_too_large(
    cluster: Cluster, tmp_path: Path, fresh_name: Name
) -> None:
    pytest.importorskip("fastapi", reason="the example is a FastAPI application")
    topic = create(cluster, fresh_name("clicks"))
    with started(cluster, renamed(tmp_path, "web_service.py", clicks=topic), "--port", "0") as output:

        def url() -> str | None:
            found = re.search(r"http://127\.0\.0\.1:\d+", output.read_text())
            return found[0] if found else None

        wait_for(url, DEADLINE_S, "the service listens")
        for n in range(5):
            request = urllib.request.Request(f"{url()}/clicks/user-7", b"%d" % n, method="POST")
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                assert answer.status == 201 and json.load(answer)["offset"] == n
        large = urllib.request.Request(f"{url()}/clicks/user-7", b"x" * 2_000_000, method="POST")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(large, timeout=DEADLINE_S)
    assert [record[:2] for record in read(cluster, topic, 5)] == [(b"user-7", b"%d" % n) for n in range(5)]


def test_a_worker_tries_again_and_writes_what_fails_to_the_dead_letters(
    cluster: Cluster, tmp_path: Path, fresh_name: Name
) -> None:
    topic, dead, group = create(cluster, fresh_name("orders"), 1), fresh_name("dead"), fresh_name("group")
    create(cluster, dead, 1)
    values = [b'{"number": 1, "price": 5}', b'{"number": 2}', b"no JSON", b'{"number": 3, "price": 7}']
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [(b"k", value) for value in values])
    program = renamed(tmp_path, "retry_worker.py", orders=topic, orders_dead_letters=dead, order_workers=group)
    with started(cluster, program) as output:
        wait_for(lambda: "processed order 3 at 7" in output.read_text(), DEADLINE_S, "the last order")
    with started(cluster, program) as again:
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send_and_wait(topic, b'{"number": 4, "price": 9}', b"k")
        wait_for(lambda: "processed order 4 at 9" in again.read_text(), DEADLINE_S, "the worker continues")
    assert "order 3" not in again.read_text(), "it had committed"
    letters = read(cluster, dead, 2)
    assert [value for _, value, _ in letters] == [b'{"number": 2}', b"no JSON"]
    assert [headers["failed-at"] for _, _, headers in letters] == [f"{topic}-0@{n}".encode() for n in (1, 2)]
    assert letters[0][2]["error"] == b"KeyError('price')"


def test_state_per_key_is_exact_across_resizes_and_a_member_that_leaves(
    cluster: Cluster, tmp_path: Path, fresh_name: Name
) -> None:
    topic, rounds, keys = create(cluster, fresh_name("events")), 4, [b"key-%d" % n for n in range(40)]
    group = fresh_name("group")
    program = renamed(tmp_path, "state_per_key.py", events=topic, counters=group)
    database = tmp_path / "counts.db"

    def counts() -> dict[bytes, int]:
        with sqlite3.connect(database, timeout=DEADLINE_S) as connection:
            return dict(connection.execute("SELECT key, count FROM counts").fetchall())

    def write(producer: Producer, round_: int) -> None:
        producer.send_many(topic, [(key, b"%d" % n) for n in range(5) for key in keys])
        wait_for(lambda: counts() == dict.fromkeys(keys, 5 * round_), DEADLINE_S, f"exact counts in round {round_}")

    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
        started(cluster, program, str(database)) as first,
    ):
        wait_for(lambda: "counting" in first.read_text(), DEADLINE_S, "the tables")
        write(producer, 1)
        with started(cluster, program, str(database)):
            wait_for(lambda: len(admin.describe_groups([group])[group].members) == 2, DEADLINE_S, "two members")
            admin.create_partitions({topic: 7})
            write(producer, 2)
            admin.create_partitions({topic: 5})
            write(producer, 3)
        write(producer, rounds)


def test_a_batch_job_reads_to_the_end_of_a_resized_topic(cluster: Cluster, tmp_path: Path, fresh_name: Name) -> None:
    topic = create(cluster, fresh_name("values"))
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        assert run(cluster, EXAMPLES / "read_to_end.py", topic) == "0 records, 0 keys\n"
        producer.send_many(topic, [(b"key-%d" % (n % 9), b"%d" % n) for n in range(90)])
        admin.create_partitions({topic: 6})
        producer.send_many(topic, [(b"key-%d" % (n % 9), b"%d" % n) for n in range(90, 180)])
    newest = "".join(f"key-{n} {171 + n}\n" for n in range(9))
    assert run(cluster, EXAMPLES / "read_to_end.py", topic) == newest + "180 records, 9 keys\n"


def test_workers_in_processes_share_the_jobs(cluster: Cluster, tmp_path: Path, fresh_name: Name) -> None:
    names = {"jobs": create(cluster, fresh_name("jobs")), "job_workers": fresh_name("group")}
    program = renamed(tmp_path, "worker_processes.py", **names)
    expected = f"60 jobs, the sum is {sum(n * n for n in range(60))}\n"
    assert run(cluster, program, "--jobs", "60") == expected
