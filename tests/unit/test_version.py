"""The version of a build comes from the git tag, else from the environment. Brokers accept each one (KIP-511)."""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import VERSION_PATTERN, Version

from anabranch.broker.handlers import api_versions
from anabranch.runtime import release
from tests.support.repository import commit, git, needs_git

ROOT = Path(__file__).resolve().parents[2]
FILES = ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py")
PRETENDED = "SETUPTOOLS_SCM_PRETEND_VERSION"


def version_of(sources: Path) -> str:
    version: str = ProjectMetadata(str(sources), PluginManager()).version
    return version


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What decides the version, without git's data."""
    monkeypatch.delenv(PRETENDED, raising=False)
    target = tmp_path / "sources"
    target.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, target)
    return target


@pytest.fixture
def clone(sources: Path) -> Path:
    """A repository with one commit and no tag of a version."""
    git(sources, "init", "--quiet")
    commit(sources)
    for other in ("not-a-version", "round2", "x-3.5", "2026-11-30"):
        git(sources, "tag", other)
    return sources


@needs_git
def test_a_tag_is_the_version_and_a_commit_after_it_a_development_version(clone: Path) -> None:
    git(clone, "tag", "v9.8.7")
    assert version_of(clone) == "9.8.7"
    commit(clone)
    assert version_of(clone).startswith("9.8.8.dev1+g")


@needs_git
def test_a_shallow_clone_and_one_without_tags_have_development_versions(clone: Path, tmp_path: Path) -> None:
    commit(clone)
    assert version_of(clone).startswith("0.0.1.dev2+g")
    git(clone, "tag", "v9.8.7")
    commit(clone)
    git(tmp_path, "clone", "--quiet", "--depth=1", clone.as_uri(), "shallow")
    with pytest.warns(UserWarning, match="shallow"):
        assert version_of(tmp_path / "shallow").startswith("0.0.1.dev1+g")


def test_without_git_the_environment_gives_the_version(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert version_of(sources) == "0.0.0"
    monkeypatch.setenv(PRETENDED, "")
    assert version_of(sources) == "0.0.0", "the image's default"
    monkeypatch.setenv(PRETENDED, "4.5.6")
    assert version_of(sources) == "4.5.6"
    monkeypatch.setenv(PRETENDED, "latest")
    with pytest.raises(ValueError, match="latest"):
        version_of(sources)


@needs_git
def test_without_the_command_git_a_build_has_a_version(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(clone, "tag", "v9.8.7")
    monkeypatch.setenv("PATH", "")
    assert version_of(clone) == "0.0.0"


@needs_git
def test_a_source_distribution_keeps_its_version(clone: Path, tmp_path: Path) -> None:
    git(clone, "tag", "v9.8.7")
    (archive,) = SdistBuilder(str(clone)).build(directory=str(tmp_path))
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    assert version_of(tmp_path / "anabranch-9.8.7") == "9.8.7"


@settings(max_examples=30)  # every second one has a local part
@given(written=st.from_regex(re.compile(rf"(?ai)\A{VERSION_PATTERN}\Z", re.VERBOSE)))
def test_brokers_accept_every_version_that_a_package_can_have(written: str) -> None:
    assert api_versions._SOFTWARE.fullmatch(release.accepted(str(Version(written))))


def test_the_version_that_a_request_states_has_the_commit() -> None:
    assert release.accepted("1.2.4.dev5+g1a2b3c4") == "1.2.4.dev5-g1a2b3c4"
    assert release.accepted("0.1.0") == "0.1.0"
