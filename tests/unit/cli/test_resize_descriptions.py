"""``topics describe``, ``groups describe`` and other views across a resize, with a fake admin client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_admin import SHRUNK, FakeAdmin


def test_a_group_that_cannot_be_read_hides_no_topic(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe_groups(admin: FakeAdmin, group_ids: Any) -> Any:
        raise ValueError("consumer protocol: no version")

    monkeypatch.setattr(FakeAdmin, "describe_groups", describe_groups)
    status, out, _ = run(FakeAdmin(**SHRUNK, groups={"g": {5: 25}, "odd": {}}), "topics", "describe", "t")
    assert (status, "group g has 15 to read" in out, "odd" in out) == (0, True, False)


WAITS = {"ordered.delivery.retention.waits": "true"}


@pytest.mark.parametrize(
    ("commits", "owner_reports", "shown"),
    [
        ({1: 150, 5: 40}, {1: False, 5: False}, False),
        ({1: 150, 5: 20}, {1: False, 5: False}, False),
        ({1: 150, 5: 20}, {1: True, 5: False}, True),
        ({1: 150, 5: 40}, {1: True, 5: False}, False),
        ({1: 150, 5: 40}, {1: True, 5: True}, True),
    ],
    ids=["all read", "stock clients wait for nothing", "ours waits for a stock client", "the commit", "the report"],
)
def test_the_position_of_an_owner_that_does_not_report_is_its_commit(
    run: Run, commits: dict[int, int], owner_reports: dict[int, bool], shown: bool
) -> None:
    admin = FakeAdmin(**SHRUNK, groups={"g": {0: 80, 4: 30, **commits}}, positions={0: 80, 4: 30})
    admin.owner_reports = {0: True, 4: True, **owner_reports}
    out = run(admin, "groups", "describe", "g")[1]
    assert ("partition 1 from epoch 2 waits for partition 5" in out) == shown


@pytest.mark.parametrize(
    ("kept_from", "configs", "expiring"),
    [
        ({5: 26}, {}, True),
        ({5: 25}, {}, False),
        ({}, {}, True),
        ({}, {"retention.ms": "-1"}, False),
        ({}, {"cleanup.policy": "compact"}, False),
    ],
    ids=["an unread record", "only read records", "all records", "nothing expires", "nothing is deleted"],
)
def test_hole_22_groups_describe_shows_what_is_about_to_expire(
    run: Run, kept_from: dict[int, int], configs: dict[str, str], expiring: bool
) -> None:
    positions = {0: 80, 1: 150, 4: 30, 5: 25}
    admin = FakeAdmin(**SHRUNK, groups={"g": {1: 140}}, positions=positions, kept_from=kept_from, configs=configs)
    _, out, _ = run(admin, "groups", "describe", "g", "--json")
    (wait,) = json.loads(out)[0]["waits"]
    assert (wait["waits_for"], wait["position"], wait["until"], wait["expiring"]) == (5, 25, 40, expiring)


def test_hole_22_retention_that_waits_delays_the_expiry_warning(run: Run) -> None:
    asked = []
    for configs in ({}, WAITS):
        admin = FakeAdmin(**SHRUNK, groups={"g": {1: 140}}, positions={1: 150, 5: 25}, configs=configs)
        run(admin, "groups", "describe", "g")
        asked.append(admin.asked_times[0])
    day_ms = 86_400_000
    assert day_ms - 60_000 < asked[0] - asked[1] <= day_ms


def test_no_table_is_cut_on_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    admin = FakeAdmin(**SHRUNK, groups={"a-group-with-a-name-of-some-length": {0: 90}})
    _, out, _ = run(admin, "groups", "list")
    lines = out.splitlines()
    assert lines[0].split() == ["group", "protocol_type", "state"]
    assert lines[1].startswith("a-group-with-a-name-of-some-length  ")
    assert len({line.index(word) for line, word in zip(lines, ["protocol_type", "consumer"], strict=True)}) == 1


def test_a_topic_of_many_partitions_is_summed_up(run: Run) -> None:
    many = 10_000
    ends = dict.fromkeys(range(many), (0, 7))
    away = frozenset(range(100, 130))
    admin = FakeAdmin(initial=many, undeleted=many, total=many, ends=ends, without_leader=away)
    _, out, _ = run(admin, "topics", "describe", "t")
    lines = out.splitlines()
    assert len(lines) < 40
    assert [line.split() for line in lines[1:5]] == [
        ["leader", "partitions", "in_sync", "marked", "offsets"],
        ["1", "9970", "9970", "0", "69790"],
        ["-", "30", "0", "0", "0"],
        ["total", "10000", "9970", "0", "69790"],
    ]
    assert "30 partitions have replicas out of sync or no leader; the first 20:" in out
    _, out, _ = run(admin, "topics", "describe", "t", "--every-partition")
    assert len(out.splitlines()) == many + 2
    _, out, _ = run(admin, "topics", "describe", "t", "--tsv")
    assert len(out.splitlines()) == many + 1
