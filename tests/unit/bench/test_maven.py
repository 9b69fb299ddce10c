"""Programs from Maven Central are fetched once, by one process at a time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import maven

MVN = """#!{python}
import fcntl, pathlib, sys
with open("{lock}") as lock:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pathlib.Path("{runs}").open("a").write(" ".join(sys.argv[1:]) + "\\n")
    else:
        sys.exit("[ERROR] another process could run Maven at the same time")
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file to which a fake ``mvn`` writes its runs. The fake fails if its caller does not hold the lock."""
    programs, runs = tmp_path / "bin", tmp_path / "runs"
    programs.mkdir()
    for name in ("mvn", "java"):
        (programs / name).write_text(MVN.format(python=sys.executable, lock=tmp_path / "maven.lock", runs=runs))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(maven, "CACHE", tmp_path)
    return runs


def test_maven_runs_under_a_lock_and_only_once(runs: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert maven.resolved(tmp_path / "jars", "Kafka", "goal") == tmp_path / "jars"
    assert runs.read_text() == f"-q -B goal -DoutputDirectory={tmp_path / 'jars'}\n"


def test_a_program_that_another_process_fetched_meanwhile_is_not_fetched_again(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched_meanwhile(lock: object, flags: int) -> None:
        (tmp_path / "jars").mkdir()
        (tmp_path / "jars" / ".complete").touch()

    monkeypatch.setattr(maven.fcntl, "flock", fetched_meanwhile)
    maven.resolved(tmp_path / "jars", "Kafka", "goal")
    assert not runs.exists()
