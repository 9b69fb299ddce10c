"""The coordinator's shell: leadership, loading, timers, and commits to a log that waits or fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
import structlog
import trio
import trio.testing

from anabranch.broker.coordinator import expiry
from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.consumer_offsets_records import encode
from anabranch.broker.coordinator.deletions import PartitionDeletion
from anabranch.broker.coordinator.durable import GroupRecord, OffsetRecord
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.loader import read_state
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.coordinator.service import GroupCoordinator
from anabranch.broker.log.slices import SLICE_S, TimeSlice
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest
from anabranch.protocol.generated.describe_groups import DescribeGroupsRequest
from anabranch.protocol.generated.list_groups import ListGroupsRequest
from anabranch.protocol.message import read_version
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.features import CONSUMER_OFFSETS_TOPIC_SCHEMA
from tests.support.broker import group_requests
from tests.unit.coordinator.calls import (
    GROUP,
    commit,
    commit_error,
    fetched,
    fetched_stable,
    group_record,
    group_state,
    heartbeat,
    join,
    offset_record,
    others_have_run,
    stable_member,
    sync,
    value,
)
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.driver import Context
from tests.unit.coordinator.fakes import EveryTopic, LoopClock, MemoryLog, pass_time

pytestmark = pytest.mark.trio


# ---------------------------------------------------------------- members and commits


async def test_a_group_is_empty_after_the_session_timeout_of_its_only_member(leading: Running) -> None:
    member_id = await stable_member(leading)
    assert heartbeat(leading, member_id, 1) == ErrorCode.NONE
    await pass_time(9.9)
    assert heartbeat(leading, member_id, 1) == ErrorCode.NONE
    await pass_time(10.1)
    assert heartbeat(leading, member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group_state(leading) == "Empty"


async def test_a_commit_is_acknowledged_once_the_log_has_committed_it(leading: Running) -> None:
    leading.log.hold = True
    committing = commit(leading, 7)
    assert not committing.filled
    assert fetched(leading) == (-1, 0)
    leading.log.settle()
    assert commit_error(committing) == ErrorCode.NONE
    assert fetched(leading) == (7, 0)


async def test_outcomes_are_applied_in_the_order_of_the_writes(leading: Running) -> None:
    leading.log.hold = True
    first, second = commit(leading, 1), commit(leading, 2)
    leading.log.settle(at=1)
    assert not second.filled
    leading.log.settle()
    assert first.filled and second.filled
    assert fetched(leading) == (2, 0)


async def test_an_append_that_raises_is_a_lost_write(leading: Running) -> None:
    leading.log.raises = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert commit_error(commit(leading, 1)) == ErrorCode.NOT_COORDINATOR


async def test_a_commit_with_a_group_id_too_long_for_a_record_is_refused(leading: Running) -> None:
    assert commit_error(commit(leading, 1, group="g" * 40_000)) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert commit_error(commit(leading, 1)) == ErrorCode.NONE


async def test_a_stable_fetch_refuses_a_partition_with_a_pending_commit(leading: Running) -> None:
    commit(leading, 1)
    leading.log.hold = True
    commit(leading, 2)
    errors = [fetched_stable(leading, partition) for partition in (0, 1)]
    assert errors == [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE]
    assert fetched(leading) == (1, 0)


# ---------------------------------------------------------------- where a group is


async def test_requests_are_refused_before_leadership_while_loading_and_afterwards(running: Running) -> None:
    assert value(join(running)).error_code == ErrorCode.NOT_COORDINATOR
    running.log.gate = trio.Event()
    running.coordinator.on_leader(0, 0)
    await trio.testing.wait_all_tasks_blocked()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert value(join(running)).error_code == loading
    assert value(sync(running, "m", 1)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert heartbeat(running, "m", 1) == ErrorCode.NONE
    assert commit_error(commit(running, 1)) == loading
    assert fetched(running) == (-1, loading)
    assert running.coordinator.list_groups(Context(), ListGroupsRequest()).error_code == loading
    running.log.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert commit_error(commit(running, 1)) == ErrorCode.NONE
    running.coordinator.on_not_leader(0, 1)
    assert commit_error(commit(running, 2)) == ErrorCode.NOT_COORDINATOR
    running.coordinator.close()
    assert commit_error(commit(running, 2)) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_an_empty_group_id_is_invalid_only_for_members(leading: Running) -> None:
    response = value(leading.coordinator.answer(Context(), group_requests.join(group="")))
    assert response.error_code == ErrorCode.INVALID_GROUP_ID
    assert commit_error(commit(leading, 1, group="")) == ErrorCode.NONE


async def test_a_successor_knows_members_and_offsets(leading: Running) -> None:
    member_id = await stable_member(leading)
    commit(leading, 5, group="simple")
    leading.coordinator.on_not_leader(0, 1)
    await leading.loaded(0, 2)
    assert heartbeat(leading, member_id, 1) == ErrorCode.NONE
    assert value(sync(leading, member_id, 1)).assignment == b"mine"
    assert fetched(leading, "simple") == (5, 0)
    await pass_time(10.1)
    assert heartbeat(leading, member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID


# ---------------------------------------------------------------- races of load and unload


async def test_hotfix_2436_a_returning_leader_loads_again(leading: Running) -> None:
    commit(leading, 1)
    leading.coordinator.on_not_leader(0, 1)
    leading.log.records[0].append(offset_record(9))  # a record of the other coordinator
    await leading.loaded(0, 2)
    assert fetched(leading) == (9, 0)


async def test_kafka_4704_a_group_that_became_simple_loads(running: Running) -> None:
    running.log.records[0] = [group_record(), encode(GroupRecord(GROUP, None)), offset_record(4)]
    await running.loaded()
    assert fetched(running) == (4, 0)
    (described,) = running.coordinator.describe_groups(Context(), DescribeGroupsRequest(groups=[GROUP])).groups
    assert (described.group_state, described.protocol_type) == ("Empty", "")


async def test_kafka_16118_a_deleted_replica_is_unloaded_whatever_the_epoch(running: Running) -> None:
    await running.loaded(0, 7)
    running.coordinator.on_not_leader(0, None)
    assert commit_error(commit(running, 1)) == ErrorCode.NOT_COORDINATOR
    await running.loaded(0, 0)  # the partition is created again, so its epochs begin at 0 again
    assert commit_error(commit(running, 1)) == ErrorCode.NONE


async def test_kafka_20115_unload_does_not_need_the_log(leading: Running) -> None:
    leading.log.hold = True
    committing = commit(leading, 1)
    leading.log.raises = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    leading.coordinator.on_not_leader(0, 1)
    assert commit_error(committing) == ErrorCode.NOT_COORDINATOR


async def test_a_late_load_of_an_older_epoch_changes_nothing(running: Running) -> None:
    running.log.records[0] = [offset_record(1)]
    old_gate = running.log.gate = trio.Event()
    running.coordinator.on_leader(0, 1)
    await trio.testing.wait_all_tasks_blocked()
    running.coordinator.on_not_leader(0, 2)
    running.log.records[0] = [offset_record(2)]
    running.log.gate = None
    await running.loaded(0, 3)
    assert fetched(running) == (2, 0)
    old_gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert fetched(running) == (2, 0)
    assert running.log.reads == 2


async def test_leadership_changes_of_older_epochs_are_ignored(running: Running) -> None:
    await running.loaded(0, 5)
    running.coordinator.on_not_leader(0, 4)
    assert commit_error(commit(running, 1)) == ErrorCode.NONE
    running.coordinator.on_leader(0, 3)
    running.coordinator.on_leader(0, 5)
    await trio.testing.wait_all_tasks_blocked()
    assert running.log.reads == 1


async def test_a_leader_that_continues_in_the_next_epoch_keeps_the_groups(running: Running) -> None:
    await running.loaded(0, 5)
    joining = join(running)
    await running.loaded(0, 6)
    assert running.log.reads == 1
    assert not joining.filled
    await running.loaded(0, 8)  # another broker may have led in between
    assert running.log.reads == 2
    assert value(joining).error_code == ErrorCode.NOT_COORDINATOR


async def test_a_load_tries_a_failed_read_again(running: Running) -> None:
    running.log.records[0] = [offset_record(3)]
    running.log.read_errors = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), OSError("disk")]
    running.coordinator.on_leader(0, 0)
    await pass_time(1)
    assert fetched(running) == (3, 0)
    assert running.log.reads == 3


# ---------------------------------------------------------------- loading


class SteppingClock:
    """A clock that advances by ``step_s`` at each read, as if a replayed record took that long."""

    def __init__(self, step_s: float) -> None:
        self.time = 0.0
        self.step_s = step_s

    def monotonic(self) -> float:
        self.time += self.step_s
        return self.time

    def now_ms(self) -> int:
        return int(self.time * 1000)


async def test_a_load_lets_other_tasks_run_every_two_milliseconds() -> None:
    log = MemoryLog()
    log.records[0] = [offset_record(n) for n in range(3200)]

    async def turns_of_others(step_s: float) -> int:
        turns, done = 0, False

        async def other() -> None:
            nonlocal turns
            while not done:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await read_state(log, 0, 0, TimeSlice(SteppingClock(step_s)))
            done = True
        return turns

    assert await turns_of_others(SLICE_S) > 10 * await turns_of_others(0)


async def test_kip_915_unknown_key_types_are_skipped_with_one_warning() -> None:
    """KIP-915: the rest of the partition is loaded, and the unknown records stay in the log without new writes."""
    log = MemoryLog()
    unknown = (b"\x00\x03\x00\x01x", b"?")
    log.records[0] = [unknown, offset_record(1), unknown, unknown, offset_record(2)]
    with structlog.testing.capture_logs() as logs:
        state = await read_state(log, 0, 0, TimeSlice(LoopClock()))
    assert state.offsets[GROUP][TopicPartition("t", 0)].offset == 2
    assert [(entry["log_level"], entry["key_version"]) for entry in logs] == [("warning", 3)]
    assert len(log.records[0]) == 5


async def test_kip_915_each_record_is_written_at_the_level_that_is_finalized(leading: Running) -> None:
    """KIP-915: a partition that was loaded at one level continues at the next, up or down."""
    for level, version in ((1, 3), (2, 4), (1, 3), (0, 3)):
        leading.levels[CONSUMER_OFFSETS_TOPIC_SCHEMA] = level
        commit(leading, level)
        _, stored = leading.log.records[0][-1]
        assert stored is not None and read_version(stored) == version
        assert fetched(leading) == (level, 0)


async def test_a_malformed_record_is_reported_and_the_rest_loaded() -> None:
    log = MemoryLog()
    key, _ = offset_record(1)
    log.records[0] = [offset_record(1, "other"), (key, b"\x00\x03\x00"), offset_record(2, "third")]
    with structlog.testing.capture_logs() as logs:
        state = await read_state(log, 0, 0, TimeSlice(LoopClock()))
    assert set(state.offsets) == {"other", "third"}
    assert [entry["log_level"] for entry in logs] == ["error"]


# ---------------------------------------------------------------- deletion and expiry


async def test_offsets_of_deleted_partitions_get_tombstones(leading: Running) -> None:
    commit(leading, 1)
    commit(leading, 1, topic="other")
    leading.topics.missing.add("t")
    leading.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    await others_have_run()
    assert fetched(leading) == (-1, 0)
    assert fetched(leading, topic="other") == (1, 0)
    assert leading.log.records[0][-1] == encode(OffsetRecord(GROUP, TopicPartition("t", 0), None))


async def test_a_deletion_visits_only_groups_that_committed_an_offset_of_the_topic(
    leading: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of groups, visits to all other groups would make each deletion block the broker."""
    for number in range(50):
        commit(leading, 1, group=f"other-{number}", topic="other")
    commit(leading, 1, group="stored")
    leading.log.hold = True
    commit(leading, 1, group="on-its-way")
    visited: list[str] = []
    remove = expiry.remove_partitions

    def count(turn: Turn, group: Group, deleted: Mapping[TopicPartition, PartitionDeletion]) -> None:
        visited.append(group.group_id)
        remove(turn, group, deleted)

    monkeypatch.setattr(expiry, "remove_partitions", count)
    leading.topics.missing.add("t")
    leading.coordinator.on_partitions_deleted({TopicPartition("t", 0): -1})
    await others_have_run()
    assert visited == ["stored", "on-its-way"]
    leading.log.hold = False
    while leading.log.waiting:
        leading.log.settle()
    assert [fetched(leading, group=group) for group in visited] == [(-1, 0), (-1, 0)]


async def test_expired_offsets_are_removed_with_their_group(leading: Running) -> None:
    commit(leading, 1)
    await pass_time(7 * 24 * 3600 - 1)
    assert fetched(leading) == (1, 0)
    await pass_time(601)
    assert fetched(leading) == (-1, 0)
    assert leading.coordinator.list_groups(Context(), ListGroupsRequest()).groups == []


async def test_delete_groups_answers_for_each_group(leading: Running) -> None:
    commit(leading, 1, group="simple")
    await stable_member(leading)
    leading.log.hold = True
    names = [GROUP, "simple", "nobody"]
    deleting = leading.coordinator.delete_groups(Context(), DeleteGroupsRequest(groups_names=names))
    assert not deleting.filled
    assert commit_error(commit(leading, 2, group="simple")) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    leading.log.settle()
    errors = {result.group_id: result.error_code for result in value(deleting).results}
    expected = [ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert errors == dict(zip(names, expected))
    assert fetched(leading, "simple") == (-1, 0)
    assert value(leading.coordinator.delete_groups(Context(), DeleteGroupsRequest())).results == []


async def test_the_service_answers_offset_delete_and_leave_group(leading: Running) -> None:
    commit(leading, 1)
    deleting = leading.coordinator.answer(Context(), group_requests.delete_offsets(("t", 0)))
    assert value(deleting).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert fetched(leading) == (-1, 0)
    request = group_requests.leave(("x", None))
    (left,) = value(leading.coordinator.answer(Context(api_version=4), request)).members
    assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_groups_are_listed_by_state(leading: Running) -> None:
    commit(leading, 1, group="simple")
    await stable_member(leading)
    listed: Callable[[list[str]], list[str]] = lambda states: [  # noqa: E731
        group.group_id
        for group in leading.coordinator.list_groups(Context(), ListGroupsRequest(states_filter=states)).groups
    ]
    assert sorted(listed([])) == [GROUP, "simple"]
    assert listed(["Stable"]) == [GROUP]
    assert listed(["Empty", "Dead"]) == ["simple"]


async def test_authorized_operations_are_returned_when_requested(leading: Running) -> None:
    request = DescribeGroupsRequest(groups=["nobody"], include_authorized_operations=True)
    (described,) = leading.coordinator.describe_groups(Context(), request).groups
    assert (described.group_state, described.authorized_operations) == ("Dead", 328)


async def test_offset_fetch_version_1_repeats_the_error_in_each_partition(running: Running) -> None:
    request = group_requests.fetch_offsets(0, 1)
    response = value(running.coordinator.offset_fetch(Context(api_version=1), request))
    assert [p.error_code for p in response.topics[0].partitions] == [ErrorCode.NOT_COORDINATOR] * 2


async def test_cancelling_the_coordinator_answers_a_waiting_join(autojump_clock: trio.testing.MockClock) -> None:
    coordinator = GroupCoordinator(GroupConfig(), LoopClock(), random.Random(1), MemoryLog(), EveryTopic())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(coordinator.run)
        running = Running(coordinator, MemoryLog(), EveryTopic())
        await running.loaded()
        joining = join(running)
        nursery.cancel_scope.cancel()
    assert value(joining).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_subscriptions_are_not_described_before_the_group_is_stable(leading: Running) -> None:
    """The topics are hidden in the initial delay and in a rebalance; the protocol type is shown at once."""

    def described() -> tuple[str, str, int]:
        request = DescribeGroupsRequest(groups=[GROUP])
        (group,) = leading.coordinator.describe_groups(Context(api_version=5), request).groups
        return group.group_state, group.protocol_type, sum(bool(member.member_metadata) for member in group.members)

    join(leading)
    assert described() == ("PreparingRebalance", "consumer", 0)
    await pass_time(3.001)
    assert described() == ("CompletingRebalance", "consumer", 0)
