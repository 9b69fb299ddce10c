"""The groups that the cluster page names as furthest behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from anabranch import TopicPartition
from anabranch.console import watch as watch_module
from anabranch.console.app import _templates
from anabranch.console.furthest import Behind, furthest_behind
from anabranch.console.watch import COMMITTED_LATELY_S, Watch


def test_every_group_of_a_topic_that_is_far_behind_is_named() -> None:
    lags = {"idle": {"t": 300_000}, "billing": {"t": 30_000, "u": 500}, "fine": {"t": 999}}
    assert furthest_behind(lags, {"idle": "Stable", "billing": "Stable", "fine": "Stable"}, (), 1_000) == [
        Behind("idle", 300_000, ["t"], True),
        Behind("billing", 30_500, ["t", "u"], True),
    ]


@pytest.mark.parametrize(("state", "committing"), [("Stable", set()), ("Empty", {"billing"}), ("", set())])
def test_a_group_that_is_in_use_comes_before_an_idle_one(state: str, committing: set[str]) -> None:
    lags = {"idle": {"t": 300_000}, "billing": {"t": 30_000}}
    found = furthest_behind(lags, {"idle": "Empty", "billing": state}, committing, 1_000)
    assert [(one.group, one.has_members) for one in found] == [("billing", state != "Empty"), ("idle", False)]


def shown(behind: list[Behind], also: int = 0) -> str:
    parts: Any = _templates().globals["parts"]
    text = str(parts.furthest(behind, also))
    return "".join(part.split(">")[-1] for part in text.split("<"))


def test_one_group_far_behind_is_named_with_a_hint_to_its_page() -> None:
    assert (
        shown([Behind("idle", 1_001, ["t"], False)]).strip()
        == "Furthest behind: idle has no members, and 1,001 records of t to read. Its page says why."
    )


def test_several_groups_far_behind_are_named_and_the_rest_is_counted() -> None:
    behind = [Behind("a", 9_000, ["t", "u"], True), Behind("b", 8_000, ["t"], True)]
    assert shown(behind, 1).strip() == (
        "Furthest behind: a has 9,000 records of t and 1 other topic to read; b has 8,000 records of t to read;"
        " 1 more group is far behind. Their pages say why."
    )


class FakeAdmin:
    """Groups and their committed offsets in the partition t-0."""

    def __init__(self, **offsets: int) -> None:
        self.offsets = offsets

    async def list_groups(self) -> list[Any]:
        return [SimpleNamespace(group_id=group) for group in self.offsets]

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, Any]:
        return {TopicPartition("t", 0): SimpleNamespace(offset=self.offsets[group])}


@pytest.mark.trio
async def test_a_group_whose_offsets_change_is_in_use_for_a_while(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=trio.current_time))
    admin: Any = FakeAdmin(idle=5, billing=5)
    reader: Any = None
    watch = Watch(admin, reader)
    await watch.lags()
    assert watch.committing() == set()
    admin.offsets["billing"] = 6
    await trio.sleep(2)  # virtual time: the known offsets are not fresh any more
    await watch.lags()
    assert watch.committing() == {"billing"}
    await trio.sleep(COMMITTED_LATELY_S + 1)  # virtual time: nothing is committed
    await watch.lags()
    assert watch.committing() == set()


@pytest.mark.trio
async def test_the_lag_of_every_group_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = FakeAdmin(idle=5, billing=90)
    reader: Any = None
    watch = Watch(admin, reader)

    async def ends(_topics: object) -> dict[TopicPartition, int]:
        return {TopicPartition("t", 0): 100}

    async def starts(_led: object) -> dict[TopicPartition, int]:
        return {TopicPartition("t", 0): 20}

    monkeypatch.setattr(watch, "ends", ends)
    monkeypatch.setattr(watch, "starts_of", starts)
    topic: Any = SimpleNamespace(name="t")
    assert await watch.group_lags([topic]) == {"idle": {"t": 80}, "billing": {"t": 10}}, "expired records do not count"
    assert await watch.worst_lags([topic]) == {"t": (80, "idle")}
