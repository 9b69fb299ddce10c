"""Whether a cluster of many partitions and groups stays usable: ``python -m bench.large_cluster``.

One broker has 10,000 partitions, a fifth of them of one topic, and 1,000 groups that committed. The table has the time
and size of a scrape of the broker's ``/metrics``, with the default limits of series and without limits. It also has the
time of the console's pages, for the first request and for later requests. The broker's own figures are its memory, its
descriptors, its CPU while it is idle, and the time and CPU of a clean restart. ``--broker-only`` measures only these.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import anyio

from anabranch import Admin, NewTopic, TopicPartition
from anabranch.local.ports import held_port
from anabranch.testing.processes import ProcessCluster, wait_for
from bench.measure import cpu_s, rss_bytes

DEADLINE_S = 600.0
LARGE, SMALL = "large", "small-%03d"
OF_SMALL = 80
PARTITIONS_OF_GROUP = 10
GROUPS_AT_ONCE = 16
PAGES = ("/", "/topics", f"/topics/{LARGE}", f"/topics/{SMALL % 0}", "/groups", "/groups/g-0000")
UNLIMITED = ("metrics.max.topics", "metrics.max.partitions", "metrics.max.groups")


class Got(NamedTuple):
    """The durations of repeated requests; ``first_s`` is that of the first one."""

    first_s: float
    median_s: float
    longest_s: float
    size_bytes: int


async def fill(cluster: ProcessCluster, partitions: int, groups: int) -> None:
    large = partitions // 5
    small = (partitions - large) // OF_SMALL
    async with Admin(
        bootstrap_servers=cluster.bootstrap, default_api_timeout_ms=int(DEADLINE_S * 1000), request_timeout_ms=300_000
    ) as admin:
        await admin.create_topics([NewTopic(LARGE, large, 1)])
        for number in range(small):
            await admin.create_topics([NewTopic(SMALL % number, OF_SMALL, 1)])
        limiter = anyio.CapacityLimiter(GROUPS_AT_ONCE)

        async def commit(number: int) -> None:
            topic = SMALL % (number % small)
            async with limiter:
                offsets = {TopicPartition(topic, index): 0 for index in range(PARTITIONS_OF_GROUP)}
                await admin.alter_group_offsets(f"g-{number:04}", offsets)

        async with anyio.create_task_group() as tasks:
            for number in range(groups):
                tasks.start_soon(commit, number)


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        content: bytes = answer.read()
        return content


def measure(url: str, times: int, pause_s: float) -> Got:
    took, size = [], 0
    for _ in range(times + 1):
        began = time.perf_counter()
        size = len(get(url))
        took.append(time.perf_counter() - began)
        time.sleep(pause_s)  # pause: as a browser or Prometheus makes one
    return Got(took[0], statistics.median(took[1:]), max(took[1:]), size)


@contextmanager
def console(cluster: ProcessCluster) -> Iterator[str]:
    """Run the console on the cluster; yields its address."""
    with held_port("127.0.0.1") as port:
        address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "anabranch.cli.main", "console", "-b", cluster.bootstrap, "--listen", address]
        process = subprocess.Popen(command)
        try:
            wait_for(lambda: _serves(address), DEADLINE_S, "the console serves")
            yield address
        finally:
            process.terminate()
            process.wait(60)


def _serves(address: str) -> bool:
    try:
        return bool(get(f"http://{address}/healthz"))
    except OSError:
        return False


def raise_limits(cluster: ProcessCluster) -> None:
    properties = cluster.directory / "data" / "broker-1.properties"
    properties.write_text(properties.read_text() + "".join(f"{key}=1000000\n" for key in UNLIMITED))
    cluster.restart_broker(1)


def has_all(cluster: ProcessCluster, partitions: int) -> bool:
    page = get(f"http://{cluster.metrics['broker-1']}/metrics").decode()
    found = [line for line in page.splitlines() if line.startswith("kafka_server_replicamanager_leadercount ")]
    return float(found[0].split()[1]) >= partitions


def show_broker(cluster: ProcessCluster, partitions: int, idle_s: float) -> None:
    """Print the figures of the only broker, before and after a clean restart."""
    _show_idle(cluster, "first", idle_s)
    began = time.perf_counter()
    cluster.restart_broker(1)
    wait_for(lambda: has_all(cluster, partitions), DEADLINE_S, "the broker leads all")
    took_s = time.perf_counter() - began
    print(f"stop, start and lead all: {took_s:.1f} s; CPU of the start {cpu_s([cluster.broker_pids()[1]]):.1f} s")
    _show_idle(cluster, "restarted", idle_s)


def _show_idle(cluster: ProcessCluster, when: str, idle_s: float) -> None:
    pid = cluster.broker_pids()[1]
    time.sleep(idle_s)  # pause: the work that follows a change ends
    before = cpu_s([pid])
    time.sleep(idle_s)  # pause: the broker is idle
    idle = (cpu_s([pid]) - before) / idle_s
    files = len(os.listdir(f"/proc/{pid}/fd"))
    print(f"broker, {when}: {rss_bytes([pid]) / 2**20:,.0f} MiB, {files:,} descriptors, idle {idle:.1%}", flush=True)


def show(rows: Sequence[tuple[str, Got]]) -> None:
    print(f"{'':<44}{'first':>10}{'median':>10}{'longest':>10}{'size':>14}")
    for what, got in rows:
        times = "".join(f"{took * 1000:>7,.0f} ms" for took in got[:3])
        print(f"{what:<44}{times}{got.size_bytes:>12,} B", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.large_cluster", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds for which the idle broker is measured")
    parser.add_argument("--broker-only", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with ProcessCluster(brokers=1, overrides={"max.partitions": "100000"}) as cluster:
        anyio.run(fill, cluster, arguments.partitions, arguments.groups)
        wait_for(lambda: has_all(cluster, arguments.partitions), DEADLINE_S, "the broker leads all")
        print(f"made in {time.perf_counter() - began:.0f} s", flush=True)
        show_broker(cluster, arguments.partitions, arguments.idle)
        if arguments.broker_only:
            return
        metrics = f"http://{cluster.metrics['broker-1']}/metrics"
        rows = [("/metrics, limits by default", measure(metrics, arguments.times, 1.0))]
        rows.append(
            ("/metrics of the controller", measure(f"http://{cluster.metrics['controller-1000']}/metrics", 3, 1.0))
        )
        show(rows)
        with console(cluster) as address:
            show([(f"console {page}", measure(f"http://{address}{page}", arguments.times, 1.0)) for page in PAGES])
        raise_limits(cluster)
        wait_for(lambda: has_all(cluster, arguments.partitions), DEADLINE_S, "the broker leads all")
        show([("/metrics, no limit", measure(metrics, arguments.times, 1.0))])


if __name__ == "__main__":
    main()
