"""Another project uses ``anabranch.testing``: the example of its README, and the guarantees of every engine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import anabranch.testing
from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import wait_for
from tests.support.broker.failures import numbered, read, write
from tests.support.controller.topics import create_topic

README = Path(anabranch.testing.__file__).with_name("README.md")
RECORDS = 500
DEADLINE_S = 60.0

pytestmark = pytest.mark.integration


def test_the_readmes_example_passes_in_a_project_of_its_own(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "test_orders.py").write_text(example[1])
    engine = pytestconfig.getoption("--anabranch-engine") or pytestconfig.getini("anabranch_engine")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, f"--anabranch-engine={engine}", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_broker_is_killed_and_restarted_through_the_fixture(
    cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    topic, bootstrap = fresh_name("restarted"), cluster.bootstrap_servers
    partitions = len(cluster.broker_ids)
    create_topic(bootstrap, topic, partitions)
    values = numbered(0, RECORDS)
    for partition in range(partitions):
        assert write(bootstrap, topic, values[:200], partition=partition) == []
    cluster.kill_broker(1)
    for partition in range(partitions):
        assert write(bootstrap, topic, values[200:400], partition=partition) == []
    starts = cluster.broker_log(1).count("broker.ready")
    cluster.restart_broker(1)
    wait_for(lambda: cluster.broker_log(1).count("broker.ready") > starts, DEADLINE_S, "its start is logged")
    assert cluster.broker_log(1).count("broker.ready") == starts + 1
    assert cluster.broker_log(1).count("broker.stopped") == 1
    for partition in range(partitions):
        assert write(bootstrap, topic, values[400:], partition=partition) == []
    assert cluster.bootstrap_servers == bootstrap
    assert read(bootstrap, topic, partitions * RECORDS, partitions=partitions) == values * partitions
