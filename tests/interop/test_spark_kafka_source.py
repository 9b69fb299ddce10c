"""Two sources read one resized topic. Anabranch's source keeps every key in order, Spark's Kafka source does not."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra [spark]")
pytest.importorskip("pandas", reason="PySpark's stateful operators need pandas")

from anabranch.sync import Producer
from anabranch.testing.cluster import Cluster
from bench.maven import PeerUnavailable
from bench.spark_peer import spark_kafka_jars
from tests.support.controller.topics import create_topic
from tests.support.resize.resizes import resize

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
KEYS, NUMBERS = 20, 30
DEADLINE_S = 240


@pytest.fixture(scope="module")
def jars() -> None:
    try:
        spark_kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def workers_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that runs this interpreter with the installed PySpark.

    Otherwise Spark puts an archive of PySpark first in the path, and each worker compiles it again.
    """
    program = tmp_path_factory.mktemp("workers") / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o700)
    return program


def read(bootstrap: str, topic: str, source: str, directory: Path, workers_python: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.interop.spark_control", bootstrap, topic, source, str(directory)]
    env = os.environ | {"PYSPARK_PYTHON": str(workers_python)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_only_anabranchs_source_reads_keys_in_order(
    jars: None, cluster: Cluster, fresh_name: Callable[[str], str], tmp_path: Path, workers_python: Path
) -> None:
    """Half of the numbers are written before the split of the partition, and half after it."""
    topic = fresh_name("control")
    create_topic(cluster.bootstrap_servers, topic, 1)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=5) as producer:
        for number in range(NUMBERS):
            if number == NUMBERS // 2:
                resize(cluster.bootstrap_servers, topic, 2)
            for handle in [producer.send(topic, key=b"k%d" % k, value=b"%d" % number) for k in range(KEYS)]:
                handle.result()
    ours = read(cluster.bootstrap_servers, topic, "anabranch", tmp_path / "ours", workers_python)
    assert ours == {"records": KEYS * NUMBERS, "broken": []}
    theirs = read(cluster.bootstrap_servers, topic, "kafka", tmp_path / "theirs", workers_python)
    assert theirs["records"] == KEYS * NUMBERS and theirs["broken"], "the control must read keys out of order"
