"""The pages of groups: partitions without a commit, owners during a rebalance, the order of the list."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

import pytest
import trio
from markupsafe import escape
from trio.testing import MockClock

from anabranch import GroupDescription, GroupListing, TopicPartition
from anabranch.client.admin.types import MemberDescription
from anabranch.client.cluster import Node
from anabranch.console import watch as watch_module
from anabranch.console.app import Console, ConsoleConfig
from anabranch.console.watch import RANKED_S, Watch
from tests.unit.cli.fake_admin import FakeAdmin
from tests.unit.console.test_http import ask

pytestmark = pytest.mark.trio


def member(name: str, *partitions: int) -> MemberDescription:
    owned = tuple(TopicPartition("t", p) for p in partitions)
    return MemberDescription(f"{name}-6a1", None, name, "/10.0.0.1", owned)


class Groups(FakeAdmin):
    """Groups in ``state``."""

    state = "Stable"

    async def list_groups(self) -> list[GroupListing]:
        return [GroupListing(group, "consumer", self.state) for group in self.groups]

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        node = Node(1, "localhost", 9092)
        return {g: GroupDescription(g, self.state, "consumer", "range", self.members, node) for g in group_ids}


def served(admin: Any) -> Any:
    watch = Watch(admin, admin)
    console = Console(watch, ConsoleConfig("localhost:9092")).app()

    async def page(path: str) -> str:
        watch._seen.clear()  # every page sends its requests again
        answer = await ask(console, path)
        assert answer.status == 200, answer.text
        return answer.text

    return page


def owners(page: str) -> list[str]:
    """The owners of the partitions, by the page's rows."""
    cells = re.findall(r'<td data-label="member"[^>]*>(.*?)</td>', page)
    return [re.sub("<[^>]*>", "", cell).strip() for cell in cells]


def cells(page: str, label: str) -> list[str]:
    return re.findall(rf'<td data-label="{label}"[^>]*>([^<]*)</td>', page)


async def test_the_partitions_without_a_commit_are_shown_with_their_records() -> None:
    """Partitions 1, 2 and 3 have no commit. Partitions 2 and 3 have no owner. Partition 2 has no leader."""
    ends = {0: (0, 60), 1: (10, 310), 3: (0, 100)}
    admin = Groups(ends=ends, groups={"g": {0: 60}}, members=(member("app", 0, 1),), without_leader=frozenset({2}))
    page = await served(admin)("/groups/g")
    assert "3 partitions of its topics have no commit. They hold 400 records, without those of 1 that did not" in page
    assert "It has read everything of the partitions with a commit." in page
    assert "It is not behind" not in page
    assert (cells(page, "committed"), cells(page, "to read")) == (
        ["none", "none", "60"],
        ["at most 300", "at most 100", "0"],
    )


async def test_a_group_with_a_commit_in_every_partition_has_no_note_of_others() -> None:
    page = await served(Groups(ends={0: (0, 60)}, groups={"g": dict.fromkeys(range(4), 0)}))("/groups/g")
    assert "no commit" not in page and "at most" not in page


@pytest.mark.parametrize(
    "name", ["two\nlines", "end\n", "\r\n", "a/b", "/a//", "50%", "%2F", "a?b=c", "a#b", "a b", "ü", "a&b", "..", "<b>"]
)
async def test_a_group_with_any_id_has_a_page_and_links_to_it(name: str) -> None:
    page = served(Groups(ends={0: (0, 60)}, groups={name: {0: 50}}))

    def title(shown: str) -> list[str]:
        return re.findall(r"<h1[^>]*>(.*?)</h1>", shown, re.S)

    shown = await page("/groups/" + quote(name, safe=""))
    assert title(shown) == [str(escape(name))]
    (link,) = re.findall(r'<a id="group-[^"]*" href="([^"]+)"', await page("/groups"))
    assert title(await page(unescape(link))) == title(shown)
    (live,) = re.findall(r'data-path="([^"]+)"', shown)
    assert unquote(unescape(live).partition("?")[0]) == "/groups/" + name


async def test_a_rebalance_shows_the_former_owners() -> None:
    """Partition 1 has no commit: during the rebalance only the console knows that the partition has an owner."""
    admin = Groups(ends={0: (0, 60)}, groups={"g": {0: 50, 2: 0}}, members=(member("app-1", 0), member("app-2", 1)))
    page = served(admin)
    assert owners(await page("/groups/g")) == ["app-1 10.0.0.1", "app-2 10.0.0.1", "nobody reads it"]
    admin.state, admin.members = "PreparingRebalance", (member("app-1"), member("app-2"))
    shown = await page("/groups/g")
    was = ["was app-1 10.0.0.1", "was app-2 10.0.0.1", "unknown until the rebalance ends"]
    assert owners(shown) == was and "when this console last saw the group" in shown
    admin.state = "CompletingRebalance"
    assert owners(await page("/groups/g")) == was
    admin.state, admin.members = "Stable", (member("app-3", 0, 1),)
    shown = await page("/groups/g")
    assert owners(shown) == ["app-3 10.0.0.1", "app-3 10.0.0.1", "nobody reads it"] and "last saw" not in shown


async def test_owners_that_were_never_seen_are_unknown() -> None:
    admin = Groups(ends={0: (0, 60)}, groups={"g": {0: 50}}, members=(member("app-1"),))
    admin.state = "PreparingRebalance"
    shown = await served(admin)("/groups/g")
    assert owners(shown) == ["unknown until the rebalance ends"] and "last saw" not in shown


async def test_a_group_that_its_members_have_left_has_no_former_owners() -> None:
    admin = Groups(ends={0: (0, 60)}, groups={"g": {0: 50}}, members=(member("app-1", 0),))
    page = served(admin)
    await page("/groups/g")
    admin.state, admin.members = "Empty", ()
    assert owners(await page("/groups/g")) == ["nobody reads it"]
    admin.state, admin.members = "PreparingRebalance", (member("app-2"),)
    assert owners(await page("/groups/g")) == ["unknown until the rebalance ends"]


def listed(page: str) -> list[str]:
    """Return the groups in the order of the list, with their lags."""
    names = re.findall(r'<a id="group-([^"]+)" href="/groups/', page)
    return [f"{name} {lag}" for name, lag in zip(names, cells(page, "records to read"), strict=True)]


async def test_the_groups_furthest_behind_come_first_and_unknown_lags_last() -> None:
    """``d`` has committed nothing. ``a`` and ``c`` have the same lag."""
    groups = {"a": {0: 90}, "b": {0: 10, 1: 0}, "c": {0: 90}, "d": {}, "e": {0: 100}}
    page = served(Groups(ends={0: (0, 100), 1: (0, 5)}, groups=groups))
    shown = await page("/groups")
    assert listed(shown) == ["b 95", "a 10", "c 10", "e 0", "d -"]
    assert "Most records to read first" in shown
    shown = await page("/groups?sort=group")
    assert listed(shown) == ["a 10", "b 95", "c 10", "d -", "e 0"]
    assert '<input type="hidden" name="sort" value="group">' in shown, "a search keeps the order"
    shown = await page("/groups?sort=lag")
    assert listed(shown) == ["e 0", "c 10", "a 10", "b 95", "d -"] and "Fewest records to read first" in shown


async def test_an_unknown_order_is_refused() -> None:
    admin: Any = Groups(groups={})
    app = Console(Watch(admin, admin), ConsoleConfig("localhost:9092")).app()
    answer = await ask(app, "/groups?sort=size")
    assert answer.status == 400 and "one of group, lag, state, topics is needed" in answer.text


async def test_live_updates_keep_the_order_for_a_while(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lags change with the commits at once, and the order changes later. Until then a new group is last."""
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=trio.current_time, time=trio.current_time))
    admin: Any = Groups(ends={0: (0, 100)}, groups={"a": {0: 20}, "b": {0: 50}})
    app = Console(Watch(admin, admin), ConsoleConfig("localhost:9092")).app()
    assert listed((await ask(app, "/groups")).text) == ["a 80", "b 50"]
    admin.groups = {"a": {0: 90}, "b": {0: 50}, "c": {0: 0}}
    await trio.sleep(RANKED_S / 2)  # virtual time: the lags are not fresh any more
    assert listed((await ask(app, "/groups")).text) == ["a 10", "b 50", "c 100"]
    await trio.sleep(RANKED_S)  # virtual time: the order is not fresh any more
    assert listed((await ask(app, "/groups")).text) == ["c 100", "b 50", "a 10"]


async def test_pages_follow_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 groups on 20 pages; each group has a smaller lag than the previous group."""
    groups = {f"g-{n:03}": {0: n} for n in range(1_000)}
    page = served(Groups(ends={0: (0, 1_000)}, groups=groups))
    shown = await page("/groups?page=20")
    assert listed(shown)[-1] == "g-999 1" and len(listed(shown)) == 50
    assert "1,000 groups, page 20 of 20" in shown
    monkeypatch.setattr(watch_module, "MOST_RANKED", 0)
    shown = await page("/groups")
    assert "too many partitions to compare" in shown and listed(shown)[0] == "g-000 1,000"


async def test_the_preview_of_a_reset_shows_the_offsets_before_and_after_it() -> None:
    admin = Groups(ends=dict.fromkeys(range(4), (5, 60)), groups={"g": {0: 50}})
    page = await served(admin)("/change/reset?group=g&topic=t&to=earliest&partitions=0,1")
    assert (cells(page, "from"), cells(page, "to")) == (["50", "-"], ["5", "5"])


async def test_a_group_whose_id_is_empty_has_a_page() -> None:
    admin = Groups()
    admin.groups = {"": {}, "g": {}}
    page = served(admin)
    assert "Stable" in await page("/groups/") and "/groups/g" not in await page("/groups/")
    admin.groups = {"g": {}}
    assert "/groups/g" in await page("/groups/")
