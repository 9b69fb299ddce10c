"""The files of ``deploy/`` query only metrics that brokers and controllers expose."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.seen.metrics_page import PAGE, page_rows
from tests.support.seen.prometheus_tools import DASHBOARD, expressions, metric_names, rules
from tests.support.seen.public_dashboards import DASHBOARDS, Dashboard

DOCUMENTED = set(page_rows(PAGE.read_text())) | {"up"}


def test_alerts_query_only_exposed_metrics() -> None:
    asked = {rule["alert"]: metric_names(rule["expr"]) for rule in rules()}
    assert {alert: names - DOCUMENTED for alert, names in asked.items() if names - DOCUMENTED or not names} == {}


def test_each_alert_has_a_name_a_summary_a_description_and_a_severity() -> None:
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"Anabranch[A-Z]\w+", rule["alert"])


def test_the_dashboard_queries_only_exposed_metrics() -> None:
    asked = [(title, metric_names(expression)) for title, expression in expressions()]
    assert [(title, names) for title, names in asked if names - DOCUMENTED or not names] == []
    assert len(asked) >= 30


def test_the_dashboards_panels_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.title)
def test_metrics_that_public_dashboards_query_are_on_the_page(dashboard: Dashboard) -> None:
    rows = page_rows(PAGE.read_text())
    lacking = {name: labels for name, labels in dashboard.asks.items() if not labels <= set(rows[name].labels or ())}
    assert lacking == {}
    assert dashboard.absent & rows.keys() == set()
    assert not any(
        name.startswith(("kafka_server", "kafka_network", "kafka_consumergroup")) for name in dashboard.absent
    )


def test_metric_names_are_found_in_expressions() -> None:
    found = metric_names('sum by (kafka_x, le) (rate(anabranch_a_bucket{up="1"}[5m])) / kafka_b_total > up')
    assert found == {"anabranch_a", "kafka_b_total", "up"}


def test_the_page_of_alerts_has_each_alert_with_its_severity_and_time() -> None:
    """Each alert, in the order of the rules, has its severity, its time, its meaning, a first look and a remedy."""
    text = (PAGE.parent / "alerts.md").read_text()
    sections = re.findall(
        r"^### (\w+)\n\*(\w+), (?:after (\w+)|at once)\*\n\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL
    )
    shown = [(name, severity, after) for name, severity, after, _ in sections]
    assert shown == [(rule["alert"], rule["labels"]["severity"], rule.get("for", "")) for rule in rules()]
    for name, *_, body in sections:
        assert re.findall(r"^- \*\*([^*]+)\*\*: \S", body, re.MULTILINE) == ["Meaning", "First look", "Remedy"], name
