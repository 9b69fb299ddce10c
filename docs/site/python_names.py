"""Writes the tables of ``docs/python-api.md``, for readers of a checkout: ``python docs/site/python_names.py``.

Each section of the page has ``::: anabranch.NAME`` for the site, and a table of the first paragraphs of the docstrings.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import anabranch

PAGE = Path(__file__).resolve().parents[1] / "python-api.md"
_SECTION = re.compile(r"^(?=## )", re.MULTILINE)
_NAME = re.compile(r"^::: anabranch\.(\w+)", re.MULTILINE)
_TABLE = re.compile(r"^\|.*\n", re.MULTILINE)


def render(page: str) -> str:
    """The page with its tables made again."""
    return "".join(_with_table(section) for section in _SECTION.split(page))


def _with_table(section: str) -> str:
    names = _NAME.findall(section)
    if not names:
        return section
    rows = "".join(f"| `{name}` | {_first_paragraph(name)} |\n" for name in names)
    heading, _, rest = _TABLE.sub("", section).partition("\n")
    return f"{heading}\n| name | |\n|---|---|\n{rows}\n{rest.lstrip()}"


def _first_paragraph(name: str) -> str:
    text = inspect.getdoc(getattr(anabranch, name)) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
