"""The audit and both sources on a standalone Spark cluster: executors are processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra [spark]")

from anabranch.sync import Producer
from anabranch.testing.cluster import Cluster
from tests.audit_samples import write_sample
from tests.spark_cluster import SPARK_HOME, standalone_cluster
from tests.topics import create_topic

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240.0
SETTINGS = [
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
    "spark.sql.adaptive.enabled=false",
    "spark.sql.python.filterPushdown.enabled=true",
    "spark.sql.shuffle.partitions=2",
    "spark.cores.max=2",
    "spark.scheduler.minRegisteredResourcesRatio=1.0",  # both executors are there before the first task
    f"spark.scheduler.maxRegisteredResourcesWaitingTime={DEADLINE_S:.0f}s",
]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_cluster(tmp_path_factory.mktemp("spark-cluster")) as url:
        yield url


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=env, check=False)


def audit(directory: Path, master: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch.cli.main", "audit", str(directory), "--order-by", "tsv:0"]
    return run([*command, "--master", master], **environment)


def test_the_audit_runs_on_the_workers_of_a_master(tmp_path: Path, master: str) -> None:
    write_sample(tmp_path)
    done = audit(tmp_path, master)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 segment files, 36 batches, 480 records" in done.stdout and "PASS" in done.stdout


def test_a_worker_without_the_package_is_named(tmp_path: Path, master: str) -> None:
    """The workers' python3 has PySpark and what it needs, and not this project."""
    export, bare = tmp_path / "export", tmp_path / "bare"
    write_sample(export)
    venv.create(bare, symlinks=True)
    (site,) = (bare / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{SPARK_HOME.parent}\n")
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text(f"spark.executorEnv.PATH {bare / 'bin'}:{os.environ['PATH']}\nspark.task.maxFailures 1\n")
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = audit(export, master, PYSPARK_PYTHON="python3", PATH=here, SPARK_CONF_DIR=str(defaults.parent))
    assert done.returncode != 0
    assert "a Spark worker has no Python module 'audit': pip install 'anabranch[audit]' on every worker" in done.stderr


def test_a_program_given_to_spark_submit_reads_segments_and_the_live_log(
    tmp_path: Path, master: str, cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    export = tmp_path / "export"
    write_sample(export)
    topic = fresh_name("submitted")
    create_topic(cluster.bootstrap_servers, topic, 2)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        sent = [producer.send(topic, key=b"%d" % n, value=b"%d" % n).result() for n in range(120)]
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master]
    for setting in SETTINGS:
        command += ["--conf", setting]
    command += [str(ROOT / "tests" / "spark_program.py"), str(export), cluster.bootstrap_servers, topic]
    done = run([*command, str(tmp_path / "checkpoint")], PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["segment columns"] == ["partition", "offset", "error"]
    assert (found["segment records"], found["one partition's files"]) == (480, 2)
    assert found["live"] == sorted([one.partition, one.offset, str(n)] for n, one in enumerate(sent))
    assert found["executors"] == 2, "each worker's executor reads a partition"
    assert sum(found["micro-batches"]) == 120 and len(found["micro-batches"]) >= 3
    assert found["audit"]["passed"] and found["audit"]["records"] == 480
