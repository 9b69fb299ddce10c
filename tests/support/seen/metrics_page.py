"""The metrics of docs/metrics.md and of processes. ``python -m tests.support.seen.metrics_page`` writes the tables."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

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
    (re.compile(r"messagesin|messages_out|_records|_lag$|_lag_sum|maxlag"), "records"),
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
            unit = next((unit for pattern, unit in _UNITS if pattern.search(family.name)), "")
            found[name] = Row(kind_now, family.type, labels, unit, family.documentation)
    return found


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


def main() -> None:
    """Write the table from the metrics of a cluster in use. The argument is the cluster's ready file."""
    cluster = ProcessCluster(directory=Path(sys.argv[1]))
    rows, before = of_processes(cluster), page_rows(PAGE.read_text())
    rows = {
        name: row if row.labels is not None or name not in before else row._replace(labels=before[name].labels)
        for name, row in rows.items()
    }
    PAGE.write_text(_TABLE.sub(lambda _: table(rows), PAGE.read_text()))


if __name__ == "__main__":
    main()
