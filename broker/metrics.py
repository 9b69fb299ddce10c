"""What a broker counts, and how Prometheus reads it. Pure: counting is adding to a number."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Counter:
    """A number for each combination of label values; it only grows."""

    __slots__ = ("help", "label_names", "name", "values")

    def __init__(self, name: str, help_text: str, *label_names: str) -> None:
        self.name = name
        self.help = help_text
        self.label_names = label_names
        self.values: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str, by: int = 1) -> None:
        """One value for each of ``label_names``."""
        assert len(labels) == len(self.label_names)
        self.values[labels] = self.values.get(labels, 0) + by

    def get(self, *labels: str) -> int:
        return self.values.get(labels, 0)


class Metrics(Collector):
    """One broker's counters."""

    def __init__(self) -> None:
        self.layout_refusals = Counter(
            "anabranch_layout_refusals",
            "Produce and Fetch partitions refused with INVALID_PARTITION_METADATA (KIP-253)",
            "api",
            "topic",
        )
        self.legacy_refusals = Counter(
            "anabranch_legacy_produce_refusals",
            "Batches refused of producers that do not name the layout they placed them by",
            "topic",
        )

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For a Prometheus registry."""
        for counter in (self.layout_refusals, self.legacy_refusals):
            family = CounterMetricFamily(counter.name, counter.help, labels=counter.label_names)
            for labels, value in counter.values.items():
                family.add_metric(labels, value)
            yield family

    def render(self) -> bytes:
        """All of them in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)
