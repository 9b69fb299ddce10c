"""The cost of metrics for producing: ``python -m bench.metrics_cost``.

A producer writes to three brokers in turn; each has its own ZooKeeper and controller. A turn is shorter than the
machine's slow moments. One broker counts and is scraped. The two others do not count (``uncounted/``) and are not
scraped. The second of them is the control: it shows how much two turns differ without metrics. One measurement has the
large batches of a busy producer. The other has a request for every ten records, so that counting requests costs most.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from anabranch import Admin, NewTopic, Producer
from anabranch.testing.processes import ProcessCluster
from bench.order_load import Turn, cost_percent, take_turn

UNCOUNTED = Path(__file__).parent / "uncounted"
COUNTED, BASE, CONTROL = NAMES = ("counted", "base", "control")
PARTITIONS = 12
VALUE = bytes(100)
TOPIC = "written"
LARGE, SMALL = "batches of 256 KiB", "batches of 1 KiB"
BATCHES = {LARGE: (256 * 1024, 5), SMALL: (1024, 0)}
"""The bytes of a batch and ``linger_ms``, by name."""


class Cost(NamedTuple):
    """Costs in percent of a turn without metrics, for metrics and for the control: time, and the broker's CPU time."""

    wall: float
    cpu: float
    wall_control: float
    cpu_control: float


@contextmanager
def one_broker(*, is_counted: bool) -> Iterator[ProcessCluster]:
    before = os.environ.get("PYTHONPATH")
    try:
        if not is_counted:
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(UNCOUNTED), before)))
        with ProcessCluster(brokers=1) as cluster:
            yield cluster
    finally:
        os.environ.pop("PYTHONPATH", None)
        if before is not None:
            os.environ["PYTHONPATH"] = before


def scrape(cluster: ProcessCluster) -> bytes:
    """The broker's response to a scrape."""
    with urllib.request.urlopen(f"http://{cluster.metrics['broker-1']}/metrics", timeout=30) as answer:
        page: bytes = answer.read()
        return page


async def scrape_on(cluster: ProcessCluster, interval_s: float) -> None:
    while True:
        await anyio.to_thread.run_sync(scrape, cluster)
        await anyio.sleep(interval_s)


async def measure(clusters: dict[str, ProcessCluster], rounds: int, batch_bytes: int, linger_ms: int) -> Cost:
    turns: dict[str, list[Turn]] = {name: [] for name in clusters}
    async with AsyncExitStack() as stack:
        producers = {}
        for name, cluster in clusters.items():
            producer = Producer(
                bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=linger_ms, batch_size=batch_bytes
            )
            producers[name] = await stack.enter_async_context(producer)
        pids = {name: list(cluster.broker_pids().values()) for name, cluster in clusters.items()}
        for name in NAMES:
            await take_turn(producers[name], TOPIC, VALUE, pids[name])
        for order in itertools.islice(itertools.cycle(itertools.permutations(NAMES)), rounds):
            for name in order:
                turns[name].append(await take_turn(producers[name], TOPIC, VALUE, pids[name]))
    wall = {name: [turn.wall_s for turn in of] for name, of in turns.items()}
    cpu = {name: [turn.broker_cpu_s for turn in of] for name, of in turns.items()}
    return Cost(
        cost_percent(wall[COUNTED], wall[BASE]),
        cost_percent(cpu[COUNTED], cpu[BASE]),
        cost_percent(wall[CONTROL], wall[BASE]),
        cost_percent(cpu[CONTROL], cpu[BASE]),
    )


async def compare(clusters: dict[str, ProcessCluster], rounds: int, interval_s: float) -> dict[str, Cost]:
    found = {}
    for cluster in clusters.values():
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    async with anyio.create_task_group() as group:
        group.start_soon(scrape_on, clusters[COUNTED], interval_s)
        for what, (batch_bytes, linger_ms) in BATCHES.items():
            found[what] = await measure(clusters, rounds, batch_bytes, linger_ms)
        group.cancel_scope.cancel()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.metrics_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--scrape-interval-s", type=float, default=5.0)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        clusters = {name: stack.enter_context(one_broker(is_counted=name == COUNTED)) for name in NAMES}
        found = anyio.run(compare, clusters, arguments.rounds, arguments.scrape_interval_s)
        began = time.perf_counter()
        page = scrape(clusters[COUNTED])
        took_ms = (time.perf_counter() - began) * 1000
        assert b'kafka_server_brokertopicmetrics_messagesin_total{topic="written"} 0' not in page
        assert b"messagesin_total{" not in scrape(clusters[BASE]), "the base counts"
    print(f"{arguments.rounds} rounds, scraped every {arguments.scrape_interval_s:g} s")
    print(f"a page has {len(page):,} bytes and takes {took_ms:.1f} ms")
    print(f"{'':<22}{'time of a turn':>16}{'control':>10}{'broker CPU':>14}{'control':>10}")
    for what, cost in found.items():
        print(f"{what:<22}{cost.wall:>+15.1f}%{cost.wall_control:>+9.1f}%{cost.cpu:>+13.1f}%{cost.cpu_control:>+9.1f}%")


if __name__ == "__main__":
    main()
