"""Ratios are paired by round; each run has a table of workloads, and its ratios stay in the history."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import history
from bench.rounds import run_rounds
from bench.table import paired_ratio, print_table, ratios
from bench.workloads import ALL, SHORT, STANDARD, Workload, chosen

PRODUCE = Workload("produce", "confluent-produce", 1, 1)


def target(name: str, *rates: float, cpu: float = 2.0) -> Any:
    samples = [{"records_per_s": rate, "cpu_s_per_gb": cpu} for rate in rates]
    return SimpleNamespace(name=name, samples={"produce": samples}, warm_ups={}, replicas=1, start_rss=0, load_rss=0)


def test_a_slow_round_of_the_machine_does_not_change_the_ratio() -> None:
    ours, theirs = target("A", 120, 12, 240), target("B", 100, 10, 200)
    assert paired_ratio(ours.samples["produce"], theirs.samples["produce"], "records_per_s") == pytest.approx(1.2)


@pytest.mark.parametrize(("ours", "theirs"), [((), (1,)), ((1,), ()), ((1,), (0,))], ids=["ours", "theirs", "zero"])
def test_without_a_pair_there_is_no_ratio(ours: tuple[float, ...], theirs: tuple[float, ...]) -> None:
    found = ratios([target("A", *ours), target("B", *theirs)], "produce", "records_per_s")
    assert found == {}


def test_each_two_sides_are_compared() -> None:
    sides = [target("A", 30), target("B", 20), target("C", 10)]
    assert ratios(sides, "produce", "records_per_s") == {"A/B": 1.5, "A/C": 3.0, "B/C": 2.0}


def test_the_table_begins_with_the_cpu_of_the_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([target("A", 30, cpu=1.0), target("B", 20)], [PRODUCE])
    first, line, *_ = capsys.readouterr().out.strip().splitlines()
    assert first.startswith("CPU of the brokers") and line.endswith("A/B 0.50")


def test_the_history_has_a_line_for_each_comparison(tmp_path: Path) -> None:
    path = tmp_path / "history.md"
    for _ in range(2):
        history.append([target("A", 30, cpu=1.0), target("B", 20)], [PRODUCE], 5, "12345678", path)
    assert path.read_text().startswith(history.HEAD)
    added = path.read_text().removeprefix(history.HEAD).splitlines()
    assert len(added) == 2 and added[0].endswith("| 12345678 | 5 | produce | A/B | 1.50 | 0.50 |  |  |")
    assert added[0].count("|") == history.HEAD.splitlines()[-1].count("|")


def test_the_sides_take_turns_and_each_begins_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    sides = [target("A"), target("B"), target("C")]
    for side in sides:
        side.samples.clear()
    monkeypatch.setattr("bench.rounds.create_topic", lambda *_: None)
    monkeypatch.setattr("bench.rounds.delete_topics", lambda *_: None)

    def run(side: Any, *_: Any) -> dict[str, float]:
        turns.append(side.name)
        return {"records_per_s": 1.0, "cpu_s_per_gb": 1.0}

    monkeypatch.setattr("bench.rounds.run_load", run)
    run_rounds(sides, [PRODUCE], 3, 1.0, None)
    assert "".join(turns) == "ABC" + "BCA" + "CAB"
    assert all(len(side.samples["produce"]) == 3 for side in sides)


def test_a_run_has_a_table_or_the_workloads_that_are_named() -> None:
    assert chosen([], short=True, everything=False) == SHORT
    assert set(chosen([], short=False, everything=False)) == set(STANDARD)
    assert chosen([], short=False, everything=True) == ALL
    named = chosen(["fetch 100 B, librdkafka"], short=False, everything=False)
    assert [workload.name for workload in named] == ["produce 100 B, librdkafka", "fetch 100 B, librdkafka"]
    assert chosen(["nothing has this name"], short=False, everything=False) == []


@pytest.mark.parametrize("workload", ALL, ids=lambda workload: workload.name)
def test_a_fetch_follows_the_workload_that_wrote_its_records(workload: Workload) -> None:
    earlier = ALL[: ALL.index(workload)]
    assert workload.fetch_of is None or workload.fetch_of in [other.name for other in earlier]
