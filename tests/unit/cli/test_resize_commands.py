"""``topics alter`` across a resize, with a fake admin client: dry runs, refusals and waits."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import anyio
import pytest

from anabranch import ErrorCode, KafkaError, KafkaTimeoutError
from anabranch.client.admin.types import ResizeGoal
from anabranch.ordered_resize.marked import DRAIN_KEY, LOSS_KEY
from anabranch.view import resize
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_admin import SHRUNK, FakeAdmin


@pytest.mark.parametrize("given", ["9.7", "8.0", "1e1", "eight", ""])
def test_a_count_is_a_whole_number(run: Run, given: str) -> None:
    admin = FakeAdmin()
    status, _, err = run(admin, "topics", "alter", "t", f"--partitions={given}")
    assert status == 2 and "--partitions" in err and "neither a whole number" in err
    assert admin.calls == []


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        ("8", f"t: cannot grow while partitions 4, 5 are marked; they go with {DRAIN_KEY}=true"),
        ("4", "t: another resize is unfinished"),
    ],
)
def test_a_refused_resize_changes_no_config(run: Run, count: str, reason: str) -> None:
    """Even the config that decides how marked partitions are removed stays unchanged."""
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
    assert "within 20000 ms; a resize that has begun continues" in err
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
    assert "t is not resized after 150 ms: the keys of partition 5 are not merged yet" in err

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
    """13 -> 4 -> 5: keys of partition 12 were merged into partition 0, and may then have moved to partition 4."""
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
        ({}, "4 partitions are in use, not 6"),
        ({"undeleted": 6, "total": 6, "version": 1, "without_leader": frozenset({5})}, "partition 5 has no leader"),
        (
            {"undeleted": 6, "total": 6, "version": 3, "entries": {**SHRUNK["entries"], 4: [(0, {0: 0}), (2, {0: 2})]}},
            "partition 5 is not split off yet",
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
    ("goal", "left"), [(ResizeGoal(4, 12), 12), (ResizeGoal(4, None), 4), (ResizeGoal(8, None), 8)]
)
def test_a_wait_ends_at_once_when_another_request_replaced_the_count(run: Run, goal: ResizeGoal, left: int) -> None:
    admin = FakeAdmin(goal=goal)
    status, _, err = run(admin, "topics", "alter", "t", "--partitions", "6", "--wait", "--timeout-ms", "3600000")
    assert status == 1
    assert "another request replaced the resize of t to 6 partitions, or the controller dropped it:" in err
    assert f"the topic's goal is {left} partitions" in err


@pytest.mark.parametrize("goal", [ResizeGoal(6, None), ResizeGoal(4, 6), ResizeGoal(6, 12), None])
def test_a_wait_goes_on_while_the_count_is_the_goal_or_queued_or_not_known(run: Run, goal: ResizeGoal | None) -> None:
    arguments = ["topics", "alter", "t", "--partitions", "6", "--wait", "--timeout-ms", "50"]
    status, _, err = run(FakeAdmin(goal=goal), *arguments)
    assert (status, "is not resized after 50 ms" in err) == (1, True)


def test_a_wait_asks_again_when_a_broker_does_not_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class SilentOnce(FakeAdmin):
        async def resize_goal(self, topic: str) -> ResizeGoal:
            self.calls.append("goal")
            if self.calls.count("goal") == 1:
                await anyio.sleep_forever()
            return await super().resize_goal(topic)

    monkeypatch.setattr(resize, "LOOK_S", 0.01)
    admin = SilentOnce(goal=ResizeGoal(12, None))
    status, _, err = run(admin, "topics", "alter", "t", "--partitions", "6", "--wait", "--timeout-ms", "3600000")
    assert (status, admin.calls.count("goal")) == (1, 2) and "another request replaced" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["--wait"], "nothing to change"), (["--config", "a=b", "--wait"], "--wait and --wait-drained need --partitions")],
)
def test_wait_without_a_count_is_wrong_usage(run: Run, arguments: list[str], expected: str) -> None:
    status, _, err = run(FakeAdmin(), "topics", "alter", "t", *arguments)
    assert (status, expected in err) == (2, True)


# ---------------------------------------------------------------- compacted topics

LOSES = "--delete-latest-values-when-drained"
STAYS = f"The topic is compacted: partitions 4, 5 stay, because they ... {LOSS_KEY}=true removes them ..."
COMPACTED = {"undeleted": 6, "total": 6, "version": 1, "configs": {"cleanup.policy": "compact"}}


def test_the_config_that_accepts_the_loss_is_set_before_the_shrink(run: Run) -> None:
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
    """The controller's advice for a resize that reverts an unfinished grow does not name the config key."""
    admin = FakeAdmin(**COMPACTED)
    status, _, err = run(admin, "topics", "alter", "t", f"--partitions={count}", LOSES, *dry)
    assert (status, err) == (
        1,
        f"anabranch: {LOSES}: the resize of t to {count} partitions marks no partition for deletion;"
        f" for partitions that are marked already, set --config {LOSS_KEY}=true\n",
    )
    assert all(validate_only for _, _, validate_only in admin.calls)


def test_the_loss_option_is_refused_with_auto(run: Run) -> None:
    admin = FakeAdmin(**COMPACTED)
    status, _, err = run(admin, "topics", "alter", "t", "--partitions=auto", LOSES)
    assert (status, err) == (2, f"anabranch: {LOSES} needs a count, not --partitions auto\n")
    assert admin.calls == []


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
    """The topic already has the count. Without a wait the same command is an error, as in Kafka."""
    refused = KafkaError(ErrorCode.INVALID_PARTITIONS, "t: Topic already has 4 partitions.")
    again = FakeAdmin(
        **{**SHRUNK, "refusal": refused, "groups": {"g": {4: 0, 5: 10}}, "ends": {4: (0, 10), 5: (0, 10)}}
    )
    waiting = ("--wait-drained", "--timeout-ms", "300")
    status, _, err = run(again, "topics", "alter", "t", "--partitions", "4", *waiting, *more)
    assert status == 1 and "after 300 ms: g has 10 records to read; the same command waits again" in err
    status, _, err = run(again, "topics", "alter", "t", "--partitions", "4")
    assert status == 1 and "INVALID_PARTITIONS" in err


def test_a_wait_for_a_drain_reports_that_only_expiry_deletes_the_partitions(run: Run) -> None:
    """Every group has read the marked partitions."""
    admin = FakeAdmin(**{**SHRUNK, "groups": {"g": {4: 10, 5: 10}}, "ends": {4: (0, 10), 5: (0, 10)}})
    waiting = ("--wait-drained", "--timeout-ms", "300")
    status, _, err = run(admin, "topics", "alter", "t", "--partitions", "4", *waiting)
    assert status == 1
    assert "are deleted when their last record has expired (retention.ms=604800000, 7 days)" in err
    assert "with --delete-records-when-drained: deleted when every group has read them; the same command" in err
