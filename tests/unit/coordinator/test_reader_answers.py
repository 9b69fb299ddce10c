"""Answers about very many groups: made in pieces, bounded, and only while this broker coordinates the groups."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import structlog.testing
import trio

from anabranch.broker.coordinator import reader_answers, readers
from anabranch.broker.deferred import Deferred
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.topic_readers import (
    TopicReadersRequest,
    TopicReadersRequestQuestion,
    TopicReadersRequestTopic,
)
from tests.unit.coordinator.calls import commit, others_have_run, value
from tests.unit.coordinator.conftest import Running

pytestmark = pytest.mark.trio

GROUPS = [f"g{number}" for number in range(60)]
AT_ONCE = 10
PARTITIONS = 2
OF_LEADER = TopicReadersRequest(topics=[TopicReadersRequestTopic(name="t", partition_indexes=list(range(PARTITIONS)))])
OF_CONTROLLER = TopicReadersRequest(
    topics=[
        TopicReadersRequestTopic(
            name="t", questions=[TopicReadersRequestQuestion(partition_index=index) for index in range(PARTITIONS)]
        )
    ]
)


@pytest.fixture
async def asked_of(running: Running, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let ``running`` coordinate many groups. Returns the groups that are looked at, as they are."""
    monkeypatch.setattr(reader_answers, "ITEMS_AT_ONCE", AT_ONCE)
    await running.loaded()
    for group in GROUPS:
        commit(running, 7, group=group)
    looked_at: list[str] = []
    for name in ("for_leader", "for_controller"):
        look = getattr(readers, name)

        def counting(turn: Any, group_id: str, *arguments: Any, look: Any = look, **named: Any) -> Any:
            looked_at.append(group_id)
            return look(turn, group_id, *arguments, **named)

        monkeypatch.setattr(readers, name, counting)
    return looked_at


@pytest.mark.parametrize("request_", [OF_LEADER, OF_CONTROLLER], ids=["leader", "controller"])
async def test_other_tasks_run_between_the_groups(
    request_: TopicReadersRequest, running: Running, asked_of: list[str]
) -> None:
    asking = running.coordinator.topic_readers(request_)
    at_once = [len(asked_of)]
    with trio.fail_after(60):
        while not asking.filled:
            before = len(asked_of)
            await trio.lowlevel.checkpoint()
            at_once.append(len(asked_of) - before)
    most = AT_ONCE // (1 + PARTITIONS) + 1
    assert max(at_once) <= 2 * most, "two tasks of a pass run in any order"
    assert sorted(asked_of) == sorted(GROUPS)
    answer = value(asking)
    assert [topic.name for topic in answer.topics] == ["t"]
    assert sorted(group.group_id for group in answer.topics[0].groups) == sorted(GROUPS)
    assert len(answer.coordinators) == 1


MANY = 100
MANY_OF_LEADER = TopicReadersRequest(
    topics=[TopicReadersRequestTopic(name="t", partition_indexes=[*range(MANY), *range(MANY)])]
)
MANY_OF_CONTROLLER = TopicReadersRequest(
    group_ids=["g0"],
    topics=[
        TopicReadersRequestTopic(
            name="t",
            questions=[TopicReadersRequestQuestion(partition_index=index, ask_from=0) for index in range(MANY)],
        )
    ],
)


@pytest.mark.parametrize("request_", [MANY_OF_LEADER, MANY_OF_CONTROLLER], ids=["leader", "controller"])
@pytest.mark.parametrize("changes", [0, 1, reader_answers.TRIES + 1])
async def test_one_group_over_many_partitions_is_answered_in_pieces(
    changes: int,
    request_: TopicReadersRequest,
    running: Running,
    asked_of: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the group changes, its answer is begun again; after ``TRIES`` changes it is made in one piece."""
    (shard,) = running.coordinator.shards()
    for group in GROUPS[1:]:
        del shard.groups[group]
    items = [0]
    for kind in (readers.LeaderAnswer, readers.ControllerAnswer):
        for name in ("look", "add"):
            do_it = getattr(kind, name)

            def counting(self: Any, turn: Any, *, do: Any = do_it, **named: Any) -> None:
                items[0] += len(named["items"])
                do(self, turn, **named)

            monkeypatch.setattr(kind, name, counting)
    asking = running.coordinator.topic_readers(request_)
    at_once = [items[0]]
    left = changes
    with trio.fail_after(60):
        for number in itertools.count():
            if asking.filled:
                break
            if number % 3 == 2 and left:
                left -= 1
                shard.groups["g0"].generation_id += 1
            before = items[0]
            await trio.lowlevel.checkpoint()
            at_once.append(items[0] - before)
    (group,) = value(asking).topics[0].groups
    if request_ is MANY_OF_CONTROLLER:
        assert [partition.partition_index for partition in group.partitions] == list(range(MANY))
    if changes > reader_answers.TRIES:
        assert max(at_once) >= MANY and len(asked_of) == reader_answers.TRIES + 1
    else:
        assert max(at_once) <= 2 * AT_ONCE, "two tasks of a pass run in any order"
        assert len(asked_of) == changes + 1


async def test_groups_that_another_broker_coordinates_now_are_left_out(running: Running, asked_of: list[str]) -> None:
    asking = running.coordinator.topic_readers(OF_LEADER)
    running.coordinator.on_not_leader(0, 5)
    assert not asking.filled and asked_of
    await others_have_run()
    answer = value(asking)
    assert (answer.coordinators, answer.topics[0].groups) == ([], [])


async def test_an_answer_that_would_be_too_large_is_refused(
    running: Running, asked_of: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_answers, "PARTITION_BYTES", 4 << 20)  # of 64 MiB
    asking = running.coordinator.topic_readers(OF_LEADER)
    await others_have_run()
    answer = value(asking)
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (answer.coordinators, answer.topics) == ([], [])
    assert len(asked_of) < len(GROUPS)


async def test_an_answer_is_not_made_for_a_client_that_is_gone(running: Running, asked_of: list[str]) -> None:
    asking: Deferred[Any] = running.coordinator.topic_readers(OF_LEADER)
    assert asking.on_abandoned is not None
    asking.on_abandoned()
    await others_have_run()
    assert not asking.filled and len(asked_of) < len(GROUPS)


@pytest.mark.parametrize("at", [1, 30], ids=["first piece", "later piece"])
async def test_an_answer_that_cannot_be_made_is_an_error_and_others_are_made(
    at: int, running: Running, asked_of: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look = readers.for_leader
    calls = itertools.count(1)

    def failing(*arguments: Any) -> Any:
        if next(calls) == at:
            raise KeyError("g")
        return look(*arguments)

    monkeypatch.setattr(readers, "for_leader", failing)
    with structlog.testing.capture_logs() as logs:
        asking = running.coordinator.topic_readers(OF_LEADER)
        await others_have_run()
    answer = value(asking)
    assert (answer.error_code, answer.topics) == (ErrorCode.UNKNOWN_SERVER_ERROR, [])
    assert [(entry["event"], entry["task"], entry["item"]) for entry in logs] == [
        ("background.failed", "long-answers", "TopicReaders")
    ]
    asking = running.coordinator.topic_readers(OF_LEADER)
    await others_have_run()
    assert len(value(asking).topics[0].groups) == len(GROUPS)
