"""The order of a table's rows, as the query of its page names it. Pure.

The browser sorts a table whose rows are all on the page by the same rules (``console.js``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from anabranch.console.query import BadQueryError, Query

Row = TypeVar("Row")
Columns: TypeAlias = Mapping[str, Callable[[Row], Any]]
"""By the name of a column, the value by which its rows are ordered: all numbers or all texts; None is unknown."""
ROWS = 50
"""The largest number of rows of a table on one page."""


class Order(NamedTuple):
    """``columns`` can be sorted by; with ``column`` None the rows keep the order in which the page has them."""

    column: str | None
    descending: bool
    columns: frozenset[str]


def order_of(query: Query, columns: Iterable[str], but: Iterable[str] = ()) -> Order:
    """The order by ``sort``, such as ``rate`` or ``-rate`` (descending).

    The page cannot sort by the columns in ``but`` now: these give the page's own order. Raises ``BadQueryError``.
    """
    text = query.get("sort", "")
    column, known, able = text.removeprefix("-"), sorted(columns), frozenset(columns) - frozenset(but)
    if text and column not in known:
        raise BadQueryError(f"sort is {text!r}: one of {', '.join(known)} is needed, with - before it for descending")
    return Order(column if column in able else None, text.startswith("-"), able)


def in_order(rows: Iterable[Row], order: Order, columns: Columns[Row]) -> list[Row]:
    """The rows in this order. Equal rows stay as they are; unknown values are last, also if descending."""
    rows = list(rows)
    if order.column is None:
        return rows
    value = columns[order.column]
    known = [row for row in rows if value(row) is not None]
    unknown = [row for row in rows if value(row) is None]
    return sorted(known, key=lambda row: _comparable(value(row)), reverse=order.descending) + unknown


def _comparable(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class PageOfRows(NamedTuple, Generic[Row]):
    """The rows of one page of a table, and the values for the links to its other pages."""

    rows: list[Row]
    values: dict[str, int]


def page_of(rows: list[Row], query: Query) -> PageOfRows[Row]:
    """The rows of page ``page``. Raises ``BadQueryError``."""
    pages = max(1, -(-len(rows) // ROWS))
    number = min(max(query.number("page", 1), 1), pages)
    values = {"matching": len(rows), "page": number, "pages": pages}
    return PageOfRows(rows[(number - 1) * ROWS : number * ROWS], values)


def containing(names: Iterable[str], query: Query) -> list[str]:
    """The names that contain ``q``, in any case of letters."""
    wanted = query.get("q", "").strip().lower()
    return [name for name in names if wanted in name.lower()]
