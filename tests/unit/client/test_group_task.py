"""The member's own task against a scripted coordinator: cancelled calls, and leaving during a join."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from anabranch.client.cluster import Cluster, Node
from anabranch.client.errors import CommitFailedError
from anabranch.client.group.assignors import Members, PartitionCounts, RangeAssignor
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.client.group.group_member import MemberState
from anabranch.client.group.listener import RebalanceListener
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from anabranch.protocol.generated.sync_group import SyncGroupRequest
from anabranch.protocol.types import TopicPartition
from tests.unit.client.scripted_group import T0, T1, Fixture, Listener, ScriptedLink, reading


async def test_a_call_cancelled_while_it_revokes_loses_no_assignment() -> None:
    link = ScriptedLink([T0], [T1], [T1])
    async with anyio.create_task_group() as tasks:
        member, listener = Fixture(tasks, link), Listener()
        member.coordinator.listener = RebalanceListener(listener)
        await member.poll_until(lambda: member.held == {T0})
        listener.hold = anyio.Event()
        member.coordinator.request_rejoin()
        with anyio.move_on_after(0.2) as waited:
            await member.poll_until(lambda: member.held == {T1})
        assert waited.cancelled_caught and listener.calls[-1] == ("revoked", [T0])
        listener.hold.set()
        await member.poll_until(lambda: member.held == {T1})
        assert ("assigned", [T1]) in listener.calls


@pytest.mark.parametrize("has_arrived", [False, True], ids=["no response", "its response has arrived"])
async def test_leaving_ends_a_join_in_flight(has_arrived: bool) -> None:
    link = ScriptedLink([T0])
    link.hold_joins = anyio.Event()
    async with anyio.create_task_group() as tasks:
        member = Fixture(tasks, link)
        await member.coordinator.poll()
        await link.join_is_held.wait()
        if has_arrived:
            link.hold_joins.set()  # the joining task processes the response when this task next waits
        await member.coordinator.leave()
        assert [m.member_id for m in link.seen[-1].members] == [link.seen[-2].member_id]
        link.hold_joins.set()
        await anyio.wait_all_tasks_blocked()
        assert member.coordinator.member.state is MemberState.UNJOINED
        assert not any(isinstance(body, SyncGroupRequest) for body in link.seen)
        await member.poll_until(lambda: member.held == {T0})  # a later subscription joins again, without an error
        assert member.coordinator.member.member_id != link.seen[1].member_id


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
async def test_a_commit_that_is_refused_while_the_member_joins_does_not_end_the_join(code: ErrorCode) -> None:
    link = ScriptedLink([T0], [T0])
    async with reading(link) as (member, tasks):
        member_id = member.coordinator.member.member_id
        link.hold_commits, link.hold_joins, link.join_is_held = anyio.Event(), anyio.Event(), anyio.Event()
        link.refuse_commits = code
        refused: list[KafkaError] = []

        async def commit() -> None:
            try:
                await member.coordinator.commits.commit({T0: OffsetAndMetadata(7)})
            except CommitFailedError as error:
                refused.append(error)

        tasks.start_soon(commit)
        await anyio.wait_all_tasks_blocked()
        member.coordinator.request_rejoin()
        await member.coordinator.poll()
        await link.join_is_held.wait()
        link.hold_commits.set()
        await anyio.wait_all_tasks_blocked()
        assert [error.code for error in refused] == [code]
        link.hold_joins.set()
        await member.poll_until(lambda: member.coordinator.member.generation_id == 2)
        assert member.held == {T0}
        assert member.coordinator.member.member_id == member_id


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "forgotten"])
async def test_a_member_of_a_past_generation_joins_with_its_id_and_without_it_only_if_that_is_unknown(
    is_known: bool,
) -> None:
    link = ScriptedLink([T0], [T1])
    async with anyio.create_task_group() as tasks:
        member, listener = Fixture(tasks, link, group_instance_id="one"), Listener()
        await member.poll_until(lambda: member.held == {T0})
        member.coordinator.listener = RebalanceListener(listener)
        member_id = member.coordinator.member.member_id
        link.unknown_member = None if is_known else member_id
        link.refuse_heartbeats = ErrorCode.ILLEGAL_GENERATION
        await member.coordinator._heartbeat()
        link.refuse_heartbeats = None
        before = len(link.seen)
        await member.poll_until(lambda: member.held == {T1})
        asked = [body.member_id for body in link.seen[before:] if isinstance(body, JoinGroupRequest)]
        new_id = member.coordinator.member.member_id
        assert asked == ([member_id] if is_known else [member_id, "", new_id])
        assert (new_id == member_id) is is_known
        assert listener.calls == [("revoked", [T0]), ("assigned", [T1])]
        await member.coordinator.close(commit=False)


async def test_an_assignment_of_a_lost_generation_is_ignored() -> None:
    link = ScriptedLink([T0], [T1])
    async with anyio.create_task_group() as tasks:
        member, listener = Fixture(tasks, link), Listener()
        member.coordinator.listener = RebalanceListener(listener)
        await member.coordinator.poll()
        await anyio.wait_all_tasks_blocked()
        assert member.coordinator.member.state is MemberState.STABLE
        member.coordinator.member.forget()  # a heartbeat with the error UNKNOWN_MEMBER_ID does this
        await member.poll_until(lambda: bool(member.held))
        assert member.held == {T1}
        assert listener.calls == [("assigned", [T1])]


class FaultyAssignor(RangeAssignor):
    """A user's assignor. ``fault`` is what it returns, or raises if it is an exception."""

    name = "faulty"

    def __init__(self, in_data: bool, fault: Any) -> None:
        self.in_data, self.fault = in_data, fault

    def user_data(self, generation_id: int) -> bytes | None:
        return self.faulty() if self.in_data else None

    def assign(self, partition_counts: PartitionCounts, members: Members) -> Any:
        return super().assign(partition_counts, members) if self.in_data else self.faulty()

    def faulty(self) -> Any:
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.fault


class LeadingLink(ScriptedLink):
    async def _join(self, body: JoinGroupRequest) -> JoinGroupResponse:
        answer = await super()._join(body)
        if not answer.error_code:
            answer.leader, answer.protocol_name = answer.member_id, "faulty"
            answer.members = [JoinGroupResponseMember(member_id=answer.member_id, metadata=body.protocols[0].metadata)]
        return answer


@pytest.mark.parametrize(
    ("in_data", "fault"),
    [
        *((True, fault) for fault in (KeyError("data"), "text", 5)),
        *((False, fault) for fault in (KeyError("data"), None, {5: []}, {"m": [("t", "0")]}, {"m": [("t", 2**31)]})),
    ],
)
async def test_a_fault_of_the_users_assignor_is_the_error_of_the_next_call(in_data: bool, fault: Any) -> None:
    async with anyio.create_task_group() as tasks:
        member = Fixture(tasks, LeadingLink([T0]), partition_assignment_strategy=[FaultyAssignor(in_data, fault)])
        with pytest.raises(KafkaError, match=r"^INCONSISTENT_GROUP_PROTOCOL \(23\): group g: .*the assignor faulty: "):
            await member.poll_until(lambda: False)
        tasks.cancel_scope.cancel()


FENCED = "group g: .*another consumer joined with group_instance_id 'one'"


def joins(link: ScriptedLink) -> int:
    return sum(isinstance(body, JoinGroupRequest) for body in link.seen)


@pytest.mark.parametrize("by", ["heartbeat", "position", "commit"])
async def test_a_fenced_static_member_stays_out(by: str) -> None:
    """Every later call raises the error. To join again would fence the consumer that has the place now."""
    link = ScriptedLink([T0], [T0])
    async with reading(link, group_instance_id="one") as (member, _):
        before = joins(link)
        offsets = {T0: OffsetAndMetadata(5, "", -1, -1)}
        if by == "heartbeat":
            link.refuse_heartbeats = ErrorCode.FENCED_INSTANCE_ID
            await member.coordinator._heartbeat()
        elif by == "position":
            fenced = KafkaError(ErrorCode.FENCED_INSTANCE_ID, "fenced")
            member.coordinator.on_position_error(fenced, member.coordinator.member.generation_id)
        else:
            link.refuse_commits = ErrorCode.FENCED_INSTANCE_ID
            with pytest.raises(KafkaError) as refused:
                await member.coordinator.commits.commit(offsets)
            assert refused.value.code is ErrorCode.FENCED_INSTANCE_ID
        for _ in range(3):
            assert member.coordinator.needs_poll()
            with pytest.raises(KafkaError, match=FENCED):
                await member.coordinator.poll()
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(KafkaError, match=FENCED):
            await member.coordinator.commits.commit(offsets)
        assert joins(link) == before and not member.held
        assert link.committed == []
        await member.coordinator.close(commit=True)
        await member.poll_until(lambda: member.held == {T0})  # a later subscription takes the place back


async def test_a_static_member_that_is_fenced_while_it_joins_stays_out() -> None:
    link = ScriptedLink()
    link.refuse_joins = ErrorCode.FENCED_INSTANCE_ID
    async with anyio.create_task_group() as tasks:
        member = Fixture(tasks, link, group_instance_id="one")
        await member.coordinator.poll()
        await anyio.wait_all_tasks_blocked()
        before = joins(link)
        for _ in range(3):
            with pytest.raises(KafkaError, match=FENCED):
                await member.coordinator.poll()
            await anyio.wait_all_tasks_blocked()
        assert joins(link) == before


async def test_an_assignment_of_another_subscription_is_not_taken() -> None:
    """A static member that restarts gets its last assignment, although it subscribes to another topic now."""
    link = ScriptedLink([TopicPartition("before", 0)], [TopicPartition("before", 0), T1], [T0])
    async with anyio.create_task_group() as tasks:
        member, listener = Fixture(tasks, link, group_instance_id="one"), Listener()
        member.coordinator.listener = RebalanceListener(listener)
        await member.poll_until(lambda: member.held == {T0})
        assert link.generation_id == 3 and listener.calls == [("assigned", [T0])]


async def test_a_member_with_a_pattern_joins_once_all_topics_are_known() -> None:
    """Before the response about all topics, no topic matches the pattern, so a join would be a useless rebalance."""
    link = ScriptedLink([])
    async with anyio.create_task_group() as tasks:
        fixture = Fixture(tasks, link)
        fixture.subscription.unsubscribe()
        fixture.subscription.subscribe_pattern("t")
        fixture.metadata.update()  # a refresh failed
        await fixture.coordinator.poll()
        assert not fixture.coordinator.standing.is_joining
        fixture.metadata.cluster = Cluster(nodes={1: Node(1, "h", 1)})  # a response from before the subscription
        await fixture.coordinator.poll()
        assert not fixture.coordinator.standing.is_joining
        fixture.metadata.knows_all_topics = True
        await fixture.coordinator.poll()
        assert fixture.coordinator.standing.is_joining
        tasks.cancel_scope.cancel()
