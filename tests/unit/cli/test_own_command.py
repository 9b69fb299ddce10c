"""The command name that ``up`` prints for a user to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.cli.own_command import own_command


@pytest.mark.parametrize(
    ("on_path", "python", "working", "shown"),
    [
        ("{bin}/anabranch", "{bin}/python", "/", "anabranch"),
        (None, "{bin}/python", "{root}", ".venv/bin/anabranch"),
        (None, "{bin}/python", "/somewhere/else", "{bin}/anabranch"),
        ("{root}/anabranch", "{bin}/python", "{root}", ".venv/bin/anabranch"),
        (None, "{root}/other/my python", "/", "'{root}/other/my python' -m anabranch.cli.main"),
    ],
    ids=["on the path", "not on the path", "from elsewhere", "another installation on the path", "no script installed"],
)
def test_the_command_is_shown_as_it_can_be_typed(
    tmp_path: Path, on_path: str | None, python: str, working: str, shown: str
) -> None:
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    for file in (bin / "anabranch", tmp_path / "anabranch"):
        file.touch()
    given = [each and each.format(bin=bin, root=tmp_path) for each in (on_path, python, working)]
    assert own_command(*given) == shown.format(bin=bin, root=tmp_path)  # type: ignore[arg-type]
