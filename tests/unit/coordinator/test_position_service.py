"""ConsumerGroupPosition and incarnations through the coordinator's shell: time, hand-over between brokers, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.coordinator.consumer_offsets_records import encode
from anabranch.broker.coordinator.durable import OffsetRecord
from anabranch.broker.coordinator.placement import partition_for
from anabranch.broker.deferred import Deferred
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.list_groups import ListGroupsRequest
from anabranch.protocol.types import TopicPartition
from tests.support.broker import group_requests
from tests.unit.coordinator.calls import GROUP, commit, commit_error, fetched, heartbeat, join, others_have_run, value
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.driver import Context, assignment
from tests.unit.coordinator.fakes import pass_time

pytestmark = pytest.mark.trio

T = ("t", 0)
T0 = TopicPartition(*T)


def poll(
    running: Running,
    member_id: str,
    generation: int,
    *,
    wants: bool = True,
    position: int = -1,
    max_wait_ms: int = 60_000,
    group: str = GROUP,
) -> Deferred[Any]:
    """Request the position of partition 0 of t, report it, or both."""
    given = {"reports": {T: position}, "max_wait_ms": max_wait_ms, "group": group}
    request = group_requests.poll(member_id, generation, *([T] if wants else []), **given)
    return running.coordinator.answer(Context(api_version=0), request)


def answered(deferred: Deferred[Any]) -> tuple[int, bool]:
    response = value(deferred)
    assert response.error_code == ErrorCode.NONE
    (partition,) = response.topics[0].partitions
    return partition.position, partition.need_position


async def owner_of_t0(running: Running) -> str:
    """Return the only member of a stable group, in generation 1."""
    joining = join(running)
    await pass_time(3.001)
    member_id: str = value(joining).member_id
    request = group_requests.sync(member_id, 1, {member_id: assignment(T)})
    assert value(running.coordinator.answer(Context(api_version=3), request)).error_code == ErrorCode.NONE
    return member_id


# ---------------------------------------------------------------- polls and time


async def test_a_poll_waits_for_max_wait_ms_and_no_longer(leading: Running) -> None:
    member_id = await owner_of_t0(leading)
    polling = poll(leading, member_id, 1, wants=False, max_wait_ms=500)
    await pass_time(0.499)
    assert not polling.filled
    await pass_time(0.002)
    assert value(polling).topics == []


async def test_a_session_ends_while_a_poll_waits(leading: Running) -> None:
    member_id = await owner_of_t0(leading)
    polling = poll(leading, member_id, 1, wants=False, max_wait_ms=2**31 - 1)
    await pass_time(10.001)
    assert value(polling).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_rebalance_answers_a_waiting_poll(leading: Running) -> None:
    member_id = await owner_of_t0(leading)
    assert answered(poll(leading, member_id, 1)) == (-1, True)
    assert answered(poll(leading, member_id, 1, position=5)) == (5, True)
    polling = poll(leading, member_id, 1)
    join(leading)
    assert value(polling).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert heartbeat(leading, member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS


# ---------------------------------------------------------------- hole 19: another coordinator


async def test_hole_19_a_fail_over_releases_no_member_early_and_leaves_none_waiting(running: Running) -> None:
    """The successor knows the commit and the owner, which may not have saved the committed records."""
    await running.loaded(0, 1)
    member_id = await owner_of_t0(running)
    assert answered(poll(running, member_id, 1)) == (-1, True)
    polling = poll(running, member_id, 1)
    assert commit_error(commit_as(running, 100, member_id)) == ErrorCode.NONE
    assert not polling.filled
    running.coordinator.on_not_leader(0, 2)
    assert value(polling).error_code == ErrorCode.NOT_COORDINATOR
    assert value(poll(running, member_id, 1)).error_code == ErrorCode.NOT_COORDINATOR
    running.coordinator.on_leader(0, 3)
    assert value(poll(running, member_id, 1)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await others_have_run()
    assert answered(poll(running, member_id, 1)) == (-1, True)
    assert answered(poll(running, member_id, 1, position=100)) == (100, True)


async def test_answers_are_numbered_in_the_order_in_which_they_are_made(running: Running) -> None:
    """A member orders the answers of its two connections by their numbers, also across a fail-over."""
    await running.loaded(0, 1)
    member_id = await owner_of_t0(running)
    first = poll(running, member_id, 1)
    parked = poll(running, member_id, 1)
    last = poll(running, member_id, 1, max_wait_ms=0)
    running.coordinator.on_not_leader(0, 2)
    running.coordinator.on_leader(0, 3)
    await others_have_run()
    of_successor = poll(running, member_id, 1)
    made = [(value(one).coordinator_epoch, value(one).answer_number) for one in (first, parked, last, of_successor)]
    assert made == [(1, 1), (1, 2), (1, 3), (3, 1)]


async def test_a_client_that_is_no_member_gets_no_number(leading: Running) -> None:
    assert value(poll(leading, "", -1)).answer_number == -1


async def test_polls_are_refused_by_a_coordinator_that_shuts_down(leading: Running) -> None:
    member_id = await owner_of_t0(leading)
    answered(poll(leading, member_id, 1))
    polling = poll(leading, member_id, 1)
    leading.coordinator.close()
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert value(polling).error_code == value(poll(leading, member_id, 1)).error_code == unavailable


async def test_a_group_without_a_name_has_no_positions(leading: Running) -> None:
    assert value(poll(leading, "", -1, group="")).error_code == ErrorCode.INVALID_GROUP_ID


def commit_as(running: Running, offset: int, member_id: str) -> Deferred[Any]:
    request = group_requests.commit({T: offset}, member_id, 1)
    return running.coordinator.answer(Context(api_version=8), request)


# ---------------------------------------------------------------- hole 20: incarnations


@pytest.mark.parametrize(("version", "incarnation"), [(6, -1), (7, -1), (8, 9)])
async def test_hole_20_offset_fetch_has_the_incarnation_from_version_8_on(
    running: Running, version: int, incarnation: int
) -> None:
    """librdkafka before 2.2 uses version 7 and cannot parse a tag (librdkafka #4278)."""
    running.topics.incarnations[T0] = 9
    await running.loaded()
    commit(running, 5)
    request = group_requests.fetch_all_offsets(GROUP)
    if version < 8:
        request = group_requests.fetch_offsets()
    response = value(running.coordinator.offset_fetch(Context(api_version=version), request))
    topics = response.groups[0].topics if version >= 8 else response.topics
    (partition,) = topics[0].partitions
    assert (partition.committed_offset, partition.incarnation) == (5, incarnation)


async def test_hole_20_a_removal_keeps_the_offsets_of_the_partition_that_was_created_again(running: Running) -> None:
    running.topics.incarnations[T0] = 7
    await running.loaded()
    commit(running, 5)
    running.topics.missing.add("t")
    running.coordinator.on_partitions_deleted({T0: 7})
    await others_have_run()
    assert fetched(running) == (-1, 0)
    assert running.log.records[0][-1] == encode(OffsetRecord(GROUP, T0, None))
    running.topics.missing.clear()
    running.topics.incarnations[T0] = 9
    commit(running, 2)
    running.coordinator.on_partitions_deleted({T0: 7})  # a new controller repeats the deletion
    await pass_time(601)  # the next check repeats lost removals
    assert fetched(running) == (2, 0)


async def test_hole_20_the_next_coordinator_deletes_offsets_of_the_removed_incarnation(running: Running) -> None:
    """The successor writes the tombstone that its predecessor did not write."""
    running.topics.incarnations[T0] = 7
    await running.loaded(0, 1)
    commit(running, 5)
    running.coordinator.on_not_leader(0, 2)
    running.coordinator.on_partitions_deleted({T0: 7})
    running.topics.incarnations[T0] = 9
    await running.loaded(0, 3)
    assert running.log.records[0][-1] == encode(OffsetRecord(GROUP, T0, None))


async def test_a_broker_lists_the_groups_it_coordinates_and_answers_for_no_other(running: Running) -> None:
    """A client that drains a partition asks every broker for the broker's groups, and each coordinator for offsets."""
    running.topics.offsets_partitions = 2
    await running.loaded(0)
    ours, others = (next(g for g in "abcdef" if partition_for(g, 2) == at) for at in (0, 1))
    assert commit_error(commit(running, 5, group=ours)) == ErrorCode.NONE
    assert commit_error(commit(running, 5, group=others)) == ErrorCode.NOT_COORDINATOR
    listed = running.coordinator.list_groups(Context(api_version=4), ListGroupsRequest())
    assert [group.group_id for group in listed.groups] == [ours]
    request = group_requests.fetch_all_offsets(ours, others)
    answers = value(running.coordinator.offset_fetch(Context(api_version=8), request)).groups
    assert [answer.error_code for answer in answers] == [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]
    assert [p.committed_offset for answer in answers for topic in answer.topics for p in topic.partitions] == [5]
