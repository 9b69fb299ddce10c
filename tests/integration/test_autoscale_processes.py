"""A topic with autoscaling, in real processes: it grows under load and shrinks when idle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anabranch import Admin, NewTopic, Producer
from anabranch.testing.processes import ProcessCluster

pytestmark = pytest.mark.integration

DEADLINE_S = 180.0
KEYS = {
    "autoscale.target.bytes.per.second": "1",
    "autoscale.max.partitions": "4",
    "autoscale.window.ms": "1000",
    "autoscale.cooldown.ms": "0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ANABRANCH_AUTOSCALE_CHECK_INTERVAL_MS", "100")
        with ProcessCluster(brokers=1) as running:
            yield running


def anabranch(cluster: ProcessCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch.cli.main", *arguments, "-b", cluster.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def answer(cluster: ProcessCluster, *arguments: str) -> Any:
    done = anabranch(cluster, *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_topic_grows_under_load_and_shrinks_when_idle(cluster: ProcessCluster) -> None:
    anyio.run(load_and_idle, cluster)


async def load_and_idle(cluster: ProcessCluster) -> None:
    async with (
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
    ):

        async def count() -> int:
            return (await admin.describe_topics(["t"]))["t"].partition_count

        await admin.create_topics([NewTopic("t", num_partitions=2, replication_factor=1, configs=KEYS)])
        alter = ("topics", "alter", "t", "--partitions")
        dry = await anyio.to_thread.run_sync(lambda: answer(cluster, *alter, "auto", "--dry-run"))
        assert dry["autoscale"]["waits"]  # there are no measurements yet
        begun = await anyio.to_thread.run_sync(lambda: answer(cluster, *alter, "auto"))
        assert begun["configs"] == {"autoscale.enable": "true"}
        sent = 0
        with anyio.fail_after(DEADLINE_S):
            while await count() != 4:
                await (await producer.send("t", key=b"key-%d" % sent, value=b"x" * 100))
                sent += 1
        with anyio.fail_after(DEADLINE_S):
            while await count() != 2:
                await anyio.sleep(0.1)  # polls: the condition of the loop
        (described,) = await anyio.to_thread.run_sync(lambda: answer(cluster, "topics", "describe", "t"))
        assert described["autoscale"]["next_count"] is None
        assert described["autoscale"]["target_bytes_per_second"] == 1
        off = await anyio.to_thread.run_sync(lambda: anabranch(cluster, "topics", "alter", "t", "--partitions", "2"))
        assert "autoscale.enable=false" in off.stderr
