"""A coordinator that comes, goes and comes back: what it may answer, what it writes, what it leaves behind."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from broker.coordinator.durable import DurableState, GroupRecord, OffsetRecord
from broker.coordinator.loaded import LoadedPartition
from broker.coordinator.loader import adopt_groups
from broker.coordinator.offsets_log import KeyValue
from broker.coordinator.records import encode
from broker.deferred import Deferred
from broker.log.slices import SLICE_S, TimeSlice
from protocol.errors import ErrorCode, KafkaError
from protocol.generated.delete_groups import DeleteGroupsRequest
from protocol.generated.describe_groups import DescribeGroupsRequest
from protocol.generated.heartbeat import HeartbeatRequest
from protocol.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.generated.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from protocol.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from protocol.types import TopicPartition
from tests.unit.coordinator.calls import (
    GROUP,
    commit,
    commit_error,
    fetched,
    fetched_offset,
    group_record,
    heartbeat,
    join,
    offset_record,
    stable_member,
    sync,
    value,
)
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.driver import Context
from tests.unit.coordinator.fakes import MemoryLog, pass_time

pytestmark = pytest.mark.trio

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


def fetched_stable(running: Running) -> int:
    """The error of partition 0 in a fetch that wants no offset with a commit on its way (KIP-447)."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id=GROUP, topics=topics)]
    request = OffsetFetchRequest(groups=groups, require_stable=True)
    (group,) = value(running.coordinator.offset_fetch(Context(api_version=8), request)).groups
    return int(group.topics[0].partitions[0].error_code)


def group_state(running: Running) -> str:
    (described,) = running.coordinator.describe_groups(Context(), DescribeGroupsRequest(groups=[GROUP])).groups
    return described.group_state


def live(kind: type) -> int:
    """How many objects of a class there are."""
    gc.collect()
    return sum(type(found) is kind for found in gc.get_objects())


async def others_have_run() -> None:
    await trio.testing.wait_all_tasks_blocked()


# ---------------------------------------------------------------- when a new leader may answer


async def test_a_new_leader_serves_once_all_it_loaded_is_committed(running: Running, autojump_clock: MockClock) -> None:
    """What lies above the high watermark could be told now and be lost with this leader."""
    running.log.records[0] = [group_record(), offset_record(5)]
    running.log.watermark = trio.Event()
    await running.loaded()
    assert fetched(running) == (-1, LOADING)
    assert commit_error(commit(running, 6)) == LOADING
    assert heartbeat(running, "m-1", 3) == ErrorCode.NONE
    running.log.watermark.set()
    await others_have_run()
    assert fetched(running) == (5, 0)
    assert heartbeat(running, "m-1", 3) == ErrorCode.NONE


async def test_leadership_lost_while_the_watermark_is_waited_for(running: Running, autojump_clock: MockClock) -> None:
    running.log.records[0] = [offset_record(5)]
    running.log.watermark = trio.Event()
    await running.loaded(0, 1)
    running.coordinator.on_not_leader(0, 2)
    running.log.watermark.set()
    await others_have_run()
    assert fetched(running) == (-1, NOT_COORDINATOR)


async def test_sessions_start_when_the_group_serves_however_long_the_load_took(
    running: Running, autojump_clock: MockClock
) -> None:
    running.log.records[0] = [group_record()]
    running.log.watermark = trio.Event()
    await running.loaded()
    await pass_time(60)  # far beyond the member's ten seconds
    running.log.watermark.set()
    await pass_time(9.9)
    assert heartbeat(running, "m-1", 3) == ErrorCode.NONE
    await pass_time(10.1)
    assert heartbeat(running, "m-1", 3) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_sessions_of_members_that_never_show_up_end(running: Running, autojump_clock: MockClock) -> None:
    running.log.records[0] = [group_record()]
    await running.loaded()
    await pass_time(9.9)
    assert group_state(running) == "Stable"
    await pass_time(0.2)
    assert group_state(running) == "Empty"


STEPS = 12
"""More turns of the loop than the load of these tests takes."""


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("event", ["unload", "next epoch", "later epoch", "close"])
@pytest.mark.parametrize("groups", [10, 300], ids=["one slice", "two slices"])
async def test_news_at_every_step_of_a_load(
    running: Running, groups: int, event: str, step: int, autojump_clock: MockClock
) -> None:
    """KAFKA-10614, HOTFIX #2436: what the load finds when it comes to its end is the newest state of affairs."""
    running.log.records[0] = [offset_record(n, f"g{n}") for n in range(groups)]
    running.log.epochs[0] = 5
    running.coordinator.on_leader(0, 5)
    for _ in range(step):
        await trio.lowlevel.checkpoint()
    if event == "unload":
        running.coordinator.on_not_leader(0, 6)
    elif event == "close":
        running.coordinator.close()
    elif event == "next epoch":
        running.log.epochs[0] = 6
        running.coordinator.on_leader(0, 6)
    else:
        running.log.records[0].append(offset_record(99, "g7"))  # of the leader in between
        running.log.epochs[0] = 7
        running.coordinator.on_leader(0, 7)
    await others_have_run()
    gone = {"unload": NOT_COORDINATOR, "close": ErrorCode.COORDINATOR_NOT_AVAILABLE}.get(event)
    assert commit_error(commit(running, 1, group="simple")) == (gone or ErrorCode.NONE)
    assert fetched(running, "g7") == ((-1, gone) if gone else (99 if event == "later epoch" else 7, 0))
    assert running.log.reads <= (2 if event == "later epoch" else 1)
    assert live(LoadedPartition) == (0 if gone else 1)


async def test_the_steps_of_a_load_are_all_tried(running: Running, autojump_clock: MockClock) -> None:
    running.log.records[0] = [offset_record(n, f"g{n}") for n in range(300)]
    running.coordinator.on_leader(0, 5)
    leadership: Any = running.coordinator._leadership
    steps = 0
    while leadership.is_loading:
        await trio.lowlevel.checkpoint()
        steps += 1
    assert 5 < steps < STEPS


# ---------------------------------------------------------------- every append names its leader epoch


async def test_a_coordinator_writes_only_in_the_epoch_it_loaded_in(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded(0, 5)
    joining = join(running)
    await pass_time(3.001)
    member_id = value(joining).member_id
    running.log.epochs[0] = 7  # the broker leads in a later epoch and the coordinator was not told
    assert commit_error(commit(running, 1, group="simple")) == NOT_COORDINATOR
    assert value(sync(running, member_id, 1)).error_code == NOT_COORDINATOR
    assert running.log.records.get(0, []) == []
    await running.loaded(0, 7)
    assert commit_error(commit(running, 1, group="simple")) == ErrorCode.NONE


async def test_leading_on_into_the_next_epoch_writes_in_it(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded(0, 5)
    running.log.epochs[0] = 6
    await running.loaded(0, 6)
    assert commit_error(commit(running, 1)) == ErrorCode.NONE
    assert running.log.reads == 1


@pytest.mark.parametrize("held_by", ["read", "watermark"])
async def test_leading_on_while_loading_serves_in_the_newest_epoch(
    running: Running, held_by: str, autojump_clock: MockClock
) -> None:
    held = trio.Event()
    if held_by == "read":
        running.log.gate = held
    else:
        running.log.watermark = held
    await running.loaded(0, 5)
    running.log.epochs[0] = 6
    await running.loaded(0, 6)
    held.set()
    await others_have_run()
    assert running.log.reads == 1
    assert commit_error(commit(running, 1)) == ErrorCode.NONE


# ---------------------------------------------------------------- fates that come late


async def test_the_fate_of_an_earlier_leadership_changes_nothing(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded(0, 1)
    running.log.hold = True
    old = commit(running, 8)
    running.coordinator.on_not_leader(0, 2)
    assert commit_error(old) == NOT_COORDINATOR
    running.log.records[0] = [offset_record(3)]  # the next leader's; ours was truncated
    await running.loaded(0, 3)
    newer = commit(running, 4)
    _, _, fate = running.log.waiting.popleft()
    fate.fill(None)
    assert not newer.filled
    assert fetched(running) == (3, 0)
    running.log.settle()
    assert commit_error(newer) == ErrorCode.NONE
    assert fetched(running) == (4, 0)


async def test_a_commit_that_takes_too_long_is_answered_and_counts_when_it_is_committed_after_all(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.loaded()
    running.log.hold = True
    committing = commit(running, 7)
    await pass_time(4.999)
    assert not committing.filled
    await pass_time(0.002)
    assert commit_error(committing) == ErrorCode.REQUEST_TIMED_OUT
    assert fetched(running) == (-1, 0)
    assert fetched_stable(running) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    running.log.settle()
    assert fetched(running) == (7, 0)
    assert fetched_stable(running) == ErrorCode.NONE


async def test_every_waiting_write_has_its_own_time(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded()
    running.log.hold = True
    first = commit(running, 1)
    await pass_time(3)
    second = commit(running, 2)
    await pass_time(2.001)
    assert first.filled and not second.filled
    await pass_time(3)
    assert commit_error(second) == ErrorCode.REQUEST_TIMED_OUT
    running.log.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    running.log.settle()
    assert fetched(running) == (2, 0)


async def test_a_write_answered_as_overdue_is_not_answered_again_on_unload(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.loaded()
    running.log.hold = True
    commit(running, 1, group="simple")
    running.coordinator.delete_groups(Context(), DeleteGroupsRequest(groups_names=["simple"]))
    await pass_time(5.001)
    running.coordinator.on_not_leader(0, 1)
    assert fetched(running) == (-1, NOT_COORDINATOR)


async def test_a_group_deleted_while_a_commit_is_overdue_stays_deleted(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.loaded()
    running.log.hold = True
    commit(running, 1)
    await pass_time(5.001)
    deleting = running.coordinator.delete_groups(Context(), DeleteGroupsRequest(groups_names=[GROUP]))
    running.log.settle()
    running.log.settle()
    assert value(deleting).results[0].error_code == ErrorCode.NONE
    assert fetched(running) == (-1, 0)
    await running.loaded(0, 2)
    assert fetched(running) == (-1, 0)


async def test_an_overdue_assignment_lets_the_group_rebalance(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded()
    joining = join(running)
    await pass_time(3.001)
    member_id = value(joining).member_id
    running.log.hold = True
    syncing = sync(running, member_id, 1)
    await pass_time(5.001)
    assert value(syncing).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert group_state(running) == "PreparingRebalance"
    again = join(running, member_id)
    assert value(again).generation_id == 2
    running.log.settle()  # the first assignment, after all
    assert group_state(running) == "CompletingRebalance"
    syncing = sync(running, member_id, 2)
    running.log.settle()
    assert value(syncing).assignment == b"mine"


async def test_a_commit_on_too_few_replicas_counts_but_is_not_acknowledged(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.loaded()
    running.log.hold = True
    committing = commit(running, 7)
    running.log.settle(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert commit_error(committing) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fetched(running) == (7, 0)


APPEND_ERRORS = [
    # the log's error, what a commit is told, what a member that syncs is told (Kafka storeOffsets, storeGroup)
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
async def test_append_errors_as_kafka_tells_them(
    running: Running, error: ErrorCode, to_commit: ErrorCode, to_sync: ErrorCode, autojump_clock: MockClock
) -> None:
    await running.loaded()
    joining = join(running)
    await pass_time(3.001)
    member_id = value(joining).member_id
    running.log.hold = True
    committing = commit(running, 1, group="simple")
    running.log.settle(error)
    assert commit_error(committing) == to_commit
    syncing = sync(running, member_id, 1)
    running.log.settle(error)
    assert value(syncing).error_code == to_sync
    assert group_state(running) == "PreparingRebalance"


# ---------------------------------------------------------------- reads of a leader that may be none any more


def fetching(running: Running) -> Deferred[Any]:
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    return running.coordinator.offset_fetch(Context(api_version=7), OffsetFetchRequest(group_id=GROUP, topics=topics))


async def test_an_offset_is_told_once_it_is_certain_that_nobody_else_leads(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.loaded()
    commit(running, 7)
    running.log.is_cut_off = True
    asking = fetching(running)
    assert not asking.filled
    commit(running, 8)
    (confirmation,) = running.log.asked_to_confirm
    confirmation.fill(None)
    assert fetched_offset(value(asking)) == (8, 0)


async def test_a_read_is_confirmed_by_what_was_asked_after_it_came(running: Running, autojump_clock: MockClock) -> None:
    """The confirmation under way may have been given before the successor was elected."""
    await running.loaded()
    running.log.is_cut_off = True
    first, second, third = fetching(running), fetching(running), fetching(running)
    assert len(running.log.asked_to_confirm) == 1
    running.log.asked_to_confirm[0].fill(None)
    assert first.filled and not second.filled and not third.filled
    assert len(running.log.asked_to_confirm) == 2
    running.log.asked_to_confirm[1].fill(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert fetched_offset(value(second)) == fetched_offset(value(third)) == (-1, NOT_COORDINATOR)


async def test_a_leader_that_cannot_be_sure_sends_readers_to_look_for_another(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.loaded()
    running.log.is_cut_off = True
    first = fetching(running)
    await pass_time(3)
    second = fetching(running)
    await pass_time(2.001)
    assert fetched_offset(value(first)) == (-1, NOT_COORDINATOR)
    assert not second.filled
    await pass_time(3)
    assert fetched_offset(value(second)) == (-1, NOT_COORDINATOR)
    third = fetching(running)
    await pass_time(5.001)
    assert fetched_offset(value(third)) == (-1, NOT_COORDINATOR)
    running.log.is_cut_off = False
    running.log.asked_to_confirm[0].fill(None)
    assert fetched(running) == (-1, 0)


async def test_reads_that_wait_are_answered_on_unload(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded()
    running.log.is_cut_off = True
    first, second = fetching(running), fetching(running)
    running.coordinator.on_not_leader(0, 1)
    assert fetched_offset(value(first)) == fetched_offset(value(second)) == (-1, NOT_COORDINATOR)
    running.log.asked_to_confirm[0].fill(None)
    assert len(running.log.asked_to_confirm) == 1


# ---------------------------------------------------------------- unload


async def test_whatever_waits_is_answered_at_once_on_unload(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded()
    member_id = await stable_member(running)
    commit(running, 1, group="simple")
    running.log.hold = True
    deleting = running.coordinator.delete_groups(Context(), DeleteGroupsRequest(groups_names=["simple"]))
    commit(running, 1, group="other")
    topics = [OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
    removing = running.coordinator.offset_delete(Context(), OffsetDeleteRequest(group_id="other", topics=topics))
    newcomer = join(running)
    value(running.coordinator.heartbeat(Context(), _heartbeat_request(member_id)))
    rejoining = join(running, member_id)
    (leader, follower) = value(rejoining), value(newcomer)
    syncing = sync(running, leader.member_id, 2)
    waiting = sync(running, follower.member_id, 2)
    parked = join(running)  # a third member: the group rebalances again and this one waits
    assert value(syncing).error_code == value(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    running.coordinator.on_not_leader(0, 1)
    assert value(parked).error_code == NOT_COORDINATOR
    assert value(deleting).results[0].error_code == NOT_COORDINATOR
    assert value(removing).error_code == NOT_COORDINATOR


async def test_a_waiting_sync_is_answered_at_once_on_unload(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded()
    joining = join(running)
    await pass_time(3.001)
    running.log.hold = True
    syncing = sync(running, value(joining).member_id, 1)
    running.coordinator.on_not_leader(0, 1)
    assert value(syncing).error_code == NOT_COORDINATOR


async def test_unload_leaves_nothing_behind(running: Running, autojump_clock: MockClock) -> None:
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


async def test_only_the_leader_expires_offsets(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded()
    commit(running, 1)
    running.coordinator.on_not_leader(0, 1)
    before = list(running.log.records[0])
    await pass_time(8 * 24 * 3600)
    assert running.log.records[0] == before
    await running.loaded(0, 2)
    await pass_time(601)
    assert running.log.records[0][-1] == encode(OffsetRecord(GROUP, TopicPartition("t", 0), None))


# ---------------------------------------------------------------- members across a fail-over


def join_static(running: Running, member_id: str = "") -> Any:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        group_instance_id="i",
        protocol_type="consumer",
        protocols=protocols,
    )
    return running.coordinator.join_group(Context(api_version=5), request)


async def test_a_static_member_comes_back_to_a_new_coordinator_without_a_rebalance(
    running: Running, autojump_clock: MockClock
) -> None:
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


async def test_a_member_id_that_was_only_handed_out_is_unknown_to_the_next_coordinator(
    running: Running, autojump_clock: MockClock
) -> None:
    await running.loaded(0, 1)
    handed_out = value(join(running, version=4))
    assert handed_out.error_code == ErrorCode.MEMBER_ID_REQUIRED
    running.coordinator.on_not_leader(0, 2)
    await running.loaded(0, 3)
    assert value(join(running, handed_out.member_id, version=4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert value(join(running, version=4)).error_code == ErrorCode.MEMBER_ID_REQUIRED


async def test_the_generation_goes_on_at_the_next_coordinator(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded(0, 1)
    member_id = await stable_member(running)
    running.coordinator.on_not_leader(0, 2)
    await running.loaded(0, 3)
    joining = join(running, member_id)  # the leader rejoins: a rebalance
    assert value(joining).generation_id == 2
    assert heartbeat(running, member_id, 1) == ErrorCode.ILLEGAL_GENERATION


async def test_kafka_19862_a_tombstone_whose_group_was_compacted_away_is_no_error(
    running: Running, autojump_clock: MockClock
) -> None:
    """Compaction may take the records that a later tombstone is about while the log is read."""
    removed = encode(OffsetRecord(GROUP, TopicPartition("t", 0), None))
    running.log.records[0] = [removed, encode(GroupRecord(GROUP, None)), offset_record(2, "other")]
    await running.loaded()
    assert fetched(running, "other") == (2, 0)
    assert group_state(running) == "Dead"


# ---------------------------------------------------------------- topics deleted around a fail-over


async def test_a_deletion_heard_before_leading_is_carried_out_after_loading(
    running: Running, autojump_clock: MockClock
) -> None:
    """The coordinator that should have done it may have died before."""
    running.log.records[0] = [offset_record(1)]
    running.topics.missing.add("t")
    running.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    await running.loaded()
    assert fetched(running) == (-1, 0)
    assert running.log.records[0][-1] == encode(OffsetRecord(GROUP, TopicPartition("t", 0), None))


async def test_a_deletion_heard_during_a_load_that_is_given_up_is_not_forgotten(
    running: Running, autojump_clock: MockClock
) -> None:
    running.log.records[0] = [offset_record(1)]
    gate = running.log.gate = trio.Event()
    await running.loaded(0, 1)
    running.topics.missing.add("t")
    running.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    gate.set()
    await running.loaded(0, 5)
    assert fetched(running) == (-1, 0)


async def test_a_deletion_whose_tombstone_was_lost_is_tried_again(running: Running, autojump_clock: MockClock) -> None:
    await running.loaded()
    commit(running, 1)
    running.log.hold = True
    running.topics.missing.add("t")
    running.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    running.log.settle(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert fetched(running) == (1, 0)
    running.log.hold = False
    await pass_time(601)
    assert fetched(running) == (-1, 0)


async def test_offsets_of_a_topic_created_anew_are_left_alone(running: Running, autojump_clock: MockClock) -> None:
    running.log.records[0] = [offset_record(1)]
    running.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    await running.loaded()
    assert fetched(running) == (1, 0)


async def test_deletions_are_remembered_for_two_checks_at_most(running: Running, autojump_clock: MockClock) -> None:
    deletions: Any = running.coordinator._deletions
    running.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    await pass_time(601)
    assert len(deletions) == 1
    await pass_time(601)
    assert len(deletions) == 0


# ---------------------------------------------------------------- loads share the loop


class CountingLog(MemoryLog):
    """Counts the records that are read between two turns of another task."""

    def __init__(self) -> None:
        super().__init__()
        self.since_others_ran = 0
        self.most = 0

    async def read_all(self, partition: int, leader_epoch: int) -> AsyncIterator[Iterable[KeyValue]]:
        yield self._counted(self.records.get(partition, []))

    def _counted(self, records: list[KeyValue]) -> Iterator[KeyValue]:
        for record in records:
            self.since_others_ran += 1
            self.most = max(self.most, self.since_others_ran)
            yield record


async def others_run(log: CountingLog) -> None:
    while True:
        await trio.lowlevel.checkpoint()
        log.since_others_ran = 0


async def test_fifty_partitions_at_once_hold_the_loop_no_longer_than_one(
    running: Running, nursery: Any, autojump_clock: MockClock
) -> None:
    """Each load pauses after a slice; fifty that each take a slice in one turn of the loop would be a long one."""
    log = CountingLog()
    leadership: Any = running.coordinator._leadership
    leadership._log = log
    for partition in range(50):
        log.records[partition] = [offset_record(n) for n in range(600)]
        running.coordinator.on_leader(partition, 0)
    with trio.CancelScope() as others:
        async with trio.open_nursery() as inner:
            inner.start_soon(others_run, log)
            while leadership.is_loading:
                await trio.lowlevel.checkpoint()
            others.cancel()
    assert len(leadership.loaded) == 50
    assert log.most <= 2 * 256  # a slice ends after so many steps where no time passes


async def test_one_partition_that_waits_for_its_watermark_holds_up_no_other(
    running: Running, autojump_clock: MockClock
) -> None:
    running.log.watermark = trio.Event()
    await running.loaded(0, 1)
    running.log.watermark = None
    running.topics.offsets_partitions = 2
    await running.loaded(1, 1)
    leadership: Any = running.coordinator._leadership
    assert list(leadership.loaded) == [1]


async def test_groups_are_built_in_slices(running: Running, autojump_clock: MockClock) -> None:
    running.log.records[0] = [offset_record(n, f"g{n}") for n in range(100)]
    await running.loaded()
    leadership: Any = running.coordinator._leadership
    loaded = leadership.loaded[0]
    loaded.shard.groups.clear()
    turns = 0

    class SlowClock:
        time = 0.0

        def monotonic(self) -> float:
            self.time += SLICE_S
            return self.time

        def now_ms(self) -> int:
            return 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as inner:
        inner.start_soon(other)
        await adopt_groups(loaded, TimeSlice(SlowClock()))
        inner.cancel_scope.cancel()
    assert len(loaded.shard.groups) == 100
    assert turns >= 50


def _heartbeat_request(member_id: str) -> Any:
    return HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=member_id)
