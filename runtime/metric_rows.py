"""Tables of metrics: the name, the type, the meaning and the labels of each metric of a process.

The exposition, the table of ``docs/metrics.md`` and the ledger are made from these tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

_FAMILIES: dict[str, type[Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class MetricRow(NamedTuple):
    """A metric. ``name`` is without the ``_total`` that Prometheus shows of a counter."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        """The name in queries."""
        return self.name + ("_total" if self.type == "counter" else "")

    def family(self) -> Any:
        """A family without samples: ``add_metric`` takes one value for each of ``labels``, in their order."""
        return _FAMILIES[self.type](self.name, self.help, labels=self.labels)


def counter(name: str, help_text: str, labels: tuple[str, ...] = ()) -> MetricRow:
    return MetricRow(name, "counter", help_text, labels)


def gauge(name: str, help_text: str, labels: tuple[str, ...] = ()) -> MetricRow:
    return MetricRow(name, "gauge", help_text, labels)


def histogram(name: str, help_text: str, labels: tuple[str, ...] = ()) -> MetricRow:
    return MetricRow(name, "histogram", help_text, labels)


class MetricTable:
    """Metrics by name. A name that is not in the table raises ``KeyError``."""

    __slots__ = ("_rows",)

    def __init__(self, *rows: MetricRow) -> None:
        self._rows = {row.name: row for row in rows}
        if len(self._rows) < len(rows):
            raise ValueError("a metric is declared twice")

    def __getitem__(self, name: str) -> MetricRow:
        return self._rows[name]

    def __iter__(self) -> Iterator[MetricRow]:
        return iter(self._rows.values())

    def family(self, name: str) -> Any:
        """A family without samples."""
        return self._rows[name].family()

    def value(self, name: str, value: float) -> Any:
        """The finished family of a metric without labels."""
        family = self._rows[name].family()
        family.add_metric((), value)
        return family
