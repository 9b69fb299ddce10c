"""Answers to a controller: every group that may read a topic, with its commits and positions."""

from __future__ import annotations

import pytest

from anabranch.broker.coordinator import readers
from anabranch.protocol.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from anabranch.protocol.generated.topic_readers import (
    TopicReadersRequest,
    TopicReadersRequestQuestion,
    TopicReadersRequestTopic,
    TopicReadersResponseGroup,
)
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.features import GROUP_COORDINATOR
from tests.unit.coordinator.calls import GROUP, commit, join, value
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.driver import Context, assignment
from tests.unit.coordinator.fakes import pass_time
from tests.unit.coordinator.test_position_service import owner_of_t0, poll
from tests.unit.coordinator.test_readers import begin, held, stock_member

pytestmark = pytest.mark.trio


def found(
    running: Running, *, ask_from: int = -1, incarnation: int = -1, group_ids: tuple[str, ...] = ()
) -> dict[str, TopicReadersResponseGroup]:
    """Return the groups that may read topic t, by name, from an answer about partition 0."""
    asked = TopicReadersRequestQuestion(partition_index=0, incarnation=incarnation, ask_from=ask_from)
    request = TopicReadersRequest(
        topics=[TopicReadersRequestTopic(name="t", questions=[asked])], group_ids=list(group_ids)
    )
    (topic,) = value(running.coordinator.topic_readers(request)).topics
    return {group.group_id: group for group in topic.groups}


def position(group: TopicReadersResponseGroup) -> tuple[int, int, bool, bool]:
    """Return the commit, the position, and whether the position is reported and needed."""
    (partition,) = group.partitions
    return partition.committed_offset, partition.position, partition.is_reported, partition.need_position


async def test_groups_that_committed_or_subscribe_read_the_topic(leading: Running) -> None:
    commit(leading, 7, group="stored")
    commit(leading, 8, group="elsewhere", topic="other")
    await stock_member(leading, "t")
    leading.log.hold = True
    commit(leading, 9, group="on-its-way")
    groups = found(leading)
    assert sorted(groups) == [GROUP, "on-its-way", "stored"]
    assert all(group.is_reading and group.is_settled for group in groups.values())
    assert {name for name, group in groups.items() if group.has_committed} == {"stored"}
    assert position(groups["stored"])[0] == 7 and position(groups["on-its-way"])[0] == -1
    assert sorted(found(leading, group_ids=("stored", "nobody"))) == ["stored"]


async def test_a_group_in_a_rebalance_may_read_any_topic(leading: Running) -> None:
    await stock_member(leading, "other")
    assert found(leading) == {}
    join(leading)
    (group,) = found(leading).values()
    assert (group.is_settled, group.is_reading, group.has_committed) == (False, False, False)


@pytest.mark.parametrize(
    ("assigned", "reads", "is_missing"),
    [(b"", False, True), (assignment(("t", 0)), True, False), (assignment(("other", 0)), None, False)],
    ids=["assigned nothing", "assigned the topic", "assigned another topic"],
)
async def test_the_assignment_counts_where_a_subscription_cannot_be_read(
    leading: Running, assigned: bytes, reads: bool | None, is_missing: bool
) -> None:
    joining = join(leading)
    await pass_time(3.001)
    member_id = value(joining).member_id
    assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=assigned)]
    request = SyncGroupRequest(group_id=GROUP, generation_id=1, member_id=member_id, assignments=assignments)
    leading.coordinator.answer(Context(api_version=3), request)
    groups = found(leading)
    if reads is None:
        assert groups == {}
    else:
        assert groups[GROUP].is_reading is reads
        assert groups[GROUP].unreadable_member == (member_id if is_missing else "")


async def test_a_commit_of_another_incarnation_does_not_count(leading: Running) -> None:
    leading.topics.incarnations[TopicPartition("t", 0)] = 5
    commit(leading, 7)
    assert position(found(leading, incarnation=5)[GROUP])[0] == 7
    later = found(leading, incarnation=6)[GROUP]
    assert position(later)[0] == -1 and later.has_committed


async def test_an_owner_is_asked_for_its_position_once_the_commit_is_far_enough(leading: Running) -> None:
    """An owner that is asked too early calls its flush callback for nothing."""
    commit(leading, 7)
    member_id = await owner_of_t0(leading)
    poll(leading, member_id, 1, wants=False)
    assert position(found(leading)[GROUP]) == (7, -1, True, False)
    assert position(found(leading, ask_from=8)[GROUP]) == (7, -1, True, False)
    assert position(found(leading, ask_from=7)[GROUP]) == (7, -1, True, True)
    poll(leading, member_id, 1, wants=False, position=6)
    assert position(found(leading, ask_from=7)[GROUP]) == (7, 6, True, True)


async def test_owners_are_asked_once_about_all_partitions(leading: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question for each partition would take a time that grows with the square of their number."""
    commit(leading, 7)
    asked: list[dict[TopicPartition, int]] = []
    monkeypatch.setattr(readers, "ask_owners", lambda _turn, _group, wanted: asked.append(wanted))
    questions = [
        TopicReadersRequestQuestion(partition_index=index, incarnation=3, ask_from=ask_from)
        for index, ask_from in enumerate((7, 8, -1, 0))
    ]
    topic = TopicReadersRequestTopic(name="t", questions=questions)
    value(leading.coordinator.topic_readers(TopicReadersRequest(topics=[topic])))
    assert asked == [{TopicPartition("t", 0): 3, TopicPartition("t", 3): 3}]


async def test_no_commit_is_enough_while_members_cannot_report(leading: Running) -> None:
    """KIP-584: ``group_coordinator`` was forced below level 2, and the polls of owners are refused."""
    commit(leading, 7)
    assert position(found(leading, ask_from=7)[GROUP]) == (7, 7, False, False)
    leading.levels[GROUP_COORDINATOR] = 1
    assert position(found(leading, ask_from=7)[GROUP]) == (7, -1, False, True)
    await stock_member(leading, "t")
    assert position(found(leading, ask_from=0)[GROUP]) == (7, -1, True, True)


async def test_each_answer_to_a_controller_has_its_own_proof_of_leadership(leading: Running) -> None:
    found(leading)
    found(leading)
    assert len(leading.log.asked_to_confirm) == 2


async def test_a_question_of_a_controller_delays_no_member(running: Running) -> None:
    """Only a leader counts groups before it serves them."""
    await held(running)
    running.topics.resized = set()
    found(running)
    assert begin(running).filled
