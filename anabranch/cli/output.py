"""Tables for people, JSON and tab-separated lines for scripts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

_BOLD, _PLAIN = "\033[1m", "\033[0m"
Record: TypeAlias = tuple[Any, ...]
"""A named tuple."""
TOTAL = "total"
RED, YELLOW = "\033[31m", "\033[33m"


def plain(value: Any) -> Any:
    """The value as JSON has it: a record is an object of its fields. ``from_`` is written ``from``."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name.rstrip("_"): plain(field) for name, field in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: plain(field) for name, field in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(plain(value), indent=2, default=str))


def cell(value: Any) -> Any:
    """A value as a table shows it: lists with commas, a missing value as a dash."""
    if value is None:
        return "-"
    return ",".join(map(str, value)) if isinstance(value, list) else value


def print_tsv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print the names, then a line for each row, with tabs between; a missing value is empty."""
    for row in [columns, *rows]:
        print("\t".join("" if value is None else _escaped(str(cell(value))) for value in row))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def coloured(text: str, colour: str) -> str:
    """The text in a colour, if stdout is a terminal with colours (not ``TERM=dumb``) and NO_COLOR is not set."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return f"{colour}{text}{_PLAIN}" if colour and not refused and sys.stdout.isatty() else text


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], colour: Callable[[Sequence[Any]], str] = lambda _: ""
) -> None:
    """Print a plain table; columns of numbers are aligned to the right. No cell is cut: a terminal wraps long lines."""
    body = [list(row) for row in rows]
    numeric = [_are_numbers([row[index] for row in body]) for index in range(len(columns))]
    lines = [list(columns), *([str(cell(value)) for value in row] for row in body)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for number, line in enumerate(lines):
        padded = zip(line, widths, numeric, strict=True)
        text = "  ".join(item.rjust(width) if right else item.ljust(width) for item, width, right in padded).rstrip()
        print(coloured(text, _BOLD if number == 0 else colour(body[number - 1])))


def _are_numbers(values: list[Any]) -> bool:
    """Whether all values are numbers. Missing values, and the word in the line of totals, do not count."""
    given = [value for value in values if value is not None and value != TOTAL]
    return bool(given) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)


def print_rows(
    rows: Sequence[Record],
    columns: Sequence[str],
    *,
    as_json: bool,
    as_tsv: bool,
    none: str = "",
) -> None:
    """Print records in the format that the user chose. ``none`` is printed instead of an empty table."""
    cells = [[row[column] for column in columns] for row in plain(rows)]
    if as_json:
        print_json(rows)
    elif as_tsv:
        print_tsv(columns, cells)
    elif rows or not none:
        print_table(columns, cells)
    else:
        print(none)
