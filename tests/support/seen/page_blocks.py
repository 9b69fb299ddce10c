"""The code blocks of the documentation's pages."""

from __future__ import annotations

import itertools
import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_BLOCK = re.compile(
    r"^ *```(?P<language>\w*)\n(?P<fenced>.*?)^ *```$"  # also in the item of a list
    r"|(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n|\n(?= {4}))+)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    page: str
    """The page's path below the root of the repository."""
    language: str
    lines: tuple[str, ...]

    @property
    def commands(self) -> list[str]:
        """The lines to type: those after ``$`` if the block shows output too, otherwise all but comments."""
        typed = [line.removeprefix("$ ") for line in self.lines if line.startswith("$ ")]
        return typed or [line for line in self.lines if line.strip() and not line.startswith("# ")]


def pages() -> list[Path]:
    folders = [ROOT, *(path for path in ROOT.iterdir() if path.is_dir() and (path / "README.md").is_file())]
    below = {*(ROOT / "docs").rglob("*.md"), ROOT / "anabranch" / "testing" / "README.md"}
    return sorted({page for folder in folders for page in folder.glob("*.md")} | below)


def blocks() -> list[Block]:
    """The blocks of all pages, in the order of the pages."""
    return [
        Block(
            page.relative_to(ROOT).as_posix(),
            found["language"] or "",
            tuple(_lines(textwrap.dedent(found["fenced"] or found["indented"]), found["language"])),
        )
        for page in pages()
        for found in _BLOCK.finditer(page.read_text())
    ]


def _lines(text: str, language: str | None) -> list[str]:
    """The lines; a command that goes on after a backslash is one line."""
    return (text if language else join_lines(text)).splitlines()


def join_lines(text: str) -> str:
    """Join the lines of a shell that end with a backslash with the next lines."""
    return re.sub(r" *\\\n *", " ", text)


def calls(line: str) -> list[tuple[str, ...]]:
    """The arguments of each call of ``anabranch`` in a line of a shell; the call may be part of a pipeline."""
    if not re.search(r"(?:^|[\s/])anabranch [a-z]", line):
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    words = list(lexer)
    return [
        tuple(itertools.takewhile(lambda word: word != "|", words[place + 1 :]))
        for place, word in enumerate(words)
        if Path(word).name == "anabranch"
    ]
