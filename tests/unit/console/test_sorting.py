"""The order of the rows of tables: by the query, page by page."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from anabranch.console.app import Console, ConsoleConfig, _templates
from anabranch.console.query import BadQueryError, Query
from anabranch.console.rows import ConfigRow
from anabranch.console.sorting import ROWS, in_order, order_of, page_of
from anabranch.console.tables import OF_CONFIGS
from anabranch.console.watch import Watch
from tests.unit.cli.fake_admin import FakeAdmin
from tests.unit.console.test_group_pages import cells
from tests.unit.console.test_http import HOSTILE, ask

COLUMNS: Any = {"name": lambda row: row[0], "size": lambda row: row[1]}
ROWS_OF_TABLE = [("b", 10), ("a", 9), ("C", None), ("d", 9)]


def names(sort: str) -> str:
    return "".join(row[0] for row in in_order(ROWS_OF_TABLE, order_of(Query(sort), COLUMNS), COLUMNS))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "baCd"),
        ("sort=", "baCd"),
        ("sort=name", "abCd"),
        ("sort=-name", "dCba"),
        ("sort=size", "adbC"),
        ("sort=-size", "badC"),
    ],
)
def test_rows_are_sorted_with_equal_ones_as_they_are_and_unknown_ones_last(query: str, expected: str) -> None:
    assert names(query) == expected


@pytest.mark.parametrize("sort", ["x", "--name", "name,size", "-", HOSTILE])
def test_an_unknown_column_is_refused(sort: str) -> None:
    with pytest.raises(BadQueryError, match="one of name, size is needed"):
        order_of(Query(f"sort={sort}".replace("&", "%26")), COLUMNS)


def test_a_column_that_cannot_be_sorted_now_gives_the_order_of_the_page() -> None:
    order = order_of(Query("sort=-size"), COLUMNS, but=("size",))
    assert (order.column, order.columns) == (None, frozenset({"name"}))


def test_a_page_is_taken_from_the_sorted_rows() -> None:
    paged = page_of(list(range(ROWS + 1)), Query("page=2"))
    assert (paged.rows, paged.values) == ([ROWS], {"matching": ROWS + 1, "page": 2, "pages": 2})
    assert page_of([], Query("page=9")).rows == []


def test_the_order_of_hidden_values_shows_nothing_of_them() -> None:
    class Entry:
        name, value, sensitive = "password", "secret", True

    entry: Any = Entry
    assert OF_CONFIGS["value"](ConfigRow(entry, "", [])) == "hidden"


def test_the_head_of_a_sorted_column_says_so_and_its_button_turns_the_order_round() -> None:
    parts: Any = _templates().globals["parts"]
    for query, column, expected in (
        ("", "name", 'th><button form="sort" name="sort" id="sort-name" value="name">'),
        ("", "size", 'value="-size">'),
        ("sort=name", "name", 'aria-sort="ascending"><button form="sort" name="sort" id="sort-name" value="-name">'),
        ("sort=-name", "name", 'aria-sort="descending"><button form="sort" name="sort" id="sort-name" value="name">'),
        ("sort=-size", "size", 'aria-sort="descending"><button form="sort" name="sort" id="sort-size" value="size">'),
    ):
        assert expected in parts.head(order_of(Query(query), COLUMNS), column, "label", column == "size")
    none = order_of(Query(""), COLUMNS, but=("size",))
    assert "<button" not in parts.head(none, "size", "size", True)


class Many(FakeAdmin):
    """120 topics; the first ones have the most partitions."""

    async def list_topics(self) -> Any:
        (listing,) = await super().list_topics()
        return [replace(listing, name=f"t-{n:03}") for n in range(120)]

    async def describe_topics(self, names: Any) -> Any:
        found = {}
        for name in names:
            self.undeleted = self.total = 121 - int(name[2:])
            (found[name],) = (await super().describe_topics([name])).values()
            found[name] = replace(found[name], name=name)
        return found


def listed(page: str) -> list[str]:
    return re.findall(r'<a id="topic-(t-\d+)"', page)


@pytest.mark.trio
async def test_a_table_of_many_pages_is_sorted_before_it_is_cut() -> None:
    """The topics have 7,260 partitions in all, so the page cannot sort them by rate."""
    admin: Any = Many(ends=dict.fromkeys(range(200), (0, 5)))
    app = Console(Watch(admin, admin), ConsoleConfig("localhost:9092")).app()
    page = (await ask(app, "/topics?sort=partitions&q=t-")).text
    assert listed(page)[:2] == ["t-119", "t-118"] and "data-whole" not in page
    (link,) = re.findall(r'<a id="next" href="([^"]+)"', page)
    assert link == "/topics?sort=partitions&amp;q=t-&amp;page=2"
    assert listed((await ask(app, unescape(link))).text)[0] == "t-069"
    form = page.partition('<form id="sort"')[2].partition("</form>")[0]
    assert 'name="q" value="t-"' in form and 'name="sort"' not in form and "page" not in form
    page = (await ask(app, "/topics?sort=-rate")).text
    assert listed(page)[0] == "t-000" and 'id="sort-rate"' not in page
    page = (await ask(app, "/topics?sort=-lag&q=t-1")).text
    assert 'id="sort-rate"' in page, "these topics have fewer partitions"


@pytest.mark.trio
async def test_a_page_that_holds_the_whole_table_gives_the_values_to_sort_by() -> None:
    admin: Any = FakeAdmin(ends={0: (0, 1_000), 1: (7, 20)})
    app = Console(Watch(admin, admin), ConsoleConfig("localhost:9092")).app()
    page = (await ask(app, "/topics/t?sort=-to")).text
    assert cells(page, "to")[:2] == ["1,000", "20"] and "<table data-whole>" in page
    assert 'aria-sort="descending"' in page


@pytest.mark.trio
async def test_names_in_the_query_are_escaped_in_the_form() -> None:
    admin: Any = FakeAdmin()
    app = Console(Watch(admin, admin), ConsoleConfig("localhost:9092")).app()
    page = (await ask(app, "/topics?q=%3Cscript%3E%22&%3Cb%3E%22=1")).text
    assert '<script>"' not in page and '<b>"' not in page
