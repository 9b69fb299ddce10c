"""``topics describe``, ``groups describe`` and other views across a resize, with a fake admin client."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from anabranch import ErrorCode, KafkaError, TopicPartition
from anabranch.client.admin.types import MemberDescription
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


def test_groups_describe_shows_waits_where_no_position_is_known(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-584: ``group_coordinator`` was forced below level 2."""
    admin = FakeAdmin(**SHRUNK, groups={"g": {1: 140, 5: 20}}, positions={5: 40})

    async def refuse(_group: str, _partitions: Iterable[TopicPartition]) -> Any:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    monkeypatch.setattr(admin, "group_positions", refuse)
    status, out, _ = run(admin, "groups", "describe", "g", "--json")
    assert status == 0
    (group,) = json.loads(out)
    assert [(row["partition"], row["committed_offset"]) for row in group["partitions"]] == [
        (1, 140),
        (4, None),
        (5, 20),
    ]
    waits = {(row["partition"], row["waits_for"]): row["position"] for row in group["waits"]}
    assert waits[1, 5] is None


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


def test_offsets_of_a_group_with_members_are_refused_with_the_reason(run: Run) -> None:
    reset = ("groups", "reset-offsets", "g", "--topic", "t", "--to-earliest")
    state = {"groups": {"g": {0: 3}}, "ends": dict.fromkeys(range(4), (2, 10))}
    idle = FakeAdmin(**state)
    assert run(idle, *reset)[0] == 0
    assert idle.calls[-1] == ("offsets", "g", dict.fromkeys([TopicPartition("t", p) for p in range(4)], 2))
    busy = FakeAdmin(**state, members=(MemberDescription("m-1", None, "c", "/127.0.0.1", ()),))
    status, _, err = run(busy, *reset)
    assert status == 1 and "g has members" in err


def test_no_table_is_cut_on_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    admin = FakeAdmin(**SHRUNK, groups={"a-group-with-a-name-of-some-length": {0: 90}})
    _, out, _ = run(admin, "groups", "list")
    lines = out.splitlines()
    assert lines[0].split() == ["group", "protocol_type", "state"]
    assert lines[1].startswith("a-group-with-a-name-of-some-length  ")
    assert len({line.index(word) for line, word in zip(lines, ["protocol_type", "consumer"], strict=True)}) == 1


def test_under_replicated_partitions_are_listed_and_counted(run: Run) -> None:
    admin = FakeAdmin(without_leader=frozenset({3}))
    _, out, _ = run(admin, "topics", "list", "--under-replicated")
    assert [line.split() for line in out.splitlines()] == [
        ["topic", "partition", "leader", "replicas", "isr"],
        ["t", "3", "-", "1,2"],
    ]
    _, out, _ = run(FakeAdmin(), "topics", "list", "--under-replicated")
    assert out == "every replica is in sync\n"
    _, out, _ = run(admin, "cluster", "--json")
    assert json.loads(out) == {
        "cluster_id": "fake",
        "controller": 1,
        "standby_controllers": None,
        "brokers": [1],
        "topics": 1,
        "partitions": 4,
        "without_leader": 1,
        "under_replicated": 1,
    }
    _, out, _ = run(admin, "brokers", "--tsv")
    assert out.splitlines()[1].split("\t") == ["1", "localhost", "9092", "", "3", "4", "3"]


def test_log_dirs_shows_the_topics_that_exist_and_names_the_others(run: Run) -> None:
    admin = FakeAdmin(retained={})
    status, out, err = run(admin, "log-dirs", "t", "nope", "--tsv")
    assert (status, len(out.splitlines())) == (1, 2)
    assert "topic nope does not exist" in err
    status, out, _ = run(admin, "log-dirs", "nope", "--tsv")
    assert (status, out) == (1, "")


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
