"""Each numbered hole of KIP-253 that ordered resize closes has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"[Hh]oles? (\d+(?:(?:, | and )\d+)*)|test_hole_(\d+)_")
ROW = re.compile(r"^\| (\d+) \|", re.MULTILINE)
THIS = Path(__file__)


def listed() -> set[int]:
    """Return the numbers in the table of the documentation."""
    text = (ROOT / "docs" / "kips.md").read_text()
    return {int(number) for number in ROW.findall(text.partition("### Holes of the KIP")[2])}


def named(*folders: str) -> set[int]:
    """Return the numbers that Python files name, in docstrings and in test names, too."""
    texts = (path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py") if path != THIS)
    return {int(n) for text in texts for match in NAMED.finditer(text) for n in re.findall(r"\d+", match.group())}


def test_each_hole_has_a_test_that_names_it() -> None:
    assert listed() == set(range(1, 31))
    assert named("tests") == listed()


def test_every_hole_that_the_code_names_is_in_the_table() -> None:
    assert named("broker", "client", "controller", "protocol", "zk_schemas") <= listed()
