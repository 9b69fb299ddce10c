"""``topics alter`` while its topic changes, with a fake admin client. ``test_pages.py`` has the rest of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import anyio
import pytest

from anabranch import ErrorCode, KafkaError, KafkaTimeoutError
from anabranch.client.admin.types import ResizeGoal
from anabranch.view import resize
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_admin import SHRUNK, FakeAdmin


def test_a_resize_that_is_still_refused_names_the_configs_already_changed(run: Run) -> None:
    def refuse(_admin: FakeAdmin) -> None:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "t: not now")

    admin = FakeAdmin(on_create_partitions=refuse)
    arguments = ["topics", "alter", "t", "--partitions", "6", "--config", "segment.bytes=1000"]
    status, _, err = run(admin, *arguments)
    assert (status, err) == (1, "anabranch: POLICY_VIOLATION: t: not now (the new values of segment.bytes stay)\n")
    assert [call[0] for call in admin.calls] == ["partitions", "configs", "partitions"]


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
