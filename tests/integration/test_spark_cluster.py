"""The audit and both sources on a standalone Spark cluster, whose executors are separate processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra [spark]")

from anabranch.sync import Producer
from anabranch.testing.cluster import Cluster
from tests.support.audit.samples import write_sample
from tests.support.audit.spark_cluster import SPARK_HOME, standalone_cluster
from tests.support.controller.topics import create_topic
from tests.support.seen.terminal import run_on_terminal

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 480.0
NO_PAGES = "spark.ui.enabled=false"
SETTINGS = [
    NO_PAGES,
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
    "spark.sql.adaptive.enabled=false",
    "spark.sql.shuffle.partitions=2",
    "spark.cores.max=2",
    "spark.scheduler.minRegisteredResourcesRatio=1.0",  # both executors run before the first task
    f"spark.scheduler.maxRegisteredResourcesWaitingTime={DEADLINE_S:.0f}s",
]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_cluster(tmp_path_factory.mktemp("spark-cluster")) as url:
        yield url


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=env, check=False)


def submit(master: str, program: Path, *arguments: str, settings: list[str], **environment: str) -> str:
    """Run a program with ``spark-submit``. Returns its exit status, followed by its output."""
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master]
    for setting in settings:
        command += ["--conf", setting]
    done = run([*command, str(program), *arguments], **environment)
    return f"exit status {done.returncode}\n{done.stderr}\n{done.stdout}"


def test_the_audit_runs_on_the_workers_of_a_master_and_shows_its_progress(tmp_path: Path, master: str) -> None:
    write_sample(tmp_path)
    command = [sys.executable, "-m", "anabranch.cli.main", "audit", str(tmp_path), "--order-by", "tsv:0"]
    status, drawn, _ = run_on_terminal([*command, "--master", master], os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"})
    assert status == 0, drawn
    assert "36 batches, 480 records" in drawn and "PASS" in drawn
    parts = [
        "looking for segment files", "starting Spark", "reading 6 segment files", "applying the checks", "looked at"
    ]  # fmt: skip
    places = [drawn.index(part) for part in parts]
    assert places == sorted(places)
    assert re.search(r"applying the checks .*\d+/\d+", drawn), "tasks are counted while checks run"


def test_a_worker_without_the_package_is_named(tmp_path: Path, master: str) -> None:
    """The workers' python3 has PySpark and its dependencies, but not this project. ``spark-submit`` gets the master."""
    export, bare, program = tmp_path / "export", tmp_path / "bare", tmp_path / "program.py"
    write_sample(export)
    venv.create(bare, symlinks=True)
    (site,) = (bare / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{SPARK_HOME.parent}\n")
    program.write_text("import sys\nfrom anabranch.audit.run import run_audit\nrun_audit(sys.argv[1], master=None)\n")
    settings = [f"spark.executorEnv.PATH={bare / 'bin'}:{os.environ['PATH']}", "spark.task.maxFailures=1"]
    settings += [NO_PAGES, "spark.cores.max=1"]  # one executor is enough to fail
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    output = submit(master, program, str(export), settings=settings, PYSPARK_PYTHON="python3", PATH=here)
    assert output.startswith("exit status 1")
    assert "a Spark worker has no Python module 'anabranch': pip install 'anabranch[audit]' on every worker" in output


def test_a_program_given_to_spark_submit_reads_segments_and_the_live_log(
    tmp_path: Path, master: str, cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    export = tmp_path / "export"
    write_sample(export)
    topic = fresh_name("submitted")
    create_topic(cluster.bootstrap_servers, topic, 2)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        sent = [producer.send(topic, key=b"%d" % n, value=b"%d" % n).result() for n in range(120)]
    program, arguments = (
        ROOT / "tests" / "support" / "audit" / "spark_program.py",
        [str(export), cluster.bootstrap_servers, topic],
    )
    checkpoint = str(tmp_path / "checkpoint")
    output = submit(master, program, *arguments, checkpoint, settings=SETTINGS, PYSPARK_PYTHON=sys.executable)
    assert output.startswith("exit status 0"), output
    found = json.loads(output.splitlines()[-1])
    assert (found["segment columns"], found["segment records"]) == (["partition", "offset"], 480)
    assert found["live"] == sorted([one.partition, one.offset, str(n)] for n, one in enumerate(sent))
    assert found["executors"] == 2, "each worker's executor reads a partition"
    assert sum(found["micro-batches"]) == 120 and len(found["micro-batches"]) >= 3
