"""``topics describe`` and ``groups describe`` for a topic that withholds records, with a fake admin client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anabranch import ErrorCode, KafkaError
from anabranch.client.admin.types import WithheldFor, WithheldPartition
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_admin import SHRUNK, FakeAdmin

HOLD = {"ordered.delivery.stock.consumers": "withhold"}
SLOW = WithheldFor("slow", 5, 0, 40, 20, 12_400, is_let_go=False)
MUTE = WithheldFor("mute", 5, 0, -1, -1, 300_000, is_let_go=True)


def admin(**more: Any) -> FakeAdmin:
    state = {
        "configs": HOLD,
        "groups": {"slow": {5: 20}, "mute": {}},
        "found_holds": {0: WithheldPartition(2, 2, []), 1: WithheldPartition(2, 1, [MUTE, SLOW])},
        **more,
    }
    return FakeAdmin(**{**SHRUNK, **state})


def test_topics_describe_shows_the_groups_that_hold_stock_consumers_of_a_partition(run: Run) -> None:
    _, out, _ = run(admin(), "topics", "describe", "t")
    lines = [line for line in out.splitlines() if "stock consumers" in line]
    assert lines == [
        "partition 1 from epoch 2 is withheld from stock consumers: group mute must first process partition 5 until "
        "the end of epoch 0 (without a commit, for 300 s, no longer awaited)",
        "partition 1 from epoch 2 is withheld from stock consumers: group slow must first process partition 5 until "
        "offset 40 (at offset 20, for 12 s)",
    ]


def test_a_partition_that_no_group_holds_any_more_is_shown_as_held_before(run: Run) -> None:
    _, out, _ = run(admin(found_holds={1: WithheldPartition(2, 2, [MUTE])}), "topics", "describe", "t")
    assert "partition 1 from epoch 3 was withheld: group mute" in out


def test_groups_describe_shows_the_partitions_that_the_group_holds(run: Run) -> None:
    _, out, _ = run(admin(), "groups", "describe", "slow")
    assert (
        "partitions withheld from stock consumers because of this group:\n  t: partition 1 from epoch 2 is withheld"
        in out
    )
    assert "mute" not in out


def test_held_partitions_are_listed_as_json(run: Run) -> None:
    _, out, _ = run(admin(), "topics", "describe", "t", "--json")
    found = json.loads(out)[0]["withheld"]
    assert found[1] == {"partition": 1, "from_epoch": 2, "is_withheld": True, **SLOW._asdict()}
    _, out, _ = run(admin(), "groups", "describe", "slow", "--json")
    assert json.loads(out)[0]["withheld"] == [{"topic": "t", **found[1]}]


@pytest.mark.parametrize(
    "state",
    [{"configs": {}}, {"version": 0}, {"found_holds": KafkaError(ErrorCode.UNSUPPORTED_VERSION, "an older broker")}],
    ids=["not withheld", "not resized", "an older broker"],
)
def test_describe_mentions_no_hold_where_none_exists_or_is_known(run: Run, state: dict[str, Any]) -> None:
    status, out, _ = run(admin(**state), "topics", "describe", "t")
    assert status == 0 and "withheld" not in out
