"""What a process counts, and Prometheus' text of it. Pure: counting is adding to a number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from anabranch.runtime.background import Background


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


class Gauge:
    """A number that is computed when metrics are read."""

    __slots__ = ("compute", "help", "name")

    def __init__(self, name: str, help_text: str, compute: Callable[[], float]) -> None:
        self.name = name
        self.help = help_text
        self.compute = compute


class LabelledGauge:
    """A number for each combination of label values, computed when the metrics are read."""

    __slots__ = ("compute", "help", "label_names", "name")

    def __init__(
        self, name: str, help_text: str, compute: Callable[[], Mapping[tuple[str, ...], float]], *label_names: str
    ) -> None:
        self.name = name
        self.help = help_text
        self.compute = compute
        self.label_names = label_names


class Histogram:
    """How many values were at most each of ``bounds``, which ascend."""

    __slots__ = ("bounds", "counts", "help", "name", "total")

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help_text
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """By bucket, the last for values above all bounds; not cumulated."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(bound, values up to it), as Prometheus wants them."""
        found, count = [], 0
        for bound, more in zip((*map(str, self.bounds), "+Inf"), self.counts):
            count += more
            found.append((bound, float(count)))
        return found


class Metrics(Collector):
    """One process's numbers."""

    def __init__(self, *counters: Counter) -> None:
        self.counters = counters
        self.gauges: list[Gauge] = []
        self.labelled_gauges: list[LabelledGauge] = []
        self.histograms: list[Histogram] = []

    def add_background(self, background: Background) -> None:
        """Count and show the failures of the process's background work."""
        self.counters = (*self.counters, background.failures)
        self.gauges.append(
            Gauge(
                "anabranch_background_failing",
                "Items of background work that fail now; `python -m anabranch.health` names them",
                lambda: len(background.describe()),
            )
        )

    def collect(self) -> Iterator[Metric]:
        """For a Prometheus registry."""
        for counter in self.counters:
            family = CounterMetricFamily(counter.name, counter.help, labels=counter.label_names)
            for labels, value in counter.values.items():
                family.add_metric(labels, value)
            yield family
        for gauge in self.gauges:
            yield GaugeMetricFamily(gauge.name, gauge.help, value=gauge.compute())
        for labelled in self.labelled_gauges:
            found = GaugeMetricFamily(labelled.name, labelled.help, labels=labelled.label_names)
            for labels, number in labelled.compute().items():
                found.add_metric(labels, number)
            yield found
        for histogram in self.histograms:
            yield HistogramMetricFamily(
                histogram.name, histogram.help, buckets=histogram.buckets(), sum_value=histogram.total
            )

    def render(self) -> bytes:
        """All of them in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)
