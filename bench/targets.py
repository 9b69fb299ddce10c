"""The clusters that are compared: how each is started, looked at and broken."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.testing.processes import ProcessCluster
from bench.kafka_peer import KafkaCluster
from bench.measure import rss_bytes
from bench.warm_up import WarmUp

SESSION_TIMEOUT_MS = "6000"
"""How long a broker may be silent before it counts as dead, the same on both sides."""


@dataclass(slots=True)
class Target:
    """A running cluster. ``replicas`` of each topic; samples by workload."""

    name: str
    bootstrap: str
    replicas: int
    pids: Callable[[], list[int]]
    """Of the brokers."""
    other_pids: Callable[[], list[int]]
    """Of ZooKeeper and the controllers, where they are not inside the brokers."""
    kill: Callable[[int], None]
    """kill -9 of a broker."""
    restart: Callable[[int], None]
    """Have a killed broker start again."""
    zookeeper: str = ""
    """Where it answers, if the cluster has one."""
    start_rss: int = 0
    load_rss: int = 0
    samples: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    warm_ups: dict[str, WarmUp] = field(default_factory=dict)
    """By workload, of those that have a rate."""

    def __post_init__(self) -> None:
        self.start_rss = rss_bytes(self.pids())


def _overrides(replicas: int) -> dict[str, str]:
    return {"min.insync.replicas": "2"} if replicas > 1 else {}


def _other_pids(cluster: ProcessCluster) -> list[int]:
    pids = cluster.state["pids"]
    return [pid for pid in [pids["zookeeper"], *pids["controller"]] if pid]


@contextmanager
def anabranch_target(directory: Path, replicas: int) -> Iterator[Target]:
    """As many brokers as replicas; the supervisor restarts what dies."""
    overrides = {"zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS, **_overrides(replicas)}
    with ProcessCluster(
        brokers=replicas, directory=directory / f"anabranch-{replicas}", overrides=overrides
    ) as cluster:
        yield Target(
            "Anabranch",
            cluster.bootstrap,
            replicas,
            lambda: list(cluster.broker_pids().values()),
            lambda: _other_pids(cluster),
            lambda broker_id: os.kill(cluster.broker_pids()[broker_id], signal.SIGKILL),
            lambda _broker_id: None,
            cluster.state["zookeeper"],
        )


@contextmanager
def kafka_target(directory: Path, replicas: int) -> Iterator[Target]:
    overrides = {"broker.session.timeout.ms": SESSION_TIMEOUT_MS, **_overrides(replicas)}
    with KafkaCluster(directory / f"kafka-{replicas}", brokers=replicas, overrides=overrides) as cluster:
        yield Target(
            "Kafka", cluster.bootstrap, replicas, lambda: cluster.broker_pids, list, cluster.kill, cluster.restart
        )
