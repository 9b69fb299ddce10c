"""Tables for people, JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_BOLD, _PLAIN = "\033[1m", "\033[0m"


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, default=str))


def cell(value: Any) -> Any:
    """A value as a table shows it: lists with commas, nothing as a dash."""
    if value is None:
        return "-"
    return ",".join(map(str, value)) if isinstance(value, list) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A plain table; columns of numbers to the right. Nothing is ever cut: a terminal wraps what is too wide for it."""
    body = [list(row) for row in rows]
    numeric = [_are_numbers([row[index] for row in body]) for index in range(len(columns))]
    lines = [list(columns), *([str(cell(value)) for value in row] for row in body)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for number, line in enumerate(lines):
        padded = zip(line, widths, numeric, strict=True)
        text = "  ".join(item.rjust(width) if right else item.ljust(width) for item, width, right in padded).rstrip()
        print(f"{_BOLD}{text}{_PLAIN}" if number == 0 and sys.stdout.isatty() else text)


def _are_numbers(values: list[Any]) -> bool:
    """Whether there are numbers and nothing else but gaps."""
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)
