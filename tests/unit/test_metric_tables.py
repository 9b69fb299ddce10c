"""A metric is declared once: the page and the processes have the metrics of the tables."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.metrics.request_metrics import RequestMetrics
from anabranch.broker.metrics.table import BROKER_METRICS
from anabranch.controller.metric_table import CONTROLLER_METRICS
from anabranch.runtime.metric_rows import MetricTable, counter, gauge
from anabranch.runtime.metric_table import PROCESS_METRICS
from tests.support.seen import metrics_page

ROOT = Path(__file__).resolve().parents[2]
OF_LIBRARY = re.compile(r"process_")
"""Metrics of prometheus-client; ``tests/integration/test_metrics_processes.py`` compares them with processes."""


def test_the_page_has_the_metrics_of_the_tables() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "run make gen"


TABLES = {
    "PROCESS_METRICS": (PROCESS_METRICS, "runtime"),
    "BROKER_METRICS": (BROKER_METRICS, "broker"),
    "CONTROLLER_METRICS": (CONTROLLER_METRICS, "controller"),
}
"""By the name in the code: the table, and the package that uses it."""


def names_in(name_of_table: str, package: str) -> set[str]:
    """The names of metrics in the files that use a table, as regular expressions. Loop variables stand for any word."""
    found = set()
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text()
        if name_of_table in text and "table" not in path.name:
            tree = ast.parse(text)
            known: dict[str, set[str]] = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    for target in node.targets:
                        known.setdefault(ast.unparse(target), set()).add(str(node.value.value))
            texts = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
            parts = [part for node in texts for part in node.values]
            used = [ast.unparse(part.value) for part in parts if isinstance(part, ast.FormattedValue)]
            beginnings = set().union(*(known.get(name, ()) for name in used))
            found |= {"".join(_pattern(part, known) for part in node.values) for node in texts}
            constants = {node for node in ast.walk(tree) if isinstance(node, ast.Constant)} - {*parts}
            found |= {str(node.value) for node in constants} - beginnings
    return {name for name in found if re.fullmatch(r"(?:\(\?:)?(?:anabranch|kafka)_[a-z0-9_|:()?\\+]+", name)}


def _pattern(part: ast.expr, known: dict[str, set[str]]) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    values = known.get(ast.unparse(part.value))
    return r"\w+" if values is None else f"(?:{'|'.join(sorted(values))})"


@pytest.mark.parametrize("name", TABLES)
def test_each_declared_metric_is_exported_and_each_exported_one_is_declared(name: str) -> None:
    """A scrape that exports a metric without a row would end without an answer."""
    table, package = TABLES[name]
    patterns = names_in(name, package)
    rows = {row.name for row in table if not OF_LIBRARY.match(row.name)}
    assert len(rows) > 5 and {row for row in rows if not any(re.fullmatch(one, row) for one in patterns)} == set()
    assert {one for one in patterns if not any(re.fullmatch(one, row) for row in rows)} == set()


def test_each_state_of_a_group_has_a_row() -> None:
    names = {f"kafka_coordinator_group_groupmetadatamanager_numgroups{state.value.lower()}" for state in GroupState}
    assert names <= {row.name for row in BROKER_METRICS}


def test_a_metric_that_is_declared_twice_or_not_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="twice"):
        MetricTable(gauge("a", "b"), counter("a", "c"))
    with pytest.raises(KeyError):
        MetricTable(gauge("a", "b")).value("b", 1.0)


def test_the_metrics_of_requests_and_of_a_broker_are_declared() -> None:
    names = {family.name for family in BrokerMetrics().collect()}
    assert names >= {family.name for family in RequestMetrics()() if family is not None}
    assert names <= {row.name for row in BROKER_METRICS}
