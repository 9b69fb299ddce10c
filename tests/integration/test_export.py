"""Exports of a topic during writes and resizes, by the command and from the directories of real brokers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from anabranch import Admin, NewTopic, Producer
from anabranch.audit.discovery import discover, replica_files
from anabranch.audit.manifest import MANIFEST_NAME, PARTIAL_NAME, Manifest
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.support.seen.terminal import run_on_terminal

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
TOPIC = "events"
SEGMENT_BYTES = 256 * 1024
PAUSE_S = 0.05
EXPORT_AND_STOP_AFTER = """
import sys, anyio
from pathlib import Path
from anabranch import Admin
from anabranch.export.destination import LocalDestination
from anabranch.export.live import export_topic

write, left = LocalDestination.write, int(sys.argv[4])

def stopping(self, path, chunks):
    global left
    left -= path.endswith(".log")
    if left < 0:
        print("stopped", flush=True)
        sys.stdin.read()
    write(self, path, chunks)

LocalDestination.write = stopping

async def main():
    async with Admin(bootstrap_servers=sys.argv[1]) as admin:
        await export_topic(admin, sys.argv[2], Path(sys.argv[3]), all_replicas=True, partial_every=1)

anyio.run(main)
"""


class Load:
    """Writes numbered records of 20 keys until the end of the ``with`` block; at most 1,000 a second."""

    def __init__(self, bootstrap: str, topic: str = TOPIC) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.written = 0
        self._stops = False
        self._thread = threading.Thread(target=lambda: anyio.run(self._run))

    async def _run(self) -> None:
        async with Producer(bootstrap_servers=self.bootstrap) as producer:
            while not self._stops:
                handles = [
                    await producer.send(self.topic, key=b"key-%d" % (n % 20), value=b"%d\t%s" % (n, b"x" * 300))
                    for n in range(self.written, self.written + 50)
                ]
                for handle in handles:
                    await handle
                self.written += len(handles)
                await anyio.sleep(PAUSE_S)  # pause: bounds the records to check on a fast machine

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops = True
        self._thread.join()

    def more(self, records: int) -> None:
        """Wait until ``records`` more records are written."""
        limit = self.written + records
        wait_for(lambda: self.written >= limit, DEADLINE_S, f"{limit} records are written")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=2) as running:
        yield running


def anabranch(cluster: ProcessCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch.cli.main", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"ANABRANCH_BOOTSTRAP_SERVER": cluster.bootstrap},
    )


def export(cluster: ProcessCluster, to: Path | str, *options: str, topic: str = TOPIC) -> dict[str, Any]:
    done = anabranch(cluster, "export", "--topic", topic, "--to", str(to), "--json", *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def files(directory: Path, suffix: str = "") -> dict[str, tuple[int, int]]:
    """The modification times and sizes of the segments' files."""
    paths = [path for path in directory.rglob(f"*{suffix}") if path.name[0].isdigit()]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.is_file()}


def content(root: Path, directory: str, manifest: Manifest) -> dict[int, bytes]:
    """The bytes of each partition's segments, one after the other."""
    return {
        entry.partition: b"".join(
            (root / directory / f"{TOPIC}-{entry.partition}" / segment.name).read_bytes() for segment in entry.segments
        )
        for entry in manifest.partitions
    }


def create(cluster: ProcessCluster, topic: str) -> None:
    async def run() -> None:
        configs = {"segment.bytes": str(SEGMENT_BYTES)}
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=2, configs=configs)])

    anyio.run(run)


@pytest.fixture(scope="module")
def exported(cluster: ProcessCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of all replicas of a topic, made in four runs during writes and resizes."""
    to = tmp_path_factory.mktemp("export") / "out"

    create(cluster, TOPIC)
    with Load(cluster.bootstrap) as load:
        load.more(2000)
        command = [sys.executable, "-c", EXPORT_AND_STOP_AFTER, cluster.bootstrap, TOPIC, str(to), "3"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
            assert killed.stdout is not None and killed.stdout.readline() == "stopped\n"
            killed.kill()
        assert (to / PARTIAL_NAME).exists() and not (to / MANIFEST_NAME).exists()
        before = files(to, ".log")

        first = export(cluster, to, "--replicas", "all")
        assert first["resumed_bytes"] > 0 and first["added_bytes"] > first["resumed_bytes"]
        assert first["replicas"] == 2
        assert before.items() <= files(to).items(), "complete segments are not copied again"

        load.more(1000)
        before = files(to)
        assert anabranch(cluster, "topics", "alter", TOPIC, "--partitions", "3", "--wait").returncode == 0
        load.more(1000)
        second = export(cluster, to, "--replicas", "all")
        assert (second["generation"], second["partitions"], second["resumed_bytes"]) == (2, 3, 0)
        assert second["bytes"] == first["bytes"] + second["added_bytes"]
        assert before.items() <= files(to).items(), "exported segments are not copied again"
    last = export(cluster, to, "--replicas", "all")
    assert (last["generation"], last["missing"], last["unread"]) == (3, {}, [])
    assert export(cluster, to, "--replicas", "all")["added_segments"] == 0
    assert json.loads((to / MANIFEST_NAME).read_text())["generation"] == 3
    return to


def test_several_exports_have_the_same_bytes_as_one(cluster: ProcessCluster, exported: Path, tmp_path: Path) -> None:
    export(cluster, tmp_path / "once")
    (topic,), (once,) = discover(exported), discover(tmp_path / "once")
    whole = content(exported, ".", topic.manifest)
    assert whole == content(tmp_path / "once", ".", once.manifest)
    assert len(topic.manifest.partitions[0].segments) > len(once.manifest.partitions[0].segments)
    for replica in replica_files(topic):
        for partition, data in content(Path(replica.directory), ".", replica.manifest).items():
            assert data == whole[partition]
    assert {replica.broker for replica in replica_files(topic)} == {1, 2}
    assert all(entry.incarnation > 0 for entry in topic.manifest.partitions)
    assert [layout.layout_version for layout in topic.manifest.partitions[0].layouts] == [0, 1]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="the audit needs the extra [audit]")
    from anabranch.audit.run import spark_session

    with spark_session("local[2]", short=True) as session:
        yield session


def test_the_audit_of_an_export_passes(exported: Path, spark: Any) -> None:
    from anabranch.audit.run import audit_with

    report = audit_with(spark, str(exported), discover(exported), "tsv:0", 10)
    assert [str(violation) for check in report.checks for violation in check.violations] == []
    assert report.passed
    assert report.records > 4000


def test_a_stream_reads_every_record_once_over_exports_resizes_and_a_restart(
    cluster: ProcessCluster, spark: Any, tmp_path: Path
) -> None:
    """The stream runs during the second export, is stopped, and continues from its checkpoint."""
    topic, to, found = "followed", tmp_path / "out", {}

    def start(**trigger: Any) -> Any:
        rows = spark.readStream.format("anabranch-segments").option("columns", "partition,offset,value").load(str(to))
        writer = rows.writeStream.foreachBatch(lambda batch, number: found.update({number: batch.collect()}))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start()

    def resize(partitions: int) -> None:
        done = anabranch(cluster, "topics", "alter", topic, "--partitions", str(partitions), "--wait")
        assert done.returncode == 0, done.stderr

    create(cluster, topic)
    with Load(cluster.bootstrap, topic) as load:
        load.more(500)
        first = export(cluster, to, topic=topic)
        query = start(processingTime="100 milliseconds")
        wait_for(lambda: found, DEADLINE_S, "the first export is read")
        resize(3)
        load.more(500)
        second = export(cluster, to, topic=topic)
        wait_for(lambda: len(found) == 2, DEADLINE_S, "the second export is read")
        query.stop()
        resize(2)
        load.more(500)
    assert export(cluster, to, topic=topic)["missing"] == {}
    start(availableNow=True).awaitTermination()
    assert (first["generation"], second["partitions"], sorted(found)) == (1, 3, [0, 1, 2]) and all(found.values())
    read = [row for rows in found.values() for row in rows]
    assert len({(row["partition"], row["offset"]) for row in read}) == len(read)
    assert sorted(int(row["value"].split(b"\t")[0]) for row in read) == list(range(load.written))


def test_a_running_brokers_directory_is_refused_and_a_stopped_ones_is_exported(
    cluster: ProcessCluster, exported: Path, tmp_path: Path
) -> None:
    log_dir = cluster.log_dir(1)
    refused = anabranch(cluster, "export", "--topic", TOPIC, "--to", str(tmp_path / "out"), "--offline", str(log_dir))
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"anabranch: a broker runs on {log_dir} and holds {log_dir}/.lock: stop it")
    shutil.copytree(log_dir, tmp_path / "stopped")
    report = export(cluster, tmp_path / "out", "--offline", str(tmp_path / "stopped"))
    assert report["partitions"] == len(list(log_dir.glob(f"{TOPIC}-*"))) > 0
    online, offline = discover(exported)[0].manifest, discover(tmp_path / "out")[0].manifest
    assert (offline.cluster_id, offline.topic_id) == (online.cluster_id, online.topic_id)
    whole = content(exported, ".", online)
    for partition, data in content(tmp_path / "out", ".", offline).items():
        assert data and whole[partition].startswith(data)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--topic", "nothing", "--to", "out"), "topic nothing does not exist"),
        (("--topic", TOPIC, "--to", "s4://bucket"), "s4://bucket: Protocol not known: s4"),
        (("--topic", TOPIC, "--to", "out", "--replicas", "all", "--offline", "/"), "--offline reads one log directory"),
    ],
)
def test_a_refused_export_prints_one_line(
    cluster: ProcessCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = anabranch(cluster, "export", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(f"anabranch: {expected}") and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_terminal_has_a_progress_bar(cluster: ProcessCluster, exported: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anabranch.cli.main", "export", "--topic", TOPIC, "--to", str(tmp_path / "out")]
    command += ["-b", cluster.bootstrap]
    status, drawn, printed = run_on_terminal(command, os.environ, stdout=subprocess.PIPE)
    assert status == 0
    assert "copying" in drawn
    assert "copying" not in printed and "segment files of 3 partitions" in printed
