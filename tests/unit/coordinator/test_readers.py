"""Groups of held stock consumers: the answers to leaders, and when and where a member may begin."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.coordinator.counted import CountedGroups, Creation
from anabranch.broker.deferred import Deferred
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest
from anabranch.protocol.generated.topic_readers import TopicReadersRequest, TopicReadersRequestTopic
from anabranch.protocol.types import TopicPartition
from tests.support.broker import group_requests
from tests.unit.coordinator.calls import GROUP, commit, fetched, fetched_offset, others_have_run, sync, value
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.driver import Context, subscription
from tests.unit.coordinator.fakes import pass_time
from tests.unit.coordinator.test_position_service import owner_of_t0, poll

pytestmark = pytest.mark.trio

LEASE_S = 3.0
"""The default of ``stock.consumer.lease.ms``."""
NEW = TopicPartition("t", 1)


def readers(running: Running, *partitions: int) -> dict[str, dict[int, tuple[int, bool]]]:
    """Return ``{group: {partition: (position, is_reported)}}`` of topic t, from an answer to a leader."""
    return {group: of for group, (_, of) in readers_with_incarnations(running, *partitions).items()}


def readers_with_incarnations(running: Running, *partitions: int) -> dict[str, tuple[int, dict[int, tuple[int, bool]]]]:
    topics = [TopicReadersRequestTopic(name="t", partition_indexes=list(partitions))]
    response = value(running.coordinator.topic_readers(TopicReadersRequest(topics=topics)))
    (topic,) = response.topics
    return {
        group.group_id: (
            group.life,
            {found.partition_index: (found.position, found.is_reported) for found in group.partitions},
        )
        for group in topic.groups
    }


def begin(running: Running, *partitions: int, ours: bool = False, group: str = GROUP) -> Deferred[Any]:
    """Send a member's request for its start offset."""
    request = group_requests.fetch_offsets(*partitions, group=group)
    return running.coordinator.offset_fetch(Context(api_version=7, keeps_order=ours), request)


def create(running: Running, tp: TopicPartition = NEW, base: int = 0, incarnation: int = 9) -> None:
    """Let a resize create a partition that the broker knows from metadata."""
    running.topics.unknown.discard(tp)
    running.topics.incarnations[tp] = incarnation
    running.coordinator.on_partitions_created({tp: Creation(base, incarnation)})


def create_without_a_start_offset(running: Running) -> None:
    """Let a resize create a partition, and let the commit of the group's start offset there fail."""
    running.log.hold = True
    create(running)
    running.log.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    running.log.hold = False


async def stock_member(running: Running, *topics: str) -> str:
    """Return the only member of a stable group, which subscribes to these topics."""
    request = group_requests.join(metadata=subscription(*topics))
    joining = running.coordinator.answer(Context(api_version=3), request)
    await pass_time(3.001)
    member_id: str = value(joining).member_id
    assert value(sync(running, member_id, 1)).error_code == ErrorCode.NONE
    return member_id


async def held(running: Running) -> None:
    running.topics.withheld = running.topics.resized = {"t"}
    await running.loaded()


@pytest.fixture
async def withheld(running: Running) -> Running:
    """The coordinator, and a resized topic t that withholds records from stock consumers."""
    await held(running)
    return running


# ---------------------------------------------------------------- answers to leaders


async def test_a_group_has_a_position_where_it_has_a_commit(withheld: Running) -> None:
    commit(withheld, 7)
    commit(withheld, 8, group="elsewhere", topic="other")
    assert readers(withheld, 0, 1) == {GROUP: {0: (7, False)}}


async def test_a_commit_counts_once_it_is_in_the_log(withheld: Running) -> None:
    withheld.log.hold = True
    commit(withheld, 7)
    assert readers(withheld, 0) == {GROUP: {}}
    withheld.log.settle()
    assert readers(withheld, 0) == {GROUP: {0: (7, False)}}


async def test_members_that_subscribe_count_before_they_commit(withheld: Running) -> None:
    await stock_member(withheld, "t")
    assert readers(withheld, 0) == {GROUP: {}}


async def test_members_that_subscribe_to_other_topics_do_not_count(withheld: Running) -> None:
    await stock_member(withheld, "other")
    assert readers(withheld, 0) == {}


async def test_a_coordinator_that_was_cut_off_answers_nothing(withheld: Running) -> None:
    """The successor may have a group that this coordinator does not know."""
    withheld.log.is_cut_off = True
    asking = withheld.coordinator.topic_readers(TopicReadersRequest(topics=[]))
    assert not asking.filled
    await pass_time(5.1)
    assert value(asking).coordinators == []


async def test_an_answer_has_the_age_of_its_proof_of_leadership(withheld: Running) -> None:
    """A proof is used for several answers, so that not every question needs a record in the log."""

    def age() -> int:
        (coordinator,) = value(withheld.coordinator.topic_readers(TopicReadersRequest(topics=[]))).coordinators
        return int(coordinator.confirmed_ms_ago)

    assert age() == 0
    await pass_time(LEASE_S / 4 - 0.05)
    assert age() == 700
    assert len(withheld.log.asked_to_confirm) == 1
    await pass_time(0.05)
    assert age() == 0
    assert len(withheld.log.asked_to_confirm) == 2


async def test_a_group_whose_members_all_keep_order_is_not_counted(withheld: Running) -> None:
    commit(withheld, 7)
    member_id = await owner_of_t0(withheld)
    poll(withheld, member_id, 1)
    assert readers(withheld, 0) == {}


async def test_beside_a_stock_member_members_that_keep_order_count_by_their_reports(withheld: Running) -> None:
    """A member of our own client may commit before its flush callback has returned."""
    commit(withheld, 7)
    begin(withheld)
    member_id = await owner_of_t0(withheld)
    poll(withheld, member_id, 1, wants=False)
    assert readers(withheld, 0) == {GROUP: {0: (-1, True)}}
    poll(withheld, member_id, 1, wants=False, position=5)
    assert readers(withheld, 0) == {GROUP: {0: (5, True)}}


async def test_a_new_group_with_the_name_of_a_deleted_one_counts_as_another(withheld: Running) -> None:
    begin(withheld)
    commit(withheld, 7)
    (before, _) = readers_with_incarnations(withheld, 0)[GROUP]
    await pass_time(1)
    withheld.coordinator.delete_groups(Context(), DeleteGroupsRequest(groups_names=[GROUP]))
    assert readers(withheld, 0) == {}
    begin(withheld)
    assert readers_with_incarnations(withheld, 0)[GROUP] != (before, {})
    assert readers(withheld, 0) == {GROUP: {}}


async def test_a_group_that_only_fetched_offsets_is_forgotten_after_a_minute(withheld: Running) -> None:
    begin(withheld)
    await pass_time(59)
    assert readers(withheld, 0) == {GROUP: {}}
    await pass_time(2)
    assert readers(withheld, 0) == {}


# ---------------------------------------------------------------- when a member may begin


async def test_a_new_group_begins_when_every_leader_counts_it(withheld: Running) -> None:
    """Leaders use only answers that are younger than the lease. After one lease all these answers include the group."""
    beginning = begin(withheld)
    assert readers(withheld, 0) == {GROUP: {}}
    await pass_time(LEASE_S)
    assert not beginning.filled
    await pass_time(0.31)
    assert fetched_offset(value(beginning)) == (-1, 0)
    assert begin(withheld).filled, "the group is counted by now"


async def test_the_slices_of_a_large_fetch_wait_for_one_lease_together(running: Running) -> None:
    running.topics.withheld = running.topics.resized = {"t", "u"}
    await running.loaded()
    for _ in running.coordinator.count_readers(Context(), group_requests.fetch_offsets(topics="tu")):
        pass
    first = begin(running)
    await pass_time(LEASE_S + 0.31)
    second = group_requests.fetch_offsets(topics="u")
    assert first.filled and running.coordinator.offset_fetch(Context(api_version=7), second).filled


async def test_a_group_with_the_name_of_a_deleted_one_waits_again(withheld: Running) -> None:
    begin(withheld)
    await pass_time(4)
    commit(withheld, 3)
    withheld.coordinator.delete_groups(Context(), DeleteGroupsRequest(groups_names=[GROUP]))
    assert not begin(withheld).filled


async def test_a_new_coordinator_waits_for_the_end_of_its_predecessors_lease(withheld: Running) -> None:
    commit(withheld, 3)
    begin(withheld)
    await pass_time(4)
    withheld.coordinator.on_not_leader(0, 1)
    await withheld.loaded(leader_epoch=2)
    beginning = begin(withheld)
    assert not beginning.filled
    await pass_time(3.31)
    assert fetched_offset(value(beginning)) == (3, 0)


@pytest.mark.parametrize("what", ["not held", "ours", "not resized"])
async def test_a_member_begins_at_once_unless_leaders_hold_its_group(withheld: Running, what: str) -> None:
    withheld.topics.withheld = set() if what == "not held" else {"t"}
    withheld.topics.resized = set() if what == "not resized" else {"t"}
    assert begin(withheld, ours=what == "ours").filled


async def test_a_request_of_a_leader_shows_a_resize_before_the_metadata_does(withheld: Running) -> None:
    withheld.topics.resized = set()
    readers(withheld, 0)
    assert not begin(withheld).filled


async def test_topics_that_no_leader_asks_for_any_more_are_forgotten(running: Running) -> None:
    """No leader uses an answer that is older than the lease."""
    counted = CountedGroups()
    counted.note_asked("a", 1_000, since_ms=0)
    counted.note_asked("b", 2_000, since_ms=0)
    assert counted.was_asked("b", 2_000) and not counted.was_asked("b", 2_001)
    counted.note_asked("a", 3_000, since_ms=2_500)
    assert counted.was_asked("a", 2_500)
    assert not counted.was_asked("b", 0)
    await held(running)
    running.topics.resized = set()
    readers(running, 0)
    await pass_time(1.2 * LEASE_S)
    assert begin(running).filled


async def test_a_waiting_member_is_answered_when_the_coordinator_moves(withheld: Running) -> None:
    beginning = begin(withheld)
    withheld.coordinator.on_not_leader(0, 1)
    assert fetched_offset(value(beginning)) == (-1, ErrorCode.NOT_COORDINATOR)


# ---------------------------------------------------------------- the start offset


async def counted(running: Running) -> None:
    """Wait until the group has been counted for longer than a lease."""
    begin(running)
    await pass_time(3.31)


async def test_a_group_begins_at_the_first_offset_of_a_partition_that_was_created(withheld: Running) -> None:
    """The group has no commit in the losing partition: with ``latest`` it may have read and committed nothing."""
    await counted(withheld)
    create(withheld, base=40)
    assert fetched_offset(value(begin(withheld, 1))) == (40, 0)


async def test_a_group_that_appears_after_the_creation_gets_no_start_offset(withheld: Running) -> None:
    create(withheld)
    await counted(withheld)
    assert fetched_offset(value(begin(withheld, 1))) == (-1, 0)


async def test_a_start_offset_never_replaces_a_commit(withheld: Running) -> None:
    await counted(withheld)
    commit(withheld, 12)
    create(withheld, TopicPartition("t", 0))
    assert fetched(withheld) == (12, 0)


async def test_a_member_waits_until_its_start_offset_is_committed(withheld: Running) -> None:
    await counted(withheld)
    withheld.log.hold = True
    create(withheld)
    beginning = begin(withheld, 1)
    await pass_time(1)
    assert not beginning.filled
    withheld.log.settle()
    await pass_time(0.1)
    assert fetched_offset(value(beginning)) == (0, 0)


async def test_a_start_offset_whose_commit_is_lost_is_committed_again(withheld: Running) -> None:
    await counted(withheld)
    create_without_a_start_offset(withheld)
    beginning = begin(withheld, 1)
    await pass_time(0.1)
    assert fetched_offset(value(beginning)) == (0, 0)


async def test_a_member_gets_a_retriable_error_while_nothing_can_be_committed(withheld: Running) -> None:
    await counted(withheld)
    withheld.log.hold = True
    create(withheld)
    beginning = begin(withheld, 1)
    await pass_time(5.1)
    assert fetched_offset(value(beginning)) == (-1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


async def test_a_member_that_knows_the_partition_first_waits_for_its_coordinator(withheld: Running) -> None:
    await counted(withheld)
    withheld.topics.unknown.add(NEW)
    beginning = begin(withheld, 1)
    await pass_time(1)
    assert not beginning.filled
    create(withheld)
    await pass_time(0.1)
    assert fetched_offset(value(beginning)) == (0, 0)


async def test_a_fetch_for_a_partition_that_is_never_created_returns_no_offset(withheld: Running) -> None:
    await counted(withheld)
    withheld.topics.unknown.add(NEW)
    beginning = begin(withheld, 1)
    await pass_time(5.1)
    assert fetched_offset(value(beginning)) == (-1, 0)


async def test_the_next_coordinator_commits_a_start_offset_that_its_predecessor_did_not(withheld: Running) -> None:
    await counted(withheld)
    commit(withheld, 5)
    withheld.log.hold = True
    create(withheld)
    withheld.coordinator.on_not_leader(0, 1)
    withheld.log.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    withheld.log.hold = False
    await withheld.loaded(leader_epoch=2)
    beginning = begin(withheld, 1)
    await pass_time(3.31)
    assert fetched_offset(value(beginning)) == (0, 0)


async def test_no_start_offset_is_committed_for_members_that_keep_order(withheld: Running) -> None:
    commit(withheld, 7)
    member_id = await owner_of_t0(withheld)
    poll(withheld, member_id, 1)
    create(withheld)
    assert fetched_offset(value(begin(withheld, 1, ours=True))) == (-1, 0)


async def test_no_start_offset_is_committed_in_a_topic_that_is_not_held(leading: Running) -> None:
    commit(leading, 5)
    create(leading)
    await others_have_run()
    assert fetched_offset(value(begin(leading, 1))) == (-1, 0)


async def test_no_member_waits_for_a_start_offset_in_a_removed_partition(withheld: Running) -> None:
    await counted(withheld)
    create_without_a_start_offset(withheld)
    withheld.topics.incarnations[NEW] = -1
    withheld.topics.merged.add(NEW)
    assert fetched_offset(value(begin(withheld, 1))) == (-1, 0)
