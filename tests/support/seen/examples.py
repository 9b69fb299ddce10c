"""Example programs with names of topics and groups that no other test has."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def renamed(directory: Path, example: str, **names: str) -> Path:
    """A copy of the example in which these constants have other values."""
    text = (EXAMPLES / example).read_text()
    for value, other in names.items():
        assert text.count(f'"{value.replace("_", "-")}"') == 1
        text = text.replace(f'"{value.replace("_", "-")}"', repr(other))
    copy = directory / example
    copy.write_text(text)
    return copy
