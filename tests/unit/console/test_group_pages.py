"""The pages of groups: partitions without a commit, owners during a rebalance, the order of the list."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from anabranch import GroupDescription, GroupListing, TopicPartition
from anabranch.client.admin.types import MemberDescription
from anabranch.client.net.cluster import Node
from anabranch.console.app import Console, ConsoleConfig
from anabranch.console.watch import Watch
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
        watch._seen.clear()  # every page is requested anew
        answer = await ask(console, path)
        assert answer.status == 200, answer.text
        return answer.text

    return page


def owners(page: str) -> list[str]:
    """The owners of the partitions, by the page's rows."""
    cells = re.findall(r'<td data-label="member">(.*?)</td>', page)
    return [re.sub("<[^>]*>", "", cell).strip() for cell in cells]


def cells(page: str, label: str) -> list[str]:
    return re.findall(rf'<td data-label="{label}"[^>]*>([^<]*)</td>', page)


async def test_the_partitions_without_a_commit_are_shown_with_their_records() -> None:
    """Partitions 1 and 3 have no commit; nobody owns 3. The leader of 2 is away."""
    ends = {0: (0, 60), 1: (10, 310), 3: (0, 100)}
    admin = Groups(ends=ends, groups={"g": {0: 60}}, members=(member("app", 0, 1),), without_leader=frozenset({2}))
    page = await served(admin)("/groups/g")
    assert "3 partitions of its topics have no commit. They hold 400 records, without those of 1 that did not" in page
    assert "It has read everything of the partitions with a commit." in page
    assert "It is not behind" not in page
    assert (cells(page, "committed"), cells(page, "to read")) == (["none", "60"], ["at most 300", "0"])


async def test_a_group_with_a_commit_in_every_partition_has_no_note_of_others() -> None:
    page = await served(Groups(ends={0: (0, 60)}, groups={"g": dict.fromkeys(range(4), 0)}))("/groups/g")
    assert "no commit" not in page and "at most" not in page


async def test_a_rebalance_shows_the_former_owners() -> None:
    """Partition 1 has no commit: during the rebalance only the console knows that it has an owner."""
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
