"""The models of docs/model: TLC checks a small set of them, and the runner reads TLC's output correctly."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MODEL = Path(__file__).resolve().parents[2] / "docs" / "model"
RULE = re.compile(r'\bRule\("(\w+)"\)')
ROW = re.compile(r"^\| `((?:ok|live|off)_\w+)` \|.*\| [\d,]+ / [\d,]+ \|", re.MULTILINE)


def _runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_run", MODEL / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


run = _runner()
CONFIGURATIONS = run.load()


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which the first TLC process leaves its loaded classes for later TLC processes."""
    return tmp_path_factory.mktemp("tlc") / "tlc.jsa"


def small_set() -> list[Any]:
    """The configurations that ``make test`` checks. Those without a rule are mutations."""
    return [
        pytest.param(c, id=c.name, marks=[pytest.mark.mutation] if c.expect != run.PASS else [])
        for c in CONFIGURATIONS
        if c.ci
    ]


@pytest.mark.parametrize("configuration", small_set())
def test_each_configuration_of_the_small_set_has_its_expected_outcome(
    configuration: run.Configuration, classes: Path
) -> None:
    try:
        java = run.find_java()
    except run.SetupError as error:
        pytest.skip(str(error))
    result = run.check(configuration, java, run.find_jar(), classes=classes)
    assert result.outcome == configuration.expect, result.output


def test_every_rule_is_switched_off_in_some_configuration() -> None:
    rules = {(path.stem, rule) for path in MODEL.glob("*.tla") for rule in RULE.findall(path.read_text())}
    off = {(c.module, rule) for c in CONFIGURATIONS for rule in c.constants["Off"]}
    assert off == rules


def test_a_rule_that_another_one_covers_fails_together_with_it() -> None:
    """If a rule's absence alone breaks nothing, the rule is also switched off together with the rule that covers it.

    The failing configuration shows the purpose of the rule. The test lists the rules without such a configuration.
    """
    harmless = {"map_with_bump"}  # without this rule a property fails in a grow; in a shrink records only wait longer
    covered = [c for c in CONFIGURATIONS if c.constants["Off"] and c.expect == run.PASS]
    caught = [
        (c.module, set(c.constants["Off"])) for c in CONFIGURATIONS if c.constants["Off"] and c.expect != run.PASS
    ]
    shown = [c.name for c in covered if any(c.module == m and set(c.constants["Off"]) <= off for m, off in caught)]
    unshown = [c for c in covered if c.name not in shown and not set(c.constants["Off"]) & harmless]
    assert [c.name for c in unshown] == [
        "off_positions_die",  # every report comes after a commit that outlives it
        "off_lineage_leaving_is_final",  # both ways to end the race of a removal and a grow are safe
    ]


def test_every_configuration_is_in_the_tables() -> None:
    names = [c.name for c in CONFIGURATIONS]
    assert len(names) == len(set(names))
    assert sorted(ROW.findall((MODEL / "README.md").read_text())) == sorted(names)


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("Model checking completed. No error has been found.\n", "pass"),
        ("Error: Invariant Promise is violated.\n", "Promise"),
        ("Error: Temporal properties were violated.\n", "liveness"),
        ("Error: Parsing or semantic analysis failed.\n", "error"),
        ("java.lang.OutOfMemoryError\n", "error"),
    ],
)
def test_the_outcome_is_read_from_the_output_of_tlc(output: str, outcome: str) -> None:
    assert run.judge(output, 1.0).outcome == outcome


def test_a_run_that_was_stopped_has_the_counts_of_its_last_progress() -> None:
    progress = (
        "Progress(9) at 2026-01-01 00:00:00: 1,010 states generated (5 s/min), 345 distinct states found (2 ds/min)"
    )
    result = run.judge(f"{progress}, 12 states left on queue.\n", 1.0, finished=False)
    assert (result.outcome, result.generated, result.distinct) == (run.UNFINISHED, 1010, 345)


def test_long_configurations_run_only_when_they_are_named() -> None:
    long = {c.name for c in CONFIGURATIONS if c.long}
    assert "ok_lineage_revive_many" in long
    assert not long & {c.name for c in run.chosen(CONFIGURATIONS, [], ci=False)}
    assert [c.name for c in run.chosen(CONFIGURATIONS, ["ok_lineage_revive_many"], ci=False)] == [
        "ok_lineage_revive_many"
    ]


def test_counts_are_the_last_that_tlc_printed() -> None:
    result = run.judge(
        "Progress(7): 10 states generated, 8 distinct states found\n"
        "3423 states generated, 593 distinct states found, 0 states left on queue.\n"
        "The depth of the complete state graph search is 17.\n",
        1.0,
    )
    assert (result.generated, result.distinct, result.depth) == (3423, 593, 17)


def test_without_java_the_runner_reports_that_it_needs_java(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    assert run.main(["ok_grow"]) == 2
    assert "needs Java" in capsys.readouterr().err


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["ok_gorw"]) == 2
    assert "ok_gorw" in capsys.readouterr().err


def test_another_outcome_than_expected_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "find_java", lambda: "java")
    monkeypatch.setattr(run, "find_jar", lambda: Path("tla2tools.jar"))
    found = run.Result("pass", 2, 1, 1, 0.1, "")
    monkeypatch.setattr(run, "check", lambda *arguments: found)
    assert run.main(["ok_grow"]) == 0
    assert run.main(["off_creation_barrier"]) == 1
    assert "pass, expected Promise" in capsys.readouterr().out
