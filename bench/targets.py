"""The clusters that are compared: how each is started, measured and broken."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anabranch.testing.processes import ProcessCluster
from bench.compiled import client_environment
from bench.kafka_peer import KafkaCluster
from bench.measure import rss_bytes
from bench.warm_up import WarmUp

SESSION_TIMEOUT_MS = "6000"
"""How long a broker may be silent before it counts as dead, the same on both sides."""


@dataclass(slots=True)
class Target:
    """A running cluster, with its samples by workload. ``replicas`` is the replication factor of its topics."""

    name: str
    bootstrap: str
    replicas: int
    pids: Callable[[], list[int]]
    """The process ids of the brokers."""
    other_pids: Callable[[], list[int]]
    """The process ids of ZooKeeper and the controllers, if they are not inside the brokers."""
    kill: Callable[[int], None]
    """Kills a broker with kill -9."""
    restart: Callable[[int], None]
    """Starts a killed broker again."""
    zookeeper: str = ""
    """The address of ZooKeeper, if the cluster has one."""
    start_rss: int = 0
    load_rss: int = 0
    samples: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    warm_ups: dict[str, WarmUp] = field(default_factory=dict)
    """The warm-ups of the workloads that have a rate, by workload."""

    def __post_init__(self) -> None:
        self.start_rss = rss_bytes(self.pids())


class EarlierCluster(ProcessCluster):
    """A cluster of another commit, which is installed below ``site``."""

    def __init__(self, site: Path, **options: Any) -> None:
        super().__init__(**options)
        self._site = site

    def _environment(self) -> dict[str, str] | None:
        return client_environment(self._site)

    def _command(self) -> list[str]:
        """Without the options that the commit does not have."""
        command = super()._command()
        known = subprocess.run(
            [*command[: command.index("up") + 1], "--help"], env=self._environment(), capture_output=True, text=True
        ).stdout
        return [word for word in command if word != "--no-console" or word in known]


def _overrides(replicas: int) -> dict[str, str]:
    return {"min.insync.replicas": "2"} if replicas > 1 else {}


def _other_pids(cluster: ProcessCluster) -> list[int]:
    pids = cluster.state["pids"]
    return [pid for pid in [pids["zookeeper"], *pids["controller"]] if pid]


@contextmanager
def anabranch_target(
    directory: Path, replicas: int, name: str = "Anabranch", site: Path | None = None
) -> Iterator[Target]:
    """A cluster of Anabranch with as many brokers as replicas; the supervisor restarts a process that dies.

    It runs what is installed below ``site``, or this checkout for None.
    """
    overrides = {"zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS, **_overrides(replicas)}
    cluster_type = ProcessCluster if site is None else partial(EarlierCluster, site)
    with cluster_type(brokers=replicas, directory=directory / f"{name}-{replicas}", overrides=overrides) as cluster:
        yield Target(
            name,
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
