"""A metric is declared once: the page and the processes have the metrics of the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.metrics.request_metrics import RequestMetrics
from anabranch.broker.metrics.table import BROKER_METRICS
from anabranch.controller.metric_table import CONTROLLER_METRICS
from anabranch.runtime.metric_rows import MetricRow, MetricTable, counter, gauge
from anabranch.runtime.metric_table import PROCESS_METRICS
from tests.support.seen import metrics_page

ROOT = Path(__file__).resolve().parents[2]
OF_LIBRARY = re.compile(r"process_")
"""Metrics of prometheus-client; ``tests/integration/test_metrics_processes.py`` compares them with processes."""


def test_the_page_has_the_metrics_of_the_tables() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "run make gen"


def sources(*packages: str) -> str:
    paths = (path for package in packages for path in (ROOT / package).rglob("*.py") if "table" not in path.name)
    return "\n".join(path.read_text() for path in paths)


@pytest.mark.parametrize(
    ("table", "packages"),
    [
        (PROCESS_METRICS, ("runtime",)),
        (BROKER_METRICS, ("broker",)),
        (CONTROLLER_METRICS, ("controller",)),
    ],
    ids=["process", "broker", "controller"],
)
def test_each_declared_metric_is_exported(table: MetricTable, packages: tuple[str, ...]) -> None:
    """The code has the metric's name, or the part of it behind a common beginning."""
    code = sources(*packages)
    states = tuple(state.value.lower() for state in GroupState)

    def is_named(row: MetricRow) -> bool:
        parts = row.name.split("_")
        ends = ("_".join(parts[at:]) for at in range(len(parts)))
        return any(re.search(rf"[\"_}}]{end}\"", code) for end in ends) or row.name.endswith(states)

    assert [row.name for row in table if not is_named(row) and not OF_LIBRARY.match(row.name)] == []


def test_a_metric_that_is_declared_twice_or_not_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="twice"):
        MetricTable(gauge("a", "b"), counter("a", "c"))
    with pytest.raises(KeyError):
        MetricTable(gauge("a", "b")).value("b", 1.0)


def test_the_metrics_of_requests_and_of_a_broker_are_declared() -> None:
    names = {family.name for family in BrokerMetrics().collect()}
    assert names >= {family.name for family in RequestMetrics()() if family is not None}
    assert names <= {row.name for row in BROKER_METRICS}
