"""The earlier release of the upgrade tests is that of the newest tag."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import releases
from tests.support.repository import commit, git, needs_git

pytestmark = needs_git


def write(root: Path, content: str) -> None:
    (root / "found.py").write_text(content)
    commit(root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    target = tmp_path / "root"
    target.mkdir()
    git(target, "init", "--quiet")
    write(target, "print('first')")
    return target


def test_the_earlier_release_is_the_newest_version_tag(root: Path, tmp_path: Path) -> None:
    assert releases.newest_tag(root) is None
    git(root, "tag", "v0.1.0")
    write(root, "print('second')")
    git(root, "tag", "other")
    assert releases.newest_tag(root) == "v0.1.0"
    git(root, "tag", "v0.2.0-rc1")
    commit(root)
    git(root, "tag", "v0.2.0")
    assert releases.newest_tag(root) == "v0.1.0", "the present release is not the one before"
    assert releases.newest_tag(tmp_path) is None, "no repository"
    releases.unpack("v0.1.0", tmp_path / "unpacked", root)
    assert (tmp_path / "unpacked" / "found.py").read_text() == "print('first')"


def test_a_server_runs_the_sources_that_the_file_beside_its_properties_names(tmp_path: Path) -> None:
    present, earlier, properties = tmp_path / "present", tmp_path / "earlier", tmp_path / "broker-1.properties"
    for release in (present, earlier):
        release.mkdir()
        (release / "server.py").write_text(f"print('{release.name}')")
    command = [sys.executable, "-m", "server", "--config", str(properties)]

    def output() -> bytes:
        environment = {"PYTHONPATH": str(releases._SWITCH)}
        return subprocess.run(command, env=environment, cwd=present, capture_output=True).stdout

    assert output() == b"present\n"
    Path(f"{properties}.release").write_text(str(earlier))
    assert output() == b"earlier\n"
