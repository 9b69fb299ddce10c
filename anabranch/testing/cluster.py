"""The interface of a cluster for tests, independent of its platform."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

MAX_REPLICAS = 3
_RETENTION_TIMES = frozenset({"log.retention.ms", "log.retention.minutes", "log.retention.hours"})


class Cluster(Protocol):
    """A running cluster: containers (``AnabranchCluster``) or local processes (``ProcessCluster``)."""

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers as ``host:port,host:port,...``; a restart of brokers does not change them."""
        ...

    @property
    def bootstrap(self) -> str:
        """A shorter name of ``bootstrap_servers``."""
        ...

    @property
    def broker_ids(self) -> list[int]: ...

    def kill_broker(self, broker_id: int) -> None:
        """Kill a broker by SIGKILL, and start it again. Returns when it is started, before it serves."""
        ...

    def restart_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly, start it again, and return when it serves."""
        ...

    def broker_log(self, broker_id: int) -> str:
        """The output of a broker, over all its restarts."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def settings_for_tests(brokers: int, overrides: Mapping[str, str]) -> dict[str, str]:
    """Broker keys of a test cluster: one replica for topics, more for offsets, short delays of groups and shutdowns.

    Records are kept however old their timestamps are: tests write fixed ones, and a deletion by time would remove them.
    """
    kept = {} if overrides.keys() & _RETENTION_TIMES else {"log.retention.ms": "-1"}
    return {
        "offsets.topic.replication.factor": str(min(brokers, MAX_REPLICAS)),
        "default.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "500",
        "controlled.shutdown.retry.backoff.ms": "500",
        **kept,
        **overrides,
    }
