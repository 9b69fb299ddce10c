"""``topics alter``, ``topics describe`` and ``groups describe`` across a resize, with a fake admin client."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from anabranch import ErrorCode, KafkaError, KafkaTimeoutError, TopicPartition
from anabranch.cli import admin as cli_admin
from anabranch.cli import group_lag
from anabranch.cli.main import main
from anabranch.client.admin.types import HeldRecords, MemberDescription
from anabranch.ordered_resize.marked import DRAIN_KEY, LOSS_KEY
from tests.unit.cli.fake_admin import FakeAdmin

Run = Callable[..., tuple[int, str, str]]
SHRUNK = {
    "undeleted": 4,
    "total": 6,
    "version": 2,
    "leader_epochs": {0: 2, 1: 2, 2: 2, 3: 2, 4: 1, 5: 1},
    "entries": {0: [(2, {4: 0})], 1: [(2, {5: 0})], 4: [(0, {0: 0})], 5: [(0, {1: 0})]},
    "epoch_end_offsets": {(0, 0): 70, (1, 0): 100, (0, 1): 90, (1, 1): 150, (4, 0): 30, (5, 0): 40},
    "ends": {4: (0, 30), 5: (10, 40)},
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line against a fake admin client and return exit status, stdout and stderr."""

    def run_command(admin: FakeAdmin, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(cli_admin, "Admin", admin)
        monkeypatch.setattr(group_lag, "LogReader", admin)
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run_command


def test_a_dry_run_of_a_grow_shows_splits_and_changes_nothing(run: Run) -> None:
    admin = FakeAdmin()
    status, out, _ = run(admin, "topics", "alter", "t", "--partitions", "6", "--dry-run")
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert out.startswith("t: 4 -> 6 partitions, about 25.0 % of the keys move\n")
    assert ["0", "4", "12.5", "%", "1", "-"] in lines and ["1", "5", "12.5", "%", "1", "-"] in lines
    assert "chooses brokers for partitions 4, 5" in out
    assert out.endswith("nothing stands in the way\n")
    assert admin.calls == [("partitions", {"t": 6}, True)]


def test_a_dry_run_of_a_grow_names_the_groups_that_unread_records_will_block(run: Run) -> None:
    """The dry run counts unread records of the splitting partitions 0 and 1.

    It counts them also for groups that hold a partition without a commit.
    """
    behind = MemberDescription("m-1", None, "c", "/127.0.0.1", (TopicPartition("t", 1),))
    state = {"groups": {"g": {0: 3, 1: 12, 2: 0}, "new": {}}, "members": (behind,)}
    admin = FakeAdmin(**state, ends={0: (0, 10), 1: (2, 12), 2: (0, 9)})
    _, out, _ = run(admin, "topics", "alter", "t", "--partitions", "6", "--dry-run")
    assert [line for line in out.splitlines() if line.startswith("group ")] == [
        "group g has 7 records of partitions 0, 1 to read before it gets newer ones of their keys",
        "group new has 20 records of partitions 0, 1 to read before it gets newer ones of their keys",
    ]


def test_a_dry_run_of_a_shrink_shows_when_marked_partitions_are_removed(run: Run) -> None:
    admin = FakeAdmin(undeleted=6, total=6, version=1, groups={"g": {4: 3, 5: 0}}, ends={4: (0, 10), 5: (2, 12)})
    _, out, _ = run(admin, "topics", "alter", "t", "--partitions", "4", "--dry-run")
    assert "partitions 4, 5 are deleted when their last record has expired (retention.ms=604800000, 7 days)" in out
    _, out, _ = run(admin, "topics", "alter", "t", "--partitions=4", "--dry-run", "--delete-records-when-drained")
    assert "delete.records.when.drained: would be true" in out
    assert "partitions 4, 5 are deleted once every group has read them" in out
    assert "group g has 17 records of partitions 4, 5 to read before it gets newer ones of their keys" in out
    assert admin.calls[-2:] == [
        ("configs", {"t": {"delete.records.when.drained": "true"}}, True),
        ("partitions", {"t": 4}, True),
    ]


def test_a_dry_run_that_would_be_refused_reports_why_and_fails(run: Run) -> None:
    refusal = KafkaError(ErrorCode.POLICY_VIOLATION, "t: t cannot grow while partitions 4, 5 are marked for deletion")
    admin = FakeAdmin(**SHRUNK, refusal=refusal)
    status, out, _ = run(admin, "topics", "alter", "t", "--partitions", "8", "--dry-run")
    assert status == 1
    assert "refused: POLICY_VIOLATION: t: t cannot grow while partitions 4, 5 are marked" in out
    status, out, _ = run(admin, "topics", "alter", "t", "--partitions", "8", "--dry-run", "--json")
    plan = json.loads(out)["resize"]
    assert (status, plan["partitions"], plan["partitions_after"], plan["moved_share"]) == (1, 4, 8, 0.5)
    assert [(move["from"], move["into"]) for move in plan["moves"]] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_dry_run_ignores_a_refusal_that_the_commands_config_would_lift(run: Run) -> None:
    reason = "t: Its records never expire, so partitions would never get empty; set delete.records.when.drained=true"
    state = {"undeleted": 6, "total": 6, "version": 1, "configs": {"retention.ms": "-1"}}
    admin = FakeAdmin(**state, refusal=KafkaError(ErrorCode.POLICY_VIOLATION, reason))
    status, out, _ = run(admin, "topics", "alter", "t", "--partitions", "4", "--dry-run")
    assert status == 1 and f"refused: POLICY_VIOLATION: {reason}" in out
    arguments = ["--partitions", "4", "--dry-run", "--delete-records-when-drained"]
    status, out, _ = run(admin, "topics", "alter", "t", *arguments)
    assert status == 0 and "nothing stands in the way" in out
    unfinished = FakeAdmin(**state, refusal=KafkaError(ErrorCode.POLICY_VIOLATION, "t: Another resize is unfinished"))
    assert run(unfinished, "topics", "alter", "t", *arguments)[0] == 1


def test_a_failed_validation_request_is_not_shown_as_a_refusal(run: Run) -> None:
    admin = FakeAdmin(refusal=KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t"))
    status, out, err = run(admin, "topics", "alter", "t", "--partitions", "6", "--dry-run")
    assert (status, out) == (1, "")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in err


def test_a_dry_run_of_an_impossible_count_plans_nothing(run: Run) -> None:
    """This also holds for a count of a hundred million partitions, and for an internal topic."""
    for count, code in ((3, "INVALID_PARTITIONS"), (10**8, "INVALID_PARTITIONS"), (10**8, "INVALID_REQUEST")):
        admin = FakeAdmin(undeleted=6, total=6, version=1, refusal=KafkaError(ErrorCode[code], "t: never"))
        status, out, _ = run(admin, "topics", "alter", "t", "--partitions", str(count), "--dry-run")
        assert (status, out) == (1, f"t: 6 -> {count} partitions\nrefused: {code}: t: never\n")


@pytest.mark.parametrize("given", ["9.7", "8.0", "1e1", "eight", ""])
def test_a_count_is_a_whole_number(run: Run, given: str) -> None:
    admin = FakeAdmin()
    status, _, err = run(admin, "topics", "alter", "t", f"--partitions={given}")
    assert status == 2 and "--partitions" in err and "is not a whole number" in err
    assert admin.calls == []


def test_a_dry_run_of_a_shrink_shows_when_no_group_has_committed_offsets(run: Run) -> None:
    admin = FakeAdmin(undeleted=6, total=6, version=1)
    _, out, _ = run(admin, "topics", "alter", "t", "--partitions=4", "--dry-run", "--delete-records-when-drained")
    assert "no group has committed offsets of the topic" in out


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        ("8", f"t: cannot grow while partitions 4, 5 are marked; they go with {DRAIN_KEY}=true"),
        ("4", "t: another resize is unfinished"),
    ],
)
def test_a_refused_resize_changes_no_config(run: Run, count: str, reason: str) -> None:
    """This includes the config that decides how marked partitions are removed."""
    admin = FakeAdmin(undeleted=6, total=6, version=1, refusal=KafkaError(ErrorCode.POLICY_VIOLATION, reason))
    arguments = ["topics", "alter", "t", "--partitions", count, "--delete-records-when-drained"]
    status, _, err = run(admin, *arguments)
    assert (status, err) == (1, f"anabranch: POLICY_VIOLATION: {reason}\n")
    assert admin.calls == [("partitions", {"t": int(count)}, True)]


@pytest.mark.parametrize("config", [f"{DRAIN_KEY}=true", "retention.ms=1000", "cleanup.policy=delete"])
def test_a_resize_refused_for_a_config_is_requested_again_with_the_new_config(run: Run, config: str) -> None:
    reason = f"t: never expire; set {DRAIN_KEY}=true"
    admin = FakeAdmin(undeleted=6, total=6, version=1, refusal=KafkaError(ErrorCode.POLICY_VIOLATION, reason))
    run(admin, "topics", "alter", "t", "--partitions", "4", "--config", config)
    assert [call[0] for call in admin.calls] == ["partitions", "configs", "partitions"]


def test_a_resize_that_is_still_refused_names_the_configs_already_changed(run: Run) -> None:
    def refuse(_admin: FakeAdmin) -> None:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "t: not now")

    admin = FakeAdmin(on_create_partitions=refuse)
    arguments = ["topics", "alter", "t", "--partitions", "6", "--config", "segment.bytes=1000"]
    status, _, err = run(admin, *arguments)
    assert (status, err) == (1, "anabranch: POLICY_VIOLATION: t: not now (the new values of segment.bytes stay)\n")
    assert [call[0] for call in admin.calls] == ["partitions", "configs", "partitions"]


def test_advice_is_a_warning_of_the_dry_run_and_of_the_resize(run: Run) -> None:
    admin = FakeAdmin(advice={"t": "Producers that do not know ordered resize wrote to t."})
    _, out, _ = run(admin, "topics", "alter", "t", "--partitions", "6", "--dry-run")
    assert "\nwarning: Producers that do not know ordered resize wrote to t.\n" in out
    status, out, err = run(admin, "topics", "alter", "t", "--partitions", "6")
    assert (status, err) == (0, "warning: Producers that do not know ordered resize wrote to t.\n")


def test_a_dry_run_of_a_shrink_without_order_names_the_partitions_to_be_removed(run: Run) -> None:
    admin = FakeAdmin(undeleted=6, total=6, ordered=False, ends={4: (0, 10), 5: (2, 12)})
    _, out, _ = run(admin, "topics", "alter", "t", "--partitions", "4", "--dry-run")
    assert "partitions 4, 5 are deleted when their last record has expired" in out


def test_a_dry_run_without_ordered_delivery_shows_that_moved_keys_lose_order(run: Run) -> None:
    _, out, _ = run(FakeAdmin(ordered=False), "topics", "alter", "t", "--partitions", "6", "--dry-run")
    assert "about 66.7 % of the keys move" in out
    assert "keys that move lose order" in out


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REQUEST])
def test_an_impossible_count_changes_no_config(run: Run, code: ErrorCode) -> None:
    admin = FakeAdmin(refusal=KafkaError(code, "t: never"))
    arguments = ["topics", "alter", "t", "--partitions", "1", "--delete-records-when-drained"]
    status, _, err = run(admin, *arguments)
    assert (status, err) == (1, f"anabranch: {code.name}: t: never\n")
    assert admin.calls == [("partitions", {"t": 1}, True)]


def test_a_controller_that_is_slow_to_answer_is_waited_for_only_with_wait(run: Run) -> None:
    def begin_late(admin: FakeAdmin) -> None:
        admin.undeleted, admin.total, admin.version = 6, 6, 1
        admin.entries = {4: [(0, {0: 0})], 5: [(0, {1: 0})]}
        raise KafkaTimeoutError("CreatePartitions did not succeed within 20000 ms")

    status, out, err = run(FakeAdmin(on_create_partitions=begin_late), "topics", "alter", "t", "--partitions", "6")
    assert (status, out) == (1, "")
    assert "within 20000 ms; a resize that has begun goes on" in err
    arguments = ["topics", "alter", "t", "--partitions", "6", "--wait"]
    status, out, _ = run(FakeAdmin(on_create_partitions=begin_late), *arguments)
    assert (status, out) == (0, "altered t\nt has 6 partitions\n")


def test_the_drain_key_is_set_before_the_resize(run: Run) -> None:
    admin = FakeAdmin(undeleted=6, total=6, version=1)
    arguments = ["--partitions", "4", "--delete-records-when-drained", "--config", "segment.bytes=1000"]
    status, out, _ = run(admin, "topics", "alter", "t", *arguments)
    assert (status, out) == (0, "t is being resized to 4 partitions: anabranch topics describe t shows it\n")
    assert admin.calls == [
        ("partitions", {"t": 4}, True),
        ("configs", {"t": {"segment.bytes": "1000", "delete.records.when.drained": "true"}}, False),
        ("partitions", {"t": 4}, False),
    ]


def test_waiting_ends_when_the_keys_of_marked_partitions_are_merged(run: Run) -> None:
    def begin(admin: FakeAdmin) -> None:
        admin.undeleted, admin.version = 4, 2
        admin.entries = {**SHRUNK["entries"], 1: []}

    admin = FakeAdmin(undeleted=6, total=6, version=1, on_create_partitions=begin)
    status, _, err = run(admin, "topics", "alter", "t", "--partitions", "4", "--wait", "--timeout-ms", "150")
    assert status == 1
    assert "t is not resized after 150 ms: the keys of partition 5 are not merged" in err

    def finish(admin: FakeAdmin) -> None:
        begin(admin)
        admin.entries = SHRUNK["entries"]

    admin = FakeAdmin(undeleted=6, total=6, version=1, on_create_partitions=finish)
    status, out, _ = run(admin, "topics", "alter", "t", "--partitions", "4", "--wait")
    assert (status, out) == (0, "altered t\nt has 4 partitions\npartitions 4, 5 take no records any more\n")
    admin = FakeAdmin(undeleted=6, total=6, version=1, on_create_partitions=finish)
    _, out, _ = run(admin, "topics", "alter", "t", "--partitions", "4", "--wait", "--json")
    assert json.loads(out) == {
        "topic": "t",
        "configs": {},
        "partitions": 4,
        "is_resized": True,
        "draining": [4, 5],
    }


def test_waiting_for_a_grow_does_not_wait_for_draining_partitions(run: Run) -> None:
    """13 -> 4 -> 5: the keys of 12 were merged into 0, and 4 may have split them off from 0."""
    entries = {
        0: [(2, dict.fromkeys(range(4, 13), 0))],
        4: [(0, {0: 0}), (2, {0: 2})],
        **{p: [(0, {0: 0})] for p in range(5, 13)},
    }
    grown = {"undeleted": 5, "total": 13, "version": 3, "entries": entries}

    def begin(admin: FakeAdmin) -> None:
        admin.undeleted, admin.version = 5, 3

    admin = FakeAdmin(**{**grown, "undeleted": 4, "version": 2}, on_create_partitions=begin)
    status, out, err = run(admin, "topics", "alter", "t", "--partitions", "5", "--wait", "--timeout-ms", "500")
    assert (status, err) == (0, "")
    assert out.startswith("altered t\nt has 5 partitions\npartitions 5, 6, 7, 8, 9, 10, 11, 12 take no records")
    _, out, _ = run(FakeAdmin(**grown), "topics", "describe", "t", "--json")
    partitions = json.loads(out)[0]["partitions"]
    assert (partitions[12]["merged_into"], partitions[12]["leader_epoch_before_deletion"]) == (0, 1)
    assert partitions[4]["merged_into"] is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, "4 partitions are in use"),
        ({"undeleted": 6, "total": 6, "version": 1, "without_leader": frozenset({5})}, "partition 5 has no leader"),
        (
            {"undeleted": 6, "total": 6, "version": 3, "entries": {**SHRUNK["entries"], 4: [(0, {0: 0}), (2, {0: 2})]}},
            "partition 5 is not split off",
        ),
    ],
)
def test_a_wait_for_a_grow_reports_the_unfinished_step_at_its_timeout(
    run: Run, state: dict[str, Any], expected: str
) -> None:
    arguments = ["topics", "alter", "t", "--partitions", "6", "--wait", "--timeout-ms", "50"]
    status, _, err = run(FakeAdmin(**state), *arguments)
    assert status == 1
    assert expected in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["--wait"], "nothing to change"), (["--config", "a=b", "--wait"], "--wait and --wait-drained need --partitions")],
)
def test_wait_without_a_count_is_wrong_usage(run: Run, arguments: list[str], expected: str) -> None:
    status, _, err = run(FakeAdmin(), "topics", "alter", "t", *arguments)
    assert (status, expected in err) == (2, True)


def test_describe_shows_the_tree_and_what_is_left_to_drain(run: Run) -> None:
    holder = MemberDescription("m-1", None, "c", "/127.0.0.1", (TopicPartition("t", 5),))
    groups = {"g": {4: 30, 5: 25}, "late": {0: 1}, "new": {}}
    admin = FakeAdmin(**SHRUNK, groups=groups, members=(holder,))
    status, out, _ = run(admin, "topics", "describe", "t")
    assert status == 0
    assert out.splitlines()[-7:] == [
        "layout 2: created with 4 partitions, 4 in use, 2 marked for deletion",
        "0",
        "└── 4  marked, split from 0 after epoch 0, merged into 0 after epoch 1, 30 records left, "
        "group g has 0 to read, group late has 30 to read, group new has 30 to read",
        "1",
        "└── 5  marked, split from 1 after epoch 0, merged into 1 after epoch 1, 30 records left, "
        "group g has 15 to read, group late has 30 to read, group new has 30 to read",
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
    assert "with --delete-records-when-drained: deleted once every group has read it\n" in out


def test_describe_as_json_has_the_layout(run: Run) -> None:
    _, out, _ = run(FakeAdmin(**SHRUNK, groups={"g": {5: 25}}), "topics", "describe", "t", "--json")
    (topic,) = json.loads(out)
    assert (topic["initial_partition_count"], topic["undeleted_partition_count"], topic["layout_version"]) == (4, 4, 2)
    five = topic["partitions"][5]
    assert (five["state"], five["created_from"], five["merged_into"], five["records_left"]) == ("marked", 1, 1, 30)
    assert five["lineage"] == [[0, {"1": 0}]]
    assert five["to_drain"] == {"g": 15}
    assert topic["partitions"][0]["state"] == "in use"


def test_describe_marks_a_new_partition_and_an_unknown_log_end(run: Run) -> None:
    grown = FakeAdmin(undeleted=6, total=6, version=1, without_leader=frozenset({5}))
    _, out, _ = run(grown, "topics", "describe", "t")
    assert "└── 5  new" in out
    unknown = {**SHRUNK, "entries": {**SHRUNK["entries"], 1: []}, "ends": {5: (-1, -1)}}
    _, out, _ = run(FakeAdmin(**unknown, groups={"g": {5: 1}}), "topics", "describe", "t")
    assert "└── 5  marked, split from 1 after epoch 0, group g has ? to read" in out


def test_a_dry_run_shows_which_partitions_are_revived(run: Run) -> None:
    _, out, _ = run(FakeAdmin(**SHRUNK), "topics", "alter", "t", "--partitions", "7", "--dry-run")
    assert "partitions 4, 5 drain, and take records again" in out
    assert "chooses brokers for partition 6 when it is created" in out


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
HELD = HeldRecords(20, 120, 4096, 1_700_000_000_000, 1_700_086_400_000, "slow")


def test_describe_shows_held_records_their_group_and_until_when(run: Run) -> None:
    admin = FakeAdmin(**SHRUNK, configs=WAITS, held={1: HELD, 4: dataclasses.replace(HELD, group="")})
    _, out, _ = run(admin, "topics", "describe", "t")
    held = "(100 records, 4096 bytes) for {} since 2023-11-14T22:13:20Z until 2023-11-15T22:13:20Z at most"
    assert [line for line in out.splitlines() if line.startswith("held:")] == [
        f"held: partition 1 offsets 20 to 120 {held.format('group slow')}",
        f"held: partition 4 offsets 20 to 120 {held.format('a group that is not known')}",
    ]
    _, out, _ = run(admin, "topics", "describe", "t", "--json")
    first, second = json.loads(out)[0]["held"]
    assert (first["partition"], first["group"], first["until_ms"]) == (1, "slow", 1_700_086_400_000)
    assert second["group"] is None


def test_describe_succeeds_although_leaders_do_not_report_held_records(run: Run) -> None:
    status, out, _ = run(FakeAdmin(**SHRUNK, configs=WAITS, held=None), "topics", "describe", "t")
    assert status == 0 and "held:" not in out


def test_no_held_records_are_shown_where_retention_does_not_wait(run: Run) -> None:
    assert "held:" not in run(FakeAdmin(**SHRUNK, held={1: HELD}), "topics", "describe", "t")[1]


def test_describe_shows_no_layout_of_a_topic_that_was_never_resized(run: Run) -> None:
    _, out, _ = run(FakeAdmin(), "topics", "describe", "t")
    assert "layout" not in out
    assert len(out.splitlines()) == 6


def test_groups_describe_shows_which_partition_waits_for_which(run: Run) -> None:
    owner = MemberDescription("m-1", None, "reader-1", "/127.0.0.1", (TopicPartition("t", 5),))
    admin = FakeAdmin(
        **SHRUNK, groups={"g": {1: 140, 5: 20}}, positions={0: 80, 1: 150, 4: 30, 5: 25}, members=(owner,)
    )
    status, out, _ = run(admin, "groups", "describe", "g")
    assert status == 0
    assert out.splitlines()[-1] == (
        "  t: partition 1 from epoch 2 waits for 5 until offset 40, owned by m-1, at position 25 (blocked, expiring)"
    )
    _, out, _ = run(admin, "groups", "describe", "g", "--json")
    (wait,) = json.loads(out)[0]["waits"]
    assert (wait["partition"], wait["from_epoch"], wait["waits_for"], wait["epoch"]) == (1, 2, 5, 0)
    assert (wait["position"], wait["until"], wait["member"], wait["blocked"]) == (25, 40, "m-1", True)
    assert wait["committed"] == 20


def test_groups_describe_shows_a_commit_ahead_of_the_reported_position(run: Run) -> None:
    """The commit decides whether an unread record is about to expire: all records below it are read."""
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
    assert [(row["partition"], row["committed_offset"]) for row in group["partitions"]] == [(1, 140), (5, 20)]
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
    """A removed partition stays assigned to a group for a while, and no broker knows its end."""
    admin = FakeAdmin(groups={"g": {1: 2, 3: 5, 4: 7}}, ends={1: (0, 10)}, without_leader=frozenset({3}))
    _, out, _ = run(admin, "groups", "describe", "g", "--json")
    rows = {row["partition"]: (row["high_watermark"], row["lag"]) for row in json.loads(out)[0]["partitions"]}
    assert rows == {1: (10, 8), 3: (None, None), 4: (None, None)}


def test_groups_describe_shows_no_wait_without_a_resize(run: Run) -> None:
    _, out, _ = run(FakeAdmin(groups={"g": {0: 1}}), "groups", "describe", "g", "--json")
    assert json.loads(out)[0]["waits"] == []


# ---------------------------------------------------------------- compacted topics

LOSES = "--delete-latest-values-when-drained"
STAYS = f"The topic is compacted: partitions 4, 5 stay, for they ... {LOSS_KEY}=true removes them ..."
COMPACTED = {"undeleted": 6, "total": 6, "version": 1, "configs": {"cleanup.policy": "compact"}}


def test_a_dry_run_of_a_shrink_of_a_compacted_topic_reports_once_that_the_partitions_stay(run: Run) -> None:
    admin = FakeAdmin(**COMPACTED, advice={"t": f"{STAYS}\nProducers wrote to t."})
    _, out, _ = run(admin, "topics", "alter", "t", "--partitions=4", "--dry-run")
    assert [line for line in out.splitlines() if LOSS_KEY in line] == [
        "The topic is compacted: partitions 4, 5 stay, for they have the latest values of their keys."
        f" {LOSS_KEY}=true removes them, and loses these values."
    ]
    assert "warning: Producers wrote to t.\n" in out
    _, out, _ = run(admin, "topics", "alter", "t", "--partitions=4", "--dry-run", LOSES)
    assert f"\n{LOSS_KEY}=true: partitions 4, 5 are removed once every group has read them. The latest values" in out
    assert "no group has committed offsets of the topic" in out
    status, _, err = run(admin, "topics", "alter", "t", "--partitions=4")
    assert (status, err) == (0, f"warning: {STAYS}\nwarning: Producers wrote to t.\n")


def test_the_key_that_names_the_loss_is_set_before_the_shrink(run: Run) -> None:
    admin = FakeAdmin(**COMPACTED, advice={"t": STAYS})
    run(admin, "topics", "alter", "t", "--partitions=4", LOSES)
    assert [call for call in admin.calls if not call[2]] == [
        ("configs", {"t": {LOSS_KEY: "true"}}, False),
        ("partitions", {"t": 4}, False),
    ]
    admin = FakeAdmin(**COMPACTED)
    run(admin, "topics", "alter", "t", LOSES)
    assert admin.calls == [("configs", {"t": {LOSS_KEY: "true"}}, False)], (
        "the key applies to partitions that are marked already"
    )


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize("count", [4, 6, 8], ids=["reverts a grow", "the same", "grow"])
def test_the_loss_option_is_refused_for_a_resize_that_marks_nothing(run: Run, count: int, dry: list[str]) -> None:
    """The controller's advice for a resize that reverts an unfinished grow does not name the key."""
    admin = FakeAdmin(**COMPACTED)
    status, _, err = run(admin, "topics", "alter", "t", f"--partitions={count}", LOSES, *dry)
    assert (status, err) == (
        1,
        f"anabranch: {LOSES}: the resize of t to {count} partitions marks none for deletion;"
        f" --config {LOSS_KEY}=true is for those that are marked already\n",
    )
    assert all(validate_only for _, _, validate_only in admin.calls)


def test_the_loss_option_is_refused_with_auto(run: Run) -> None:
    admin = FakeAdmin(**COMPACTED)
    status, _, err = run(admin, "topics", "alter", "t", "--partitions=auto", LOSES)
    assert (status, err) == (2, f"anabranch: {LOSES} needs a count, not --partitions auto\n")
    assert admin.calls == []


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


def test_wait_drained_waits_until_merged_partitions_are_removed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    admin = FakeAdmin(**SHRUNK)
    describe = admin.describe_topics

    async def drained_at_last(names: Iterable[str]) -> Any:
        asked.append(admin.total)
        if len(asked) == 6:
            admin.total = 4
        return await describe(names)

    monkeypatch.setattr(admin, "describe_topics", drained_at_last)
    status, out, _ = run(admin, "topics", "alter", "t", "--partitions", "4", "--wait-drained")
    assert status == 0 and "take no records" not in out and admin.total == 4
    never = FakeAdmin(**SHRUNK)
    status, _, err = run(never, "topics", "alter", "t", "--partitions", "4", "--wait-drained", "--timeout-ms", "300")
    assert status == 1 and "t still has partitions 4, 5 after 300 ms: no group has committed" in err


@pytest.mark.parametrize(
    "more", [(), ("--delete-records-when-drained",), ("--delete-latest-values-when-drained",), ("--config", "x=y")]
)
def test_a_wait_for_a_drain_can_be_repeated(run: Run, more: tuple[str, ...]) -> None:
    """The topic has the count already. Without a wait that is an error, as in Kafka."""
    refused = KafkaError(ErrorCode.INVALID_PARTITIONS, "t: Topic already has 4 partitions.")
    again = FakeAdmin(
        **{**SHRUNK, "refusal": refused, "groups": {"g": {4: 0, 5: 10}}, "ends": {4: (0, 10), 5: (0, 10)}}
    )
    waiting = ("--wait-drained", "--timeout-ms", "300")
    status, _, err = run(again, "topics", "alter", "t", "--partitions", "4", *waiting, *more)
    assert status == 1 and "after 300 ms: g has 10 records to read; the same command waits again" in err
    status, _, err = run(again, "topics", "alter", "t", "--partitions", "4")
    assert status == 1 and "INVALID_PARTITIONS" in err


def test_log_dirs_shows_the_topics_that_exist_and_names_the_others(run: Run) -> None:
    admin = FakeAdmin(held={})
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
