"""What a test may ask of a cluster, whatever it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

MAX_REPLICAS = 3


class Cluster(Protocol):
    """A running cluster: containers (``AnabranchCluster``) or local processes (``ProcessCluster``)."""

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,host:port,...``; stays the same while brokers are restarted."""
        ...

    @property
    def bootstrap(self) -> str:
        """The same, shorter."""
        ...

    @property
    def broker_ids(self) -> list[int]: ...

    def kill_broker(self, broker_id: int) -> None:
        """``kill -9``, and start it again. Returns when it has been started, before it serves."""
        ...

    def restart_broker(self, broker_id: int) -> None:
        """Stop it in order, start it again and return when it serves."""
        ...

    def broker_log(self, broker_id: int) -> str:
        """What a broker printed, over all its restarts."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def settings_for_tests(brokers: int, overrides: Mapping[str, str]) -> dict[str, str]:
    """Broker keys of a test cluster: topics of one replica, offsets of more; groups form and brokers stop soon."""
    return {
        "offsets.topic.replication.factor": str(min(brokers, MAX_REPLICAS)),
        "default.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "500",
        "controlled.shutdown.retry.backoff.ms": "500",
        **overrides,
    }
