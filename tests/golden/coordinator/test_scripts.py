"""Running a script of this folder returns it unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.coordinator.script import run

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_running_a_script_returns_it_unchanged(path: Path) -> None:
    text = path.read_text()
    assert run(text) == text


def test_the_scripts_are_found() -> None:
    assert len(SCRIPTS) >= 10
