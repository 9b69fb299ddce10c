"""``topics describe``, ``groups describe`` and other views across a resize, with a fake admin client."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest

from anabranch import ErrorCode, KafkaError, TopicPartition
from anabranch.client.admin.types import MemberDescription, RetainedOnReplica
from anabranch.view import group_lag
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_admin import SHRUNK, FakeAdmin


def test_describe_shows_the_tree_and_what_is_left_to_drain(run: Run) -> None:
    holder = MemberDescription("m-1", None, "c", "/127.0.0.1", (TopicPartition("t", 5),))
    groups = {"g": {4: 30, 5: 25}, "late": {0: 1}, "new": {}}
    times = {1: {2: 7_200_000}, 4: {0: 3_599_999}}
    admin = FakeAdmin(**SHRUNK, groups=groups, members=(holder,), times_ms=times)
    status, out, _ = run(admin, "topics", "describe", "t")
    assert status == 0
    assert out.splitlines()[-7:] == [
        "layout 2: created with 4 partitions, 4 in use, 2 marked for deletion",
        "0",
        "└── 4  marked, split from 0 after epoch 0 (1970-01-01T00:59:59Z), merged into 0 after epoch 1 (time unknown), "
        "30 records left, group g has 0 to read, group late has 30 to read, group new has 30 to read",
        "1",
        "└── 5  marked, split from 1 after epoch 0 (time unknown), merged into 1 after epoch 1 (1970-01-01T02:00:00Z), "
        "30 records left, group g has 15 to read, group late has 30 to read, group new has 30 to read",
        "2",
        "3",
    ]


def test_a_group_that_cannot_be_read_hides_no_topic(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe_groups(admin: FakeAdmin, group_ids: Any) -> Any:
        raise ValueError("consumer protocol: no version")

    monkeypatch.setattr(FakeAdmin, "describe_groups", describe_groups)
    status, out, _ = run(FakeAdmin(**SHRUNK, groups={"g": {5: 25}, "odd": {}}), "topics", "describe", "t")
    assert (status, "group g has 15 to read" in out, "odd" in out) == (0, True, False)


def test_one_partition_is_written_in_the_singular(run: Run) -> None:
    admin = FakeAdmin(initial=1, undeleted=1, total=2, version=2, leader_epochs={0: 2, 1: 1}, ends={1: (29, 30)})
    admin.entries = {0: [(2, {1: 0})], 1: [(0, {0: 0})]}
    _, out, _ = run(admin, "topics", "describe", "t")
    assert "layout 2: created with 1 partition, 1 in use, 1 marked for deletion\n" in out
    assert ", 1 record left" in out
    _, out, _ = run(
        FakeAdmin(initial=1, undeleted=2, total=2), "topics", "alter", "t", "--partitions", "1", "--dry-run"
    )
    assert out.startswith("t: 2 -> 1 partition")
    assert "partition 1 is deleted when its last record has expired" in out
    assert "with --delete-records-when-drained: deleted when every group has read it\n" in out


def test_describe_as_json_has_the_layout(run: Run) -> None:
    _, out, _ = run(FakeAdmin(**SHRUNK, groups={"g": {5: 25}}), "topics", "describe", "t", "--json")
    (topic,) = json.loads(out)
    assert (topic["initial_partition_count"], topic["undeleted_partition_count"], topic["layout_version"]) == (4, 4, 2)
    five = topic["partitions"][5]
    assert (five["state"], five["created_from"], five["merged_into"], five["records_left"]) == ("marked", 1, 1, 30)
    assert five["lineage"] == [[0, {"1": 0}]]
    assert (five["split_ms"], five["merged_ms"]) == (None, None)
    assert five["to_drain"] == {"g": 15}
    assert topic["partitions"][0]["state"] == "in use"


def test_describe_marks_a_new_partition_and_an_unknown_log_end(run: Run) -> None:
    grown = FakeAdmin(undeleted=6, total=6, version=1, without_leader=frozenset({5}))
    _, out, _ = run(grown, "topics", "describe", "t")
    assert "└── 5  new" in out
    unknown = {**SHRUNK, "entries": {**SHRUNK["entries"], 1: []}, "ends": {5: (-1, -1)}}
    _, out, _ = run(FakeAdmin(**unknown, groups={"g": {5: 1}}), "topics", "describe", "t")
    assert "└── 5  marked, split from 1 after epoch 0 (time unknown), group g has ? to read" in out


def test_describe_shows_what_a_resize_waits_for_and_why_a_topic_is_frozen(run: Run) -> None:
    waits = "5 partitions come next; partition 2 gains keys, and the leader of 0 has not answered"
    admin = FakeAdmin(**SHRUNK, advice={"t": waits})
    assert f"resize: {waits}" in run(admin, "topics", "describe", "t")[1].splitlines()
    assert ("partitions", {"t": 4}, True) in admin.calls
    frozen = KafkaError(ErrorCode.POLICY_VIOLATION, "The topic is frozen: partition 1 names itself.")
    _, out, _ = run(FakeAdmin(**SHRUNK, refusal=frozen), "topics", "describe", "t")
    assert "The topic is frozen: partition 1 names itself." in out
    settled = KafkaError(ErrorCode.INVALID_PARTITIONS, "Topic already has 4 partitions.")
    assert "resize:" not in run(FakeAdmin(**SHRUNK, refusal=settled), "topics", "describe", "t")[1]


WAITS = {"ordered.delivery.retention.waits": "true"}
HELD = RetainedOnReplica(20, 120, 4096, 1_700_000_000_000, 1_700_086_400_000, "slow")


def test_describe_shows_held_records_their_group_and_until_when(run: Run) -> None:
    admin = FakeAdmin(**SHRUNK, configs=WAITS, retained={1: HELD, 4: dataclasses.replace(HELD, group="")})
    _, out, _ = run(admin, "topics", "describe", "t")
    held = "(100 records, 4096 bytes) for {} since 2023-11-14T22:13:20Z until 2023-11-15T22:13:20Z at the latest"
    assert [line for line in out.splitlines() if line.startswith("kept beyond")] == [
        f"kept beyond retention.ms: partition 1 offsets 20 to 120 {held.format('group slow')}",
        f"kept beyond retention.ms: partition 4 offsets 20 to 120 {held.format('an unknown group')}",
    ]
    _, out, _ = run(admin, "topics", "describe", "t", "--json")
    first, second = json.loads(out)[0]["retained"]
    assert (first["partition"], first["group"], first["until_ms"]) == (1, "slow", 1_700_086_400_000)
    assert second["group"] is None


def test_describe_succeeds_although_leaders_do_not_report_held_records(run: Run) -> None:
    status, out, _ = run(FakeAdmin(**SHRUNK, configs=WAITS, retained=None), "topics", "describe", "t")
    assert status == 0 and "retained:" not in out


def test_no_held_records_are_shown_where_retention_does_not_wait(run: Run) -> None:
    assert "retained:" not in run(FakeAdmin(**SHRUNK, retained={1: HELD}), "topics", "describe", "t")[1]


def test_describe_shows_no_layout_of_a_topic_that_was_never_resized(run: Run) -> None:
    _, out, _ = run(FakeAdmin(), "topics", "describe", "t")
    assert "layout" not in out
    assert len(out.splitlines()) == 6


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


def test_groups_describe_shows_which_partition_waits_for_which(run: Run) -> None:
    owner = MemberDescription("m-1", None, "reader-1", "/127.0.0.1", (TopicPartition("t", 5),))
    admin = FakeAdmin(
        **SHRUNK, groups={"g": {1: 140, 5: 20}}, positions={0: 80, 1: 150, 4: 30, 5: 25}, members=(owner,)
    )
    status, out, _ = run(admin, "groups", "describe", "g")
    assert status == 0
    assert out.splitlines()[-1] == (
        "  t: partition 1 from epoch 2 waits for partition 5 until offset 40, owned by m-1, at position 25"
        " (blocked, expiring)"
    )
    _, out, _ = run(admin, "groups", "describe", "g", "--json")
    (wait,) = json.loads(out)[0]["waits"]
    assert (wait["partition"], wait["from_epoch"], wait["waits_for"], wait["epoch"]) == (1, 2, 5, 0)
    assert (wait["position"], wait["until"], wait["member"], wait["blocked"]) == (25, 40, "m-1", True)
    assert wait["committed"] == 20


def test_groups_describe_shows_a_commit_ahead_of_the_reported_position(run: Run) -> None:
    """Records below the committed offset are read, so only later records can expire unread."""
    positions = {0: 80, 1: 150, 4: 30, 5: 25}
    admin = FakeAdmin(**SHRUNK, groups={"g": {1: 140, 5: 38}}, positions=positions, kept_from={5: 26})
    _, out, _ = run(admin, "groups", "describe", "g")
    assert out.splitlines()[-1].endswith("at position 25 (38 committed) (blocked)")


def test_groups_describe_names_members_that_have_not_joined_again(run: Run) -> None:
    stuck = MemberDescription("m-1", None, "app-3", "/127.0.0.1", (), 45_000, 255_000)
    admin = FakeAdmin(groups={"g": {1: 140}}, members=(stuck, MemberDescription("m-2", None, "app-4", "/h", ())))
    _, out, _ = run(admin, "groups", "describe", "g")
    assert out.splitlines()[-1] == "waits for app-3 at 127.0.0.1 to join again: for 45 s now, at most 4 min more"
    _, out, _ = run(admin, "groups", "describe", "g", "--json")
    (row,) = json.loads(out)[0]["awaited_members"]
    assert (row["member"], row["awaited_ms"], row["wait_left_ms"]) == ("m-1", 45_000, 255_000)


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


def test_groups_describe_shows_partitions_without_a_leader_and_removed_partitions(run: Run) -> None:
    """A removed partition stays assigned to a group for a while, and no broker knows the partition's end."""
    admin = FakeAdmin(groups={"g": {1: 2, 3: 5, 4: 7}}, ends={1: (0, 10)}, without_leader=frozenset({3}))
    _, out, _ = run(admin, "groups", "describe", "g", "--json")
    rows = {row["partition"]: (row["high_watermark"], row["lag"]) for row in json.loads(out)[0]["partitions"]}
    assert rows == {1: (10, 8), 3: (None, None), 4: (None, None)}


def test_groups_describe_shows_no_wait_without_a_resize(run: Run) -> None:
    _, out, _ = run(FakeAdmin(groups={"g": {0: 1}}), "groups", "describe", "g", "--json")
    assert json.loads(out)[0]["waits"] == []


def test_groups_describe_fits_a_terminal_and_sums_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lag.time, "time", lambda: 1_000_000.0)
    tps = (TopicPartition("t", 0), TopicPartition("t", 1))
    reader = MemberDescription("reader-1-" + "0" * 36, None, "reader-1", "/127.0.0.1", tps)
    far = 9_000_000_000_000_000
    state = {"groups": {"g": {0: far, 1: far - 20, 2: 5}}, "members": (reader,), "without_leader": frozenset({2})}
    ends = {0: (0, far), 1: (0, far)}
    written = {1: 1_000_000_000 - 12_000}
    admin = FakeAdmin(**state, ends=ends, written_at=written)
    _, out, _ = run(admin, "groups", "describe", "g")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:3] == [
        "g  Stable  assignor range  coordinator 1  1 member",
        "t",
        "partition         committed               end  lag  behind  member",
    ]
    assert [line.split() for line in lines[3:7]] == [
        ["0", str(far), str(far), "0", "0", "s", "1"],
        ["1", str(far - 20), str(far), "20", "12", "s", "1"],
        ["2", "5", "-", "-", "-", "-"],
        ["total", "-", "-", "20", "12", "s", "-"],
    ]
    assert lines[7] == "member 1: reader-1 at 127.0.0.1"
    _, out, _ = run(admin, "groups", "describe", "g", "--json")
    assert [row["lag_seconds"] for row in json.loads(out)[0]["partitions"]] == [0.0, 12.0, None]
    _, out, _ = run(admin, "groups", "describe", "g", "--tsv")
    names, *rows = [line.split("\t") for line in out.splitlines()]
    assert [row[names.index("lag_seconds")] for row in rows] == ["0.0", "12.0", ""]
    assert {row[names.index("topic")] for row in rows} == {"t"}


def test_groups_describe_shows_no_time_of_a_leader_that_does_not_answer(run: Run) -> None:
    admin = FakeAdmin(groups={"g": {1: 2}}, ends={1: (0, 10)})
    _, out, _ = run(admin, "groups", "describe", "g", "--json")
    assert [(row["lag"], row["lag_seconds"]) for row in json.loads(out)[0]["partitions"]] == [(8, None)]


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
