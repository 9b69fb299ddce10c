"""Debian's ``prometheus``: promtool, and a server that scrapes a cluster by the files of ``deploy/prometheus``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from anabranch.local.ports import held_port
from anabranch.testing.processes import wait_for

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy" / "prometheus" / "anabranch.rules.yml"
CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "anabranch.json"
DEADLINE_S = 60.0
_NAME = re.compile(r"\b(?:up|(?:kafka|anabranch|process)_\w+)\b")
_OF_HISTOGRAM = re.compile(r"_(bucket|sum|count)$")
COUNTS = {"kafka_server_socket_server_metrics_connection_count", "kafka_consumergroup_lag_sum"}
"""Metrics that are not histograms, although their names end like those of histograms."""
KAFKAS_OWN = {
    ("kafka_consumergroup_current_offset_sum", 'should not have "_sum" suffix'),
    ("kafka_consumergroup_lag_sum", 'should not have "_sum" suffix'),
    ("kafka_log_logcleanermanager_time_since_last_run_ms", "abbreviated units"),
    ("kafka_log_logmanager_logdirectoryoffline", "label names should be written in 'snake_case'"),
    ("kafka_server_delayedoperationpurgatory_purgatorysize", "label names should be written in 'snake_case'"),
    ("kafka_server_socket_server_metrics_connection_count", 'should not have "_count" suffix'),
}
"""Metrics that promtool objects to, as docs/metrics.md explains. Kafka's dashboards use these names."""
_VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*", "$topic": ".*", "$group": ".*"}


def needed(program: str) -> str:
    """The path of a program. Skips the test when it is missing; in CI (``CI`` is set) the test fails."""
    path = shutil.which(program)
    if path is None:
        message = f"{program} is not installed; tests/setup-system installs Debian's prometheus"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return path


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([needed("promtool"), *arguments], input=text, capture_output=True, text=True)


def rules() -> list[dict[str, Any]]:
    """All alert rules."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """(title, expression) of each query of the dashboard. A pattern that matches everything replaces each variable."""
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in _VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression


def metric_names(expression: str) -> set[str]:
    """The metrics in an expression; a histogram by its base name."""
    without_labels = re.sub(r"\b(?:by|ignoring|on|without)\s*\([^)]*\)|\{[^}]*\}", "", expression)
    found = _NAME.findall(without_labels)
    return {name if name in COUNTS else _OF_HISTOGRAM.sub("", name) for name in found}


def changed_rules(path: Path, limits: Mapping[str, tuple[str, str]]) -> None:
    """Write rules that fire at once. ``limits`` has, by alert, a part of the alert's expression and its replacement."""
    content = yaml.safe_load(RULES.read_text())
    for group in content["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
            if rule["alert"] in limits:
                old, new = limits[rule["alert"]]
                assert old in rule["expr"]
                rule["expr"] = rule["expr"].replace(old, new)
    path.write_text(yaml.safe_dump(content))


class Prometheus:
    """A running server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def _get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self._address}{path}?{query}", timeout=DEADLINE_S) as answer:
            content = json.loads(answer.read())
        assert content["status"] == "success", content
        return content["data"]

    def query(self, expression: str) -> list[Any]:
        """The present series of an expression."""
        return list(self._get("/api/v1/query", query=expression)["result"])

    def firing(self) -> set[str]:
        """The firing alerts."""
        alerts = self._get("/api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def until_firing(self, *alerts: str) -> None:
        wait_for(lambda: set(alerts) <= self.firing(), DEADLINE_S, f"{', '.join(alerts)} fire")

    def until_quiet(self, *alerts: str) -> None:
        wait_for(lambda: not set(alerts) & self.firing(), DEADLINE_S, f"{', '.join(alerts)} are over")


@contextmanager
def scraping(
    directory: Path, targets: Iterable[str], limits: Mapping[str, tuple[str, str]] | None = None
) -> Iterator[Prometheus]:
    """Write the configuration of ``deploy/prometheus`` with other targets, and 1 s instead of 15 s as interval."""
    content = yaml.safe_load(CONFIG.read_text())
    content["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    content["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(content))
    changed_rules(directory / RULES.name, limits or {})
    with held_port("127.0.0.1") as port, (directory / "prometheus.log").open("wb") as log:
        address = f"127.0.0.1:{port}"
        command = [needed("prometheus"), f"--config.file={directory / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={directory / 'tsdb'}", f"--web.listen-address={address}"]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            running = Prometheus(address)

            def is_up() -> bool:
                assert process.poll() is None, (directory / "prometheus.log").read_text()
                try:
                    return bool(running.query("up == 1"))
                except OSError:
                    return False

            wait_for(is_up, DEADLINE_S, "Prometheus scrapes")
            yield running
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
