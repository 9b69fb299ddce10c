"""A coordinator stops leading and leads again: the last writes and answers, the remaining state, the members."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.coordinator.consumer_offsets_records import encode
from anabranch.broker.coordinator.durable import DurableState, GroupRecord, OffsetRecord
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.broker.deferred import Deferred
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest
from anabranch.protocol.types import TopicPartition
from tests.support.broker import group_requests
from tests.unit.coordinator.calls import (
    GROUP,
    commit,
    commit_error,
    fetched,
    fetched_offset,
    fetched_stable,
    group_state,
    heartbeat,
    join,
    live,
    offset_record,
    others_have_run,
    stable_member,
    sync,
    value,
)
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.driver import Context
from tests.unit.coordinator.fakes import pass_time

pytestmark = pytest.mark.trio

NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


# ---------------------------------------------------------------- outcomes that are known late


async def test_the_outcome_of_an_earlier_leaderships_write_changes_nothing(running: Running) -> None:
    await running.loaded(0, 1)
    running.log.hold = True
    old = commit(running, 8)
    running.coordinator.on_not_leader(0, 2)
    assert commit_error(old) == NOT_COORDINATOR
    running.log.records[0] = [offset_record(3)]  # the next leader's record; this leader's record was truncated
    await running.loaded(0, 3)
    newer = commit(running, 4)
    _, _, fate = running.log.waiting.popleft()
    fate.fill(None)
    assert not newer.filled
    assert fetched(running) == (3, 0)
    running.log.settle()
    assert commit_error(newer) == ErrorCode.NONE
    assert fetched(running) == (4, 0)


async def test_a_commit_that_timed_out_counts_once_it_is_committed(leading: Running) -> None:
    leading.log.hold = True
    committing = commit(leading, 7)
    await pass_time(4.999)
    assert not committing.filled
    await pass_time(0.002)
    assert commit_error(committing) == ErrorCode.REQUEST_TIMED_OUT
    assert fetched(leading) == (-1, 0)
    assert fetched_stable(leading) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    leading.log.settle()
    assert fetched(leading) == (7, 0)
    assert fetched_stable(leading) == ErrorCode.NONE


async def test_every_waiting_write_has_its_own_timeout(leading: Running) -> None:
    leading.log.hold = True
    first = commit(leading, 1)
    await pass_time(3)
    second = commit(leading, 2)
    await pass_time(2.001)
    assert first.filled and not second.filled
    await pass_time(3)
    assert commit_error(second) == ErrorCode.REQUEST_TIMED_OUT
    leading.log.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    leading.log.settle()
    assert fetched(leading) == (2, 0)


async def test_a_write_that_timed_out_is_not_answered_again_on_unload(leading: Running) -> None:
    leading.log.hold = True
    commit(leading, 1, group="simple")
    leading.coordinator.delete_groups(Context(), DeleteGroupsRequest(groups_names=["simple"]))
    await pass_time(5.001)
    leading.coordinator.on_not_leader(0, 1)
    assert fetched(leading) == (-1, NOT_COORDINATOR)


async def test_a_group_deleted_after_a_commit_timed_out_stays_deleted(leading: Running) -> None:
    leading.log.hold = True
    commit(leading, 1)
    await pass_time(5.001)
    deleting = leading.coordinator.delete_groups(Context(), DeleteGroupsRequest(groups_names=[GROUP]))
    leading.log.settle()
    leading.log.settle()
    assert value(deleting).results[0].error_code == ErrorCode.NONE
    assert fetched(leading) == (-1, 0)
    await leading.loaded(0, 2)
    assert fetched(leading) == (-1, 0)


async def test_a_group_rebalances_after_its_assignment_timed_out(leading: Running) -> None:
    joining = join(leading)
    await pass_time(3.001)
    member_id = value(joining).member_id
    leading.log.hold = True
    syncing = sync(leading, member_id, 1)
    await pass_time(5.001)
    assert value(syncing).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert group_state(leading) == "PreparingRebalance"
    again = join(leading, member_id)
    assert value(again).generation_id == 2
    leading.log.settle()  # the first assignment is committed after all
    assert group_state(leading) == "CompletingRebalance"
    syncing = sync(leading, member_id, 2)
    leading.log.settle()
    assert value(syncing).assignment == b"mine"


APPEND_ERRORS = [
    # the log's error, a commit's error, a syncing member's error (Kafka storeOffsets, storeGroup)
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR, NOT_COORDINATOR),
    (ErrorCode.FENCED_LEADER_EPOCH, NOT_COORDINATOR, NOT_COORDINATOR),
    (ErrorCode.UNKNOWN_LEADER_EPOCH, NOT_COORDINATOR, NOT_COORDINATOR),
    (ErrorCode.KAFKA_STORAGE_ERROR, NOT_COORDINATOR, NOT_COORDINATOR),
    (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR),
    (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR),
]


@pytest.mark.parametrize(("error", "to_commit", "to_sync"), APPEND_ERRORS, ids=lambda code: code.name)
async def test_append_errors_are_mapped_as_in_kafka(
    leading: Running, error: ErrorCode, to_commit: ErrorCode, to_sync: ErrorCode
) -> None:
    joining = join(leading)
    await pass_time(3.001)
    member_id = value(joining).member_id
    commit(leading, 7, group="simple")
    leading.log.hold = True
    committing = commit(leading, 8, group="simple")
    leading.log.settle(error)
    assert commit_error(committing) == to_commit
    is_written = error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert fetched(leading, "simple") == (8 if is_written else 7, 0)
    syncing = sync(leading, member_id, 1)
    leading.log.settle(error)
    assert value(syncing).error_code == to_sync
    assert group_state(leading) == "PreparingRebalance"


# ---------------------------------------------------------------- reads of a leader that may be deposed


def fetching(running: Running) -> Deferred[Any]:
    return running.coordinator.offset_fetch(Context(api_version=7), group_requests.fetch_offsets())


async def test_an_offset_is_returned_once_leadership_is_confirmed(leading: Running) -> None:
    commit(leading, 7)
    leading.log.is_cut_off = True
    asking = fetching(leading)
    assert not asking.filled
    commit(leading, 8)
    (confirmation,) = leading.log.asked_to_confirm
    confirmation.fill(None)
    assert fetched_offset(value(asking)) == (8, 0)


async def test_a_read_counts_only_a_confirmation_that_was_requested_after_it(leading: Running) -> None:
    """A confirmation in flight may have been requested before the successor's election."""
    leading.log.is_cut_off = True
    first, second, third = fetching(leading), fetching(leading), fetching(leading)
    assert len(leading.log.asked_to_confirm) == 1
    leading.log.asked_to_confirm[0].fill(None)
    assert first.filled and not second.filled and not third.filled
    assert len(leading.log.asked_to_confirm) == 2
    leading.log.asked_to_confirm[1].fill(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert fetched_offset(value(second)) == fetched_offset(value(third)) == (-1, NOT_COORDINATOR)


async def test_a_read_gets_not_coordinator_if_leadership_is_not_confirmed(leading: Running) -> None:
    leading.log.is_cut_off = True
    first = fetching(leading)
    await pass_time(3)
    second = fetching(leading)
    await pass_time(2.001)
    assert fetched_offset(value(first)) == (-1, NOT_COORDINATOR)
    assert not second.filled
    await pass_time(3)
    assert fetched_offset(value(second)) == (-1, NOT_COORDINATOR)
    third = fetching(leading)
    await pass_time(5.001)
    assert fetched_offset(value(third)) == (-1, NOT_COORDINATOR)
    leading.log.is_cut_off = False
    leading.log.asked_to_confirm[0].fill(None)
    assert fetched(leading) == (-1, 0)


async def test_reads_that_wait_are_answered_on_unload(leading: Running) -> None:
    leading.log.is_cut_off = True
    first, second = fetching(leading), fetching(leading)
    leading.coordinator.on_not_leader(0, 1)
    assert fetched_offset(value(first)) == fetched_offset(value(second)) == (-1, NOT_COORDINATOR)
    leading.log.asked_to_confirm[0].fill(None)
    assert len(leading.log.asked_to_confirm) == 1


# ---------------------------------------------------------------- unload


async def test_waiting_joins_and_deletions_are_answered_at_once_on_unload(leading: Running) -> None:
    member_id = await stable_member(leading)
    commit(leading, 1, group="simple")
    leading.log.hold = True
    deleting = leading.coordinator.delete_groups(Context(), DeleteGroupsRequest(groups_names=["simple"]))
    commit(leading, 1, group="other")
    removing = leading.coordinator.answer(Context(), group_requests.delete_offsets(("t", 0), group="other"))
    newcomer = join(leading)
    heartbeat(leading, member_id, 1)
    rejoining = join(leading, member_id)
    (leader, follower) = value(rejoining), value(newcomer)
    syncing = sync(leading, leader.member_id, 2)
    waiting = sync(leading, follower.member_id, 2)
    parked = join(leading)  # with a third member the group rebalances again, and this member waits
    assert value(syncing).error_code == value(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    leading.coordinator.on_not_leader(0, 1)
    assert value(parked).error_code == NOT_COORDINATOR
    assert value(deleting).results[0].error_code == NOT_COORDINATOR
    assert value(removing).error_code == NOT_COORDINATOR


async def test_a_waiting_sync_is_answered_at_once_on_unload(leading: Running) -> None:
    joining = join(leading)
    await pass_time(3.001)
    leading.log.hold = True
    syncing = sync(leading, value(joining).member_id, 1)
    leading.coordinator.on_not_leader(0, 1)
    assert value(syncing).error_code == NOT_COORDINATOR


async def test_unload_leaves_no_state_and_no_timer_behind(running: Running) -> None:
    await running.loaded(0, 1)
    await stable_member(running)
    running.log.hold = True
    assert not commit(running, 1, group="simple").filled
    leadership: Any = running.coordinator._leadership
    timer: Any = running.coordinator._timer
    assert live(LoadedPartition) == live(DurableState) == 1
    assert len(timer) > 0
    running.coordinator.on_not_leader(0, 2)
    running.log.waiting.clear()
    assert live(LoadedPartition) == live(DurableState) == 0
    assert len(timer) == 0
    assert not leadership.loaded and not leadership._loads
    running.log.gate = trio.Event()
    await running.loaded(0, 3)
    running.coordinator.on_not_leader(0, 4)
    await others_have_run()
    assert not leadership._loads and not leadership._work.locked()


async def test_only_the_leader_expires_offsets(leading: Running) -> None:
    commit(leading, 1)
    leading.coordinator.on_not_leader(0, 1)
    before = list(leading.log.records[0])
    await pass_time(8 * 24 * 3600)
    assert leading.log.records[0] == before
    await leading.loaded(0, 2)
    await pass_time(601)
    assert leading.log.records[0][-1] == encode(OffsetRecord(GROUP, TopicPartition("t", 0), None))


# ---------------------------------------------------------------- members across a fail-over


def join_static(running: Running, member_id: str = "") -> Any:
    return running.coordinator.answer(Context(api_version=5), group_requests.join(member_id, instance="i"))


async def test_a_static_member_rejoins_at_a_new_coordinator_without_a_rebalance(running: Running) -> None:
    await running.loaded(0, 1)
    joining = join_static(running)
    await pass_time(3.001)
    member_id = value(joining).member_id
    sync(running, member_id, 1)
    running.coordinator.on_not_leader(0, 2)
    await running.loaded(0, 3)
    again = value(join_static(running))
    assert (again.error_code, again.generation_id) == (ErrorCode.NONE, 1)
    assert again.member_id != member_id
    assert value(join_static(running, member_id)).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert value(sync(running, again.member_id, 1)).assignment == b"mine"


async def test_a_member_id_that_was_only_handed_out_is_unknown_to_the_next_coordinator(running: Running) -> None:
    await running.loaded(0, 1)
    handed_out = value(join(running, version=4))
    assert handed_out.error_code == ErrorCode.MEMBER_ID_REQUIRED
    running.coordinator.on_not_leader(0, 2)
    await running.loaded(0, 3)
    assert value(join(running, handed_out.member_id, version=4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert value(join(running, version=4)).error_code == ErrorCode.MEMBER_ID_REQUIRED


async def test_the_generation_continues_at_the_next_coordinator(running: Running) -> None:
    await running.loaded(0, 1)
    member_id = await stable_member(running)
    running.coordinator.on_not_leader(0, 2)
    await running.loaded(0, 3)
    joining = join(running, member_id)  # the leader's rejoin causes a rebalance
    assert value(joining).generation_id == 2
    assert heartbeat(running, member_id, 1) == ErrorCode.ILLEGAL_GENERATION


async def test_kafka_19862_a_tombstone_whose_group_was_compacted_away_is_no_error(running: Running) -> None:
    """While a coordinator loads the log, compaction may remove records to which a later tombstone refers."""
    removed = encode(OffsetRecord(GROUP, TopicPartition("t", 0), None))
    running.log.records[0] = [removed, encode(GroupRecord(GROUP, None)), offset_record(2, "other")]
    await running.loaded()
    assert fetched(running, "other") == (2, 0)
    assert group_state(running) == "Dead"


# ---------------------------------------------------------------- topics deleted around a fail-over


async def test_a_deletion_reported_before_leading_is_carried_out_after_loading(running: Running) -> None:
    """The coordinator that should have deleted the offsets may have crashed first."""
    running.log.records[0] = [offset_record(1)]
    running.topics.missing.add("t")
    running.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    await running.loaded()
    assert fetched(running) == (-1, 0)
    assert running.log.records[0][-1] == encode(OffsetRecord(GROUP, TopicPartition("t", 0), None))


async def test_a_deletion_reported_during_an_abandoned_load_is_not_forgotten(running: Running) -> None:
    running.log.records[0] = [offset_record(1)]
    gate = running.log.gate = trio.Event()
    await running.loaded(0, 1)
    running.topics.missing.add("t")
    running.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    gate.set()
    await running.loaded(0, 5)
    assert fetched(running) == (-1, 0)


async def test_a_deletion_whose_tombstone_was_lost_is_tried_again(leading: Running) -> None:
    commit(leading, 1)
    leading.log.hold = True
    leading.topics.missing.add("t")
    leading.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    await others_have_run()
    leading.log.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert fetched(leading) == (1, 0)
    leading.log.hold = False
    await pass_time(601)
    assert fetched(leading) == (-1, 0)


async def test_offsets_of_a_topic_that_was_created_again_are_kept(running: Running) -> None:
    running.log.records[0] = [offset_record(1)]
    running.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    await running.loaded()
    assert fetched(running) == (1, 0)


async def test_deletions_are_remembered_for_two_checks_at_most(running: Running) -> None:
    deletions: Any = running.coordinator._sweeps.deletions
    running.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    await pass_time(601)
    assert len(deletions) == 1
    await pass_time(601)
    assert len(deletions) == 0
