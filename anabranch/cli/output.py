"""Tables for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, default=str))


def cell(value: Any) -> Any:
    """A value as a table shows it: lists with commas."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """A plain table; numbers to the right. Wide content is never cut when stdout is no terminal."""
    console = Console(soft_wrap=not Console().is_terminal)
    table = Table(title=title, box=None, pad_edge=False, header_style="bold")
    body = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in body:
        table.add_row(*["-" if cell is None else str(cell) for cell in row])
    console.print(table, width=None if console.is_terminal else 10_000)
