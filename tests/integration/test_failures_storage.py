"""Faults of a broker's storage and settings: full disk, damaged files, clean stop, changed and refused configs."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch.client.errors import KafkaError as OurError
from anabranch.protocol.errors import ErrorCode
from anabranch.sync import Admin
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.support.broker.failures import DEADLINE_S, numbered, read, wait_until_led, write
from tests.support.controller.topics import create_topic

pytestmark = pytest.mark.integration

STARTUP_DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def single() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=1, overrides={"log.retention.check.interval.ms": "500"}) as running:
        yield running


def log_of(cluster: ProcessCluster, topic: str) -> Path:
    return cluster.log_dir(1) / f"{topic}-0"


def last(directory: Path, suffix: str) -> Path:
    return sorted(directory.glob(f"*{suffix}"))[-1]


def test_a_full_disk_refuses_writes_and_serves_reads(single: ProcessCluster, fresh_name: Callable[[str], str]) -> None:
    create_topic(single.bootstrap, topic := fresh_name("full"), 1)
    assert write(single.bootstrap, topic, numbered(0, 100)) == []
    pid = single.broker_pids()[1]
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (last(log_of(single, topic), ".log").stat().st_size + 10, hard))
    try:
        refused = write(single.bootstrap, topic, [b"x" * 1000], retry=False)
        assert [error.code() for error in refused] == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert read(single.bootstrap, topic, 100) == numbered(0, 100)
        assert single.broker_pids()[1] == pid
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
    assert write(single.bootstrap, topic, numbered(100, 50)) == []
    assert read(single.bootstrap, topic, 150) == numbered(0, 150)
    assert single.broker_pids()[1] == pid


def append_garbage(directory: Path) -> None:
    with last(directory, ".log").open("ab") as log:
        log.write(os.urandom(5000))


def cut_the_last_batch(directory: Path) -> None:
    log = last(directory, ".log")
    with log.open("ab") as file:
        file.write(log.read_bytes()[:70])


def delete_indexes(directory: Path) -> None:
    for path in directory.glob("*.index"):
        path.unlink()


def zero_time_indexes(directory: Path) -> None:
    for path in directory.glob("*.timeindex"):
        path.write_bytes(bytes(path.stat().st_size))


def corrupt_indexes(directory: Path) -> None:
    for path in [*directory.glob("*.index"), *directory.glob("*.timeindex")]:
        path.write_bytes(os.urandom(121))


def corrupt_snapshots(directory: Path) -> None:
    for path in directory.glob("*.snapshot"):
        path.write_bytes(os.urandom(40))


DAMAGES = [append_garbage, cut_the_last_batch, delete_indexes, zero_time_indexes, corrupt_indexes, corrupt_snapshots]


def test_damaged_files_are_recovered_after_kill_9(single: ProcessCluster, fresh_name: Callable[[str], str]) -> None:
    """Each kind of damage has its own topic. The files are damaged between the kill of the broker and its restart."""
    topics = [fresh_name(damage.__name__.replace("_", "-")) for damage in DAMAGES]
    for topic in topics:
        create_topic(single.bootstrap, topic, 1, {"segment.bytes": "16384"})
        for start in range(0, 500, 50):
            assert write(single.bootstrap, topic, numbered(start, 50)) == []
    directories = [log_of(single, topic) for topic in topics]
    assert all(list(directory.glob("*.snapshot")) for directory in directories)
    old = single.broker_pids()[1]
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: "SIGKILL" in single.output.read_text(), DEADLINE_S, "the supervisor reports the kill")
    for damage, directory in zip(DAMAGES, directories, strict=True):
        damage(directory)
    logged = len(single.broker_log(1))
    wait_for(lambda: single.broker_pids()[1] != old, DEADLINE_S, "it is restarted")
    for topic in topics:
        wait_until_led(single, topic)
        assert write(single.bootstrap, topic, numbered(500, 10)) == [], topic
        assert read(single.bootstrap, topic, 510) == numbered(0, 510), topic
    wait_for(lambda: "recovered=True" in single.broker_log(1)[logged:], DEADLINE_S, "the recovery is logged")


def test_a_clean_stop_leaves_the_marker_and_needs_no_recovery(
    single: ProcessCluster, fresh_name: Callable[[str], str]
) -> None:
    create_topic(single.bootstrap, topic := fresh_name("clean"), 1)
    assert write(single.bootstrap, topic, numbered(0, 100)) == []
    marker = single.log_dir(1) / ".kafka_cleanshutdown"
    old, logged = single.broker_pids()[1], len(single.broker_log(1))
    assert not marker.exists()
    os.kill(old, signal.SIGTERM)
    wait_for(marker.exists, DEADLINE_S, "the marker is there")
    wait_for(lambda: single.broker_pids()[1] != old, DEADLINE_S, "it is restarted")
    wait_until_led(single, topic)
    assert f"broker-1 (pid {old}) exited with status 0" in single.output.read_text()
    assert read(single.bootstrap, topic, 100) == numbered(0, 100)
    wait_for(lambda: "recovered=False" in single.broker_log(1)[logged:], DEADLINE_S, "the start is logged")
    assert "recovered=True" not in single.broker_log(1)[logged:]


def test_topic_configs_take_effect_at_once(single: ProcessCluster, fresh_name: Callable[[str], str]) -> None:
    create_topic(single.bootstrap, topic := fresh_name("configs"), 1)
    wait_until_led(single, topic)
    with Admin(bootstrap_servers=single.bootstrap) as admin:
        admin.incremental_alter_configs(topics={topic: {"max.message.bytes": "500", "segment.bytes": "16384"}})
        wait_for(
            lambda: write(single.bootstrap, topic, [b"x" * 2000], retry=False), DEADLINE_S, "a large record is refused"
        )
        admin.incremental_alter_configs(topics={topic: {"max.message.bytes": "1000000"}})
        for start in range(0, 500, 50):
            assert write(single.bootstrap, topic, numbered(start, 50)) == []
        assert len(list(log_of(single, topic).glob("*.log"))) > 2
        admin.incremental_alter_configs(topics={topic: {"retention.ms": "1"}})
        wait_for(
            lambda: len(list(log_of(single, topic).glob("*.log"))) == 1, DEADLINE_S, "retention deletes old segments"
        )
        with pytest.raises(OurError) as refused:
            admin.incremental_alter_configs(topics={topic: {"no.such.key": "1"}})
    assert refused.value.code == ErrorCode.INVALID_CONFIG


def start_broker(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "server.properties"
    path.write_text(text)
    command = [sys.executable, "-m", "anabranch.broker", "--config", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=STARTUP_DEADLINE_S)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("num.partition=1", "did you mean num.partitions?"),
        ("num.partitions=none", "num.partitions"),
        ("listeners=PLAINTEXT//localhost", "listeners"),
        ("listeners=NOSUCH://127.0.0.1:0", "NOSUCH"),
        ("what is this\\u12", "server.properties"),
    ],
)
def test_bad_properties_end_the_broker_with_one_line(tmp_path: Path, changed: str, expected: str) -> None:
    text = f"broker.id=7\nzookeeper.connect=127.0.0.1:1\nlog.dirs={tmp_path}/logs\n{changed}\n"
    done = start_broker(tmp_path, text)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert expected in done.stderr and not (tmp_path / "logs").exists()


def refusal(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The output of a broker that does not start, without its log lines."""
    return [line for line in done.stderr.splitlines() if not line.startswith("timestamp=")]


def test_a_locked_log_dir_and_a_foreign_one_are_refused(single: ProcessCluster, tmp_path: Path) -> None:
    common = f"zookeeper.connect={single.state['zookeeper']}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
    done = start_broker(tmp_path, f"{common}broker.id=7\nlog.dirs={single.log_dir(1)}\n")
    assert (done.returncode, len(refusal(done))) == (1, 1), done.stderr
    assert "in use by another process" in done.stderr
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "meta.properties").write_text("version=0\nbroker.id=8\ncluster.id=elsewhere\n")
    done = start_broker(tmp_path, f"{common}broker.id=7\nlog.dirs={tmp_path}/logs\n")
    assert (done.returncode, len(refusal(done))) == (1, 1), done.stderr
    assert "meta.properties" in done.stderr
