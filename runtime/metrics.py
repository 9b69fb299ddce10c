"""The metrics of a process, and their text for Prometheus. Counting costs an addition or an append (ADR 39)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from anabranch.runtime.metric_rows import MetricRow

OTHERS = "(others)"
"""The label value of the series with the sum of all series above a limit. No topic or group has this name."""
TOPIC = "topic"

Source = Callable[[], Iterator["Metric | None"]]
"""Yields metric families, which are computed at each read; yields None where other tasks may run."""


class Counter:
    """Numbers that only grow, one for each combination of label values."""

    __slots__ = ("label_names", "row", "values")

    def __init__(self, row: MetricRow) -> None:
        self.row = row
        self.label_names = row.labels
        self.values: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str, by: int = 1) -> None:
        """Add ``by`` to the number of ``labels``, one value for each of ``label_names``."""
        assert len(labels) == len(self.label_names)
        self.values[labels] = self.values.get(labels, 0) + by

    def get(self, *labels: str) -> int:
        return self.values.get(labels, 0)


class Gauge(NamedTuple):
    """A number that is computed when the metrics are read."""

    row: MetricRow
    compute: Callable[[], float]


class LabelledGauge(NamedTuple):
    """A number for each combination of label values, computed when the metrics are read."""

    row: MetricRow
    compute: Callable[[], Mapping[tuple[str, ...], float]]


class Histogram:
    """Counts values by buckets with the ascending upper bounds ``bounds``."""

    __slots__ = ("bounds", "counts", "row", "total")

    def __init__(self, row: MetricRow, bounds: Sequence[float]) -> None:
        self.row = row
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """The counts by bucket, not cumulated; the last is for values above all bounds."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(bound, number of values up to it) pairs, as Prometheus expects them."""
        return cumulated(self.bounds, self.counts)


def cumulated(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """(bound, number of values up to it) pairs from the counts of each bucket."""
    found, count = [], 0
    for bound, more in zip((*map(str, bounds), "+Inf"), counts):
        count += more
        found.append((bound, float(count)))
    return found


class ShownTopics:
    """The topics with series of their own, at most ``most`` at a time. A shown topic stays while it exists."""

    def __init__(self, most: int, existing: Callable[[], Iterable[str]]) -> None:
        self._most = most
        self._existing = existing
        self._shown: dict[str, None] = {}

    def update(self) -> None:
        """Remove deleted topics; new topics take the free places in order of name."""
        names = set(self._existing())
        self._shown = {name: None for name in self._shown if name in names}
        if len(self._shown) < self._most:
            for name in sorted(names - self._shown.keys())[: self._most - len(self._shown)]:
                self._shown[name] = None

    def label(self, topic: str) -> str:
        return topic if topic in self._shown else OTHERS

    def __contains__(self, topic: str) -> bool:
        return topic in self._shown


class Metrics(Collector):
    """The metrics of one process."""

    def __init__(self, *counters: Counter) -> None:
        self.counters = counters
        self.gauges: list[Gauge] = []
        self.labelled_gauges: list[LabelledGauge] = []
        self.histograms: list[Histogram] = []
        self.sources: list[Source] = []
        self.shown_topics: ShownTopics | None = None
        """The topics with series of their own; None when every topic has them."""
        self.most_series: int | None = None
        """A counter or labelled gauge has at most this many series, besides the sum of the rest; None: no limit."""

    def families(self) -> Iterator[Metric | None]:
        """Yields all families, and None where other tasks may run."""
        if self.shown_topics is not None:
            self.shown_topics.update()
        for counter in self.counters:
            yield self._of_labels(counter.row, counter.values)
        for gauge in self.gauges:
            yield self._of_labels(gauge.row, {(): gauge.compute()})
        for labelled in self.labelled_gauges:
            yield self._of_labels(labelled.row, labelled.compute())
        for histogram in self.histograms:
            family = histogram.row.family()
            family.add_metric((), histogram.buckets(), histogram.total)
            yield family
        for source in self.sources:
            yield None
            yield from source()

    def collect(self) -> Iterator[Metric]:
        """All families, for a Prometheus registry."""
        return (family for family in self.families() if family is not None)

    def _of_labels(self, row: MetricRow, values: Mapping[tuple[str, ...], float]) -> Any:
        family = row.family()
        for labels, value in self._folded(row.labels, values).items():
            family.add_metric(labels, value)
        return family

    def _folded(self, names: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Mapping[tuple[str, ...], float]:
        """Sum up the values of topics that are not shown, and of the series above the limit."""
        shown = self.shown_topics
        at = names.index(TOPIC) if shown is not None and TOPIC in names else None
        if at is None and (self.most_series is None or len(values) <= self.most_series):
            return values
        others = (OTHERS,) * len(names)
        folded: dict[tuple[str, ...], float] = {}
        for labels, value in values.items():
            key = labels
            if at is not None and shown is not None:
                key = (*labels[:at], shown.label(labels[at]), *labels[at + 1 :])
            if self.most_series is not None and key not in folded and len(folded) >= self.most_series:
                key = others
            folded[key] = folded.get(key, 0) + value
        return folded

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return b"".join(text for text in self.render_in_steps() if text is not None)

    def render_in_steps(self) -> Iterator[bytes | None]:
        """``render`` in pieces; yields None where other tasks may run."""
        for family in self.families():
            yield None if family is None else _text(family)
            yield None


class _One(Collector):
    """A collector of one finished family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _text(family: Metric) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_One(family))
    return generate_latest(registry)
