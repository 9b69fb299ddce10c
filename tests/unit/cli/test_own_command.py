"""The command name that ``up`` prints for a user to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.cli.own_command import own_command


@pytest.fixture
def bin(tmp_path: Path) -> Path:
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    (bin / "anabranch").touch()
    return bin


def test_the_command_name_is_shown_when_the_path_leads_to_this_installation(bin: Path) -> None:
    assert own_command(str(bin / "anabranch"), str(bin / "python"), "/") == "anabranch"


def test_a_file_path_is_shown_when_the_command_is_not_on_the_path(bin: Path, tmp_path: Path) -> None:
    assert own_command(None, str(bin / "python"), str(tmp_path)) == ".venv/bin/anabranch"
    assert own_command(None, str(bin / "python"), "/somewhere/else") == str(bin / "anabranch")


def test_a_file_path_is_shown_when_the_path_leads_to_another_installation(bin: Path, tmp_path: Path) -> None:
    other = tmp_path / "anabranch"
    other.touch()
    assert own_command(str(other), str(bin / "python"), str(tmp_path)) == ".venv/bin/anabranch"


def test_the_module_is_shown_when_no_script_is_installed(tmp_path: Path) -> None:
    assert own_command(None, f"{tmp_path}/my python", "/") == f"'{tmp_path}/my python' -m anabranch.cli.main"
