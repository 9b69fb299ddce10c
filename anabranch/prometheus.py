"""Client metrics for Prometheus, in one line: ``REGISTRY.register(ClientCollector(producer, consumer))``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from anabranch.client.client_metrics import CONSUMER_TRAFFIC, PRODUCER_TRAFFIC, Metrics
from anabranch.client.errors import ClientClosedError

_KAFKAS = {
    PRODUCER_TRAFFIC: "kafka_producer_producer_metrics",
    CONSUMER_TRAFFIC: "kafka_consumer_consumer_fetch_manager_metrics",
}
_GROUP_ENDS = "-metrics"
_TOTAL = "-total"
_OF_ONE = ("-ms", "-max")


class _Configured(Protocol):
    @property
    def client_id(self) -> str | None: ...


class Client(Protocol):
    """A ``Producer`` or a ``Consumer``, also one of ``anabranch.sync``."""

    @property
    def config(self) -> _Configured: ...

    def metrics(self) -> Metrics: ...


class ClientCollector(Collector):
    """A collector of prometheus_client for the ``metrics()`` of clients, with the label ``client_id``.

    A collector may be registered before the clients are entered. Clients that are not open have no metrics. Clients
    with the same ``client_id`` are combined: the sum of counts, the largest of times and maxima.
    """

    def __init__(self, *clients: Client) -> None:
        self._clients = clients

    def describe(self) -> Iterator[Metric]:
        """Return nothing, because the metrics depend on the open clients."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        values: dict[tuple[str, str], dict[str, float]] = {}
        for client in self._clients:
            for group, numbers in _numbers(client).items():
                for name, value in numbers.items():
                    if not math.isnan(value):
                        of_clients = values.setdefault((group, name), {})
                        client_id = client.config.client_id or ""
                        before = of_clients.get(client_id)
                        of_clients[client_id] = value if before is None else _merged(name, before, value)
        for (group, name), of_clients in values.items():
            kind = CounterMetricFamily if name.endswith(_TOTAL) else GaugeMetricFamily
            family = kind(_name(group, name), f"{name} of {group}, see docs/metrics.md", labels=["client_id"])
            for client_id, value in of_clients.items():
                family.add_metric([client_id], value)
            yield family


def _merged(name: str, one: float, other: float) -> float:
    """Combine a metric of two clients with the same id: the sum, or the larger one for times and maxima."""
    return max(one, other) if name.endswith(_OF_ONE) else one + other


def _numbers(client: Client) -> Metrics:
    try:
        return client.metrics()
    except ClientClosedError:
        return {}


def _name(group: str, name: str) -> str:
    prefix = _KAFKAS.get(group) or f"anabranch_{group.removesuffix(_GROUP_ENDS)}"
    return f"{prefix}_{name.removesuffix(_TOTAL)}".replace("-", "_")
