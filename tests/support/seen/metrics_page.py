"""The metrics of tables, processes and docs/metrics.md. As a program it writes the page's table (``make gen``)."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from anabranch.broker.metrics.table import BROKER_METRICS
from anabranch.controller.metric_table import CONTROLLER_METRICS
from anabranch.runtime.metric_table import PROCESS_METRICS
from anabranch.testing.processes import ProcessCluster

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (\w+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
_UNITS = (
    (re.compile(r"(_seconds|_seconds_total)$"), "seconds"),
    (re.compile(r"(ms|_ms)$"), "milliseconds"),
    (re.compile(r"bytes|memorypool|kafka_log_log_size"), "bytes"),
    (re.compile(r"max_dirty_percent"), "percent"),
    (re.compile(r"idle_percent"), "0 to 1"),
    (re.compile(r"messagesin|messages_out|_records|expired_unread|_lag$|_lag_sum|maxlag"), "records"),
    (re.compile(r"offset$|offset_sum$"), "offset"),
)
DEADLINE_S = 60.0


class Row(NamedTuple):
    """A metric. ``of`` is broker, controller or both. ``labels`` is None if the metric has no value."""

    of: str
    type: str
    labels: tuple[str, ...] | None
    unit: str
    meaning: str


def families(cluster: ProcessCluster, process: str) -> list[Metric]:
    """The metrics of a process."""
    with urllib.request.urlopen(f"http://{cluster.metrics[process]}/metrics", timeout=DEADLINE_S) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def of_processes(cluster: ProcessCluster) -> dict[str, Row]:
    """All metrics by their names in queries."""
    found: dict[str, Row] = {}
    for process in cluster.metrics:
        kind = process.partition("-")[0]
        for family in families(cluster, process):
            name = family.name + ("_total" if family.type == "counter" else "")
            before = found.get(name)
            labels = _labels(family.samples)
            if before is not None:
                kind_now = before.of if before.of in (kind, "both") else "both"
                labels = labels if before.labels is None else before.labels
            else:
                kind_now = kind
            found[name] = Row(kind_now, family.type, labels, _unit(family.name), family.documentation)
    return found


def of_tables() -> dict[str, Row]:
    """All declared metrics by their names in queries."""
    return {
        row.shown_name: Row(of, row.type, tuple(sorted(row.labels)), _unit(row.name), row.help)
        for of, rows in (("both", PROCESS_METRICS), ("broker", BROKER_METRICS), ("controller", CONTROLLER_METRICS))
        for row in rows
    }


def _unit(name: str) -> str:
    return next((unit for pattern, unit in _UNITS if pattern.search(name)), "")


def _labels(samples: Iterable[object]) -> tuple[str, ...] | None:
    for sample in samples:
        return tuple(sorted(name for name in sample.labels if name != "le"))  # type: ignore[attr-defined]
    return None


def page_rows(text: str) -> dict[str, Row]:
    """The rows of the page's tables."""
    return {
        name: Row(of, kind, tuple(sorted(re.findall(r"\w+", labels))), unit.strip(), meaning)
        for name, of, kind, labels, unit, meaning in _ROW.findall(text)
    }


def table(rows: dict[str, Row]) -> str:
    """The rows as text of the page, in order of name."""
    lines = ["| name | of | type | labels | unit | meaning |", "|---|---|---|---|---|---|"]
    for name, row in sorted(rows.items()):
        labels = ", ".join(row.labels or ())
        lines.append(f"| `{name}` | {row.of} | {row.type} | {labels} | {row.unit} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with the table of the declared metrics."""
    return _TABLE.sub(lambda _: table(of_tables()), PAGE.read_text())


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
