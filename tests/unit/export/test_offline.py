"""Exporting from the log directory of a stopped broker."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anabranch.broker.log.checkpoint_files import MetaProperties, encode_meta_properties, encode_offsets
from anabranch.command_error import CommandError
from anabranch.export.offline import export_offline
from tests.support.audit.exported_cluster import TP, Cluster, Replica, batches


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    cluster.replica(1).segment(0, batches(0, 3))
    cluster.replica(1).segment(6, batches(6, 3))
    stopped(cluster.replica(1), 1, 10)
    return cluster


def stopped(replica: Replica, broker: int, high_watermark: int) -> None:
    """Complete a log directory as a stopped broker leaves it."""
    meta = MetaProperties(broker, "cluster-a")
    (replica.log_dir / "meta.properties").write_bytes(encode_meta_properties(meta))
    (replica.log_dir / ".lock").touch()
    replica.high_watermark(high_watermark)


def test_a_stopped_brokers_replica_is_copied_up_to_its_high_watermark(cluster: Cluster) -> None:
    cluster.replica(1).layouts("0 4 4 0", "3 4 6 1")
    report = export_offline(cluster.replica(1).log_dir, "t", cluster.root / "out")
    manifest = cluster.manifest()
    assert (report.partitions, report.segments) == (1, 2)
    assert (manifest.cluster_id, manifest.topic_id) == ("cluster-a", "AAAAAAAAAAAAAAAAAAAABw")
    assert (manifest.cleanup_policy, manifest.undeleted_partition_count) == ("delete", 6)
    assert (manifest.partitions[0].high_watermark, manifest.partitions[0].leader) == (10, -1)
    assert cluster.exported() == list(range(10))


def test_the_log_start_and_the_cleanup_policy_come_from_the_checkpoints(cluster: Cluster) -> None:
    log_dir = cluster.replica(1).log_dir
    for name, offset in (("log-start-offset-checkpoint", 6), ("cleaner-offset-checkpoint", 6)):
        (log_dir / name).write_bytes(encode_offsets({TP: offset}))
    export_offline(log_dir, "t", cluster.root / "out")
    assert cluster.manifest().is_compacted
    assert cluster.manifest().partitions[0].log_start_offset == 6
    assert cluster.exported() == [6, 7, 8, 9]


def test_an_export_of_the_running_cluster_continues_from_a_stopped_broker(cluster: Cluster) -> None:
    cluster.high_watermark = 8
    cluster.export()
    assert export_offline(cluster.replica(1).log_dir, "t", cluster.root / "out").added_segments == 1
    assert cluster.exported() == list(range(10))
    cluster.replica(2).segment(0, batches(0, 2))
    stopped(cluster.replica(2), 2, 4)
    report = export_offline(cluster.replica(2).log_dir, "t", cluster.root / "out")
    assert report.added_segments == 0, "a broker that was stopped earlier has no new records"


@contextmanager
def locked(path: Path, call: str) -> Iterator[None]:
    """Hold a lock on a file in another process."""
    program = (
        f"import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.{call}(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "1\n"
        try:
            yield
        finally:
            holder.communicate("\n")


@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_a_running_brokers_directory_is_refused(cluster: Cluster, call: str) -> None:
    log_dir = cluster.replica(1).log_dir
    with (
        locked(log_dir / ".lock", call),
        pytest.raises(CommandError, match=f"a broker runs on {log_dir} and holds {log_dir}/.lock: stop it"),
    ):
        export_offline(log_dir, "t", cluster.root / "out")
    assert not (cluster.root / "out").exists()


def test_the_directory_is_locked_during_the_export(cluster: Cluster) -> None:
    log_dir = cluster.replica(1).log_dir
    found = []

    class Watching:
        def expect(self, size_bytes: int) -> None:
            with open(log_dir / ".lock") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    found.append("locked")

        def advance(self, size_bytes: int) -> None: ...

    export_offline(log_dir, "t", cluster.root / "out", progress=Watching())
    assert found and set(found) == {"locked"}


def test_a_directory_that_is_no_log_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"is no broker's log directory: it has no meta.properties"):
        export_offline(tmp_path, "t", tmp_path / "out")


def test_a_missing_topic_is_refused(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match="has no partition of topic other"):
        export_offline(cluster.replica(1).log_dir, "other", cluster.root / "out")


def test_a_compaction_that_was_interrupted_is_refused(cluster: Cluster) -> None:
    (cluster.replica(1).directory / f"{0:020d}.log.swap").touch()
    with pytest.raises(CommandError, match="a compaction was interrupted; start the broker"):
        export_offline(cluster.replica(1).log_dir, "t", cluster.root / "out")


def test_a_broken_checkpoint_is_named(cluster: Cluster) -> None:
    (cluster.replica(1).log_dir / "replication-offset-checkpoint").write_text("0\n1\nt 0")
    with pytest.raises(CommandError, match="replication-offset-checkpoint: "):
        export_offline(cluster.replica(1).log_dir, "t", cluster.root / "out")
