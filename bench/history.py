"""Ratios of earlier runs: ``history.md`` has a line for each workload of a run, so that a review sees a regression."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.table import ratios
from bench.targets import Target
from bench.workloads import Workload

HISTORY = Path(__file__).with_name("history.md")
KEYS = ("records_per_s", "cpu_s_per_gb", "p50_ms", "p99_ms")
HEAD = """# Ratios of earlier runs
Each line has medians of ratios that are paired by round: the first name of *of* over the second one. For the rate more
is better, for the rest less. Whole runs of `python -m bench` append their lines. Ratios of different machines compare
only roughly.

| day | commit | rounds | workload | of | rate | CPU/GB | p50 | p99 |
|---|---|---|---|---|---|---|---|---|
"""


def present_commit() -> str:
    """The commit of the checkout, with ``-dirty`` if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    done = subprocess.run(command, cwd=HISTORY.parent, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def lines(targets: Sequence[Target], workloads: Sequence[Workload], rounds: int, day: str, commit: str) -> list[str]:
    """A line of the table for each workload and each two targets that were compared. Pure."""
    found = []
    for workload in workloads:
        by_key = {key: ratios(targets, workload.name, key) for key in KEYS}
        for names in by_key["records_per_s"]:
            cells = [f"{by_key[key][names]:.2f}" if names in by_key[key] else "" for key in KEYS]
            found.append(f"| {day} | {commit} | {rounds} | {workload.name} | {names} | {' | '.join(cells)} |\n")
    return found


def append(
    targets: Sequence[Target], workloads: Sequence[Workload], rounds: int, commit: str, path: Path = HISTORY
) -> None:
    """Add the ratios of a run of ``commit`` to ``history.md``, which makes the checkout differ from its commit."""
    if not path.exists():
        path.write_text(HEAD)
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    with path.open("a") as history:
        history.writelines(lines(targets, workloads, rounds, day, commit))
