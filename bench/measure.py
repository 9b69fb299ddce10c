"""The cost of processes, as CPU seconds and resident memory from /proc, and the speed of the machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.topic import TopicZnode

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """The user and system time of all ``pids`` so far, in seconds."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def running_s(pids: Iterable[int]) -> float:
    """The CPU time of the threads that exist now, in seconds. This time is exact; ``cpu_s`` counts in ticks."""
    total = 0
    for thread in (thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def rss_bytes(pids: Iterable[int]) -> int:
    """The resident memory of all ``pids``."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1]) * 1024
    return total


def znode_bytes(zookeeper: str, topic: str) -> dict[str, float]:
    """The size of a topic in ZooKeeper: of its own znode, and of its largest partition state."""
    client = KazooClient(zookeeper)
    client.start()
    try:
        path = paths.topic(topic)
        data = client.get(path)[0]
        states = (paths.partition_state(topic, index) for index in TopicZnode.decode(path, data).partitions)
        largest = max(len(client.get(state)[0]) for state in states)
    finally:
        client.stop()
        client.close()
    return {"topic_znode_bytes": len(data), "partition_znode_bytes": largest}


class ProcessorTicks(NamedTuple):
    """The ticks of all processors since the machine started."""

    total: int
    stolen: int
    """Ticks in which a process could have run, but the machine's host ran something else."""

    def stolen_percent_since(self, before: ProcessorTicks) -> float:
        return 100 * (self.stolen - before.stolen) / max(1, self.total - before.total)


def processor_ticks() -> ProcessorTicks:
    """The ticks in ``/proc/stat`` so far."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ProcessorTicks(sum(ticks), ticks[7])


def loop_ms() -> float:
    """How many milliseconds a fixed piece of Python takes: the median of nine runs."""
    took = []
    for _ in range(9):
        began = time.perf_counter()
        sum(number % 7 for number in range(200_000))
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)
