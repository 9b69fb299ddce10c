"""The pytest plugin in a separate project: its cost for a project that does not use it, and its requirements."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run_pytest(directory: Path, *arguments: str, prelude: str = "") -> subprocess.CompletedProcess[str]:
    """Run pytest in a separate project. It finds Anabranch's plugin as a user's pytest does."""
    code = f"{prelude}\nimport sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-p", "no:cacheprovider", "--rootdir", str(directory), *arguments]
    return subprocess.run([*command, str(directory)], capture_output=True, text=True, cwd=directory)


def test_a_project_that_does_not_use_the_plugin_imports_nothing_large_for_it(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import sys\n"
        "def test_nothing_large_is_imported():\n"
        "    large = {'testcontainers', 'docker', 'trio', 'kazoo', 'anabranch.client', 'anabranch.broker'}\n"
        "    assert not large & set(sys.modules)\n"
    )
    done = run_pytest(tmp_path, "-p", "no:trio", "-p", "no:anyio", "-p", "no:hypothesispytest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("engine", ["docker", "processes"])
def test_without_testcontainers_containers_are_refused_and_processes_are_started(tmp_path: Path, engine: str) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "def test_it(pytestconfig):\n"
        "    from anabranch.testing.plugin import make_cluster\n"
        "    assert type(make_cluster(pytestconfig)).__name__ == 'ProcessCluster'\n"
    )
    prelude = "import sys; sys.modules['testcontainers'] = None"
    done = run_pytest(tmp_path, f"--anabranch-engine={engine}", prelude=prelude)
    if engine == "docker":
        assert "pip install 'anabranch[testing]'" in done.stdout
        assert done.returncode != 0
    else:
        assert done.returncode == 0, done.stdout + done.stderr
