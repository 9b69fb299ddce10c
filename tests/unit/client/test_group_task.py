"""The member's own task against a scripted coordinator: cancelled calls, and leaving during a join."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import CommitFailedError
from anabranch.client.group.assignors import resolve_assignors
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.client.group.group_member import MemberState
from anabranch.client.group.group_protocol import decode_assignment, encode_assignment, read_layouts
from anabranch.client.group.listener import RebalanceListener
from anabranch.client.group.membership import GroupMembership
from anabranch.client.net.cluster import Cluster, PartitionInfo, TopicInfo
from anabranch.client.subscription.subscription import Subscription
from anabranch.protocol.errors import ErrorCode, KafkaError, error_for
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolAssignment
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from anabranch.protocol.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from anabranch.protocol.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from anabranch.protocol.primitives import encode_versioned
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.real_anyio import client_env
from anabranch.runtime.signal import Signal

Run = Callable[[Callable[[], Awaitable[Any]]], Any]

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class ScriptedLink:
    """Gives out a member id, then a generation per join; SyncGroup returns the ``assignments`` one after the other."""

    group_id = "g"

    def __init__(self, *assignments: list[TopicPartition]) -> None:
        self.assignments = list(assignments)
        self.layouts: list[dict[str, int] | None] = []
        """The layouts that the leader names in each response; it names none once the list is used up."""
        self.seen: list[Any] = []
        self.generation_id = 0
        self.hold_joins: anyio.Event | None = None
        self.join_is_held = anyio.Event()
        self.hold_commits: anyio.Event | None = None
        self.refuse_commits: ErrorCode | None = None
        self.committed: list[dict[TopicPartition, int]] = []

    async def request(self, body: Any, **_: Any) -> Any:
        self.seen.append(body)
        if isinstance(body, JoinGroupRequest):
            return await self._join(body)
        if isinstance(body, SyncGroupRequest):
            layouts = self.layouts.pop(0) if self.layouts else None
            return SyncGroupResponse(assignment=encode_assignment(self.assignments.pop(0), layouts))
        assert isinstance(body, LeaveGroupRequest)
        return LeaveGroupResponse()

    async def _join(self, body: JoinGroupRequest) -> JoinGroupResponse:
        if not body.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=f"m{len(self.seen)}")
        if self.hold_joins is not None:
            self.join_is_held.set()
            await self.hold_joins.wait()
        self.generation_id += 1
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_name="cooperative-sticky",
            leader="other",
            member_id=body.member_id,
        )

    async def commit_offsets(self, offsets: Any, timeout_ms: float, **_: Any) -> set[TopicPartition]:
        if self.hold_commits is not None:
            await self.hold_commits.wait()
        if self.refuse_commits is not None:
            raise error_for(self.refuse_commits)
        self.committed.append({tp: offset.offset for tp, offset in offsets.items()})
        return set()

    async def pause(self, attempt: int) -> None:
        await anyio.sleep(0)  # polls: one turn of the loop

    def moved(self) -> None:
        """Do nothing, because the script has only one coordinator."""


class ScriptedMetadata:
    """A cluster that the test describes; ``asked`` counts requests for a newer description."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.knows_all_topics = False
        self.asked = 0
        self.refreshed: Callable[[], None] = lambda: None
        self._listeners: list[Callable[[], None]] = []

    def on_update(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def update(self) -> None:
        for listener in self._listeners:
            listener()

    def want_only(self, topics: Any) -> None:
        """Do nothing, because the test describes the topics."""

    def ensure(self, topic: str) -> None:
        """Do nothing, because the test describes the topics."""

    def request_update(self) -> None:
        self.asked += 1

    async def refresh(self) -> None:
        self.refreshed()


class Fixture:
    """A coordinator on a scripted link, and the signal that its changes set."""

    def __init__(self, tasks: anyio.abc.TaskGroup, link: ScriptedLink, **keys: Any) -> None:
        given = {"group_id": "g", "partition_assignment_strategy": "cooperative-sticky", "enable_auto_commit": False}
        config = ConsumerConfig.parse({**given, **keys})
        self.changed = Signal()
        self.subscription = Subscription()
        self.subscription.subscribe(["t"])
        self.metadata = ScriptedMetadata()
        metadata: Any = self.metadata
        assignors = resolve_assignors(config.partition_assignment_strategy)
        any_link: Any = link
        self.coordinator = GroupMembership(
            client_env(), config, any_link, assignors, self.subscription, metadata, tasks, self.changed.set
        )

    @property
    def held(self) -> set[TopicPartition]:
        return set(self.subscription.partitions)

    async def poll_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self.coordinator.poll()
            if not holds():
                await self.changed.wait(5)


class Listener:
    """Records its calls; ``hold`` blocks the revoked callback."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.hold: anyio.Event | None = None

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("revoked", partitions))
        if self.hold is not None:
            await self.hold.wait()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))


@asynccontextmanager
async def reading(link: ScriptedLink) -> AsyncIterator[tuple[Fixture, anyio.abc.TaskGroup]]:
    """Run a member that was assigned the one partition, for the length of a block."""
    async with anyio.create_task_group() as tasks:
        member = Fixture(tasks, link)
        await member.poll_until(lambda: member.held == {T0})
        yield member, tasks
        tasks.cancel_scope.cancel()


def test_a_call_cancelled_while_it_revokes_loses_no_assignment(run: Run) -> None:
    async def check() -> None:
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

    run(check)


def test_leaving_ends_a_join_under_way(run: Run) -> None:
    async def check() -> None:
        link = ScriptedLink([T0])
        link.hold_joins = anyio.Event()
        async with anyio.create_task_group() as tasks:
            member = Fixture(tasks, link)
            await member.coordinator.poll()
            await link.join_is_held.wait()
            await member.coordinator.leave()
            assert [m.member_id for m in link.seen[-1].members] == [link.seen[-2].member_id]
            link.hold_joins.set()
            await anyio.wait_all_tasks_blocked()
            assert member.coordinator.member.state is MemberState.UNJOINED
            assert not any(isinstance(body, SyncGroupRequest) for body in link.seen)
            await member.poll_until(lambda: member.held == {T0})  # a later subscription joins again, without an error
            assert member.coordinator.member.member_id != link.seen[1].member_id

    run(check)


def test_leaving_ends_a_join_whose_response_has_arrived(run: Run) -> None:
    async def check() -> None:
        link = ScriptedLink([T0])
        link.hold_joins = anyio.Event()
        async with anyio.create_task_group() as tasks:
            member = Fixture(tasks, link)
            await member.coordinator.poll()
            await link.join_is_held.wait()
            link.hold_joins.set()  # the joining task processes the response when this task next waits
            await member.coordinator.leave()
            await anyio.wait_all_tasks_blocked()
            assert member.coordinator.member.state is MemberState.UNJOINED
            assert not any(isinstance(body, SyncGroupRequest) for body in link.seen)
            await member.poll_until(lambda: member.held == {T0})

    run(check)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_commit_that_is_refused_while_the_member_joins_does_not_end_the_join(run: Run, code: ErrorCode) -> None:
    async def check() -> None:
        link = ScriptedLink([T0], [T0])
        async with reading(link) as (member, tasks):
            member_id = member.coordinator.member.member_id
            link.hold_commits, link.hold_joins, link.join_is_held = anyio.Event(), anyio.Event(), anyio.Event()
            link.refuse_commits = code
            refused: list[KafkaError] = []

            async def commit() -> None:
                try:
                    await member.coordinator.commit({T0: OffsetAndMetadata(7)})
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

    run(check)


def test_an_assignment_of_a_lost_generation_is_ignored(run: Run) -> None:
    async def check() -> None:
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

    run(check)


def test_a_background_commit_never_overwrites_a_later_commit(run: Run) -> None:
    """The coordinator was away: a repeated background commit is older than a commit that starts now."""

    async def check() -> None:
        link = ScriptedLink([T0])
        async with anyio.create_task_group() as tasks:
            member = Fixture(tasks, link, enable_auto_commit=True, auto_commit_interval_ms=0)
            await member.poll_until(lambda: member.held == {T0})
            tried_again = link.hold_commits = anyio.Event()
            member.subscription.state(T0).seek(4)
            await member.coordinator.poll()
            await anyio.wait_all_tasks_blocked()
            link.hold_commits = None
            member.subscription.state(T0).seek(25)
            await member.coordinator.commit(member.coordinator.consumed())
            tried_again.set()
            await anyio.wait_all_tasks_blocked()
            assert link.committed == [{T0: 25}]

    run(check)


def test_commit_news_skips_offsets_that_this_member_has_committed(run: Run) -> None:
    """After an unanswered commit or a commit of another offset, the group's offset is unknown."""

    async def check() -> None:
        link = ScriptedLink([T0])
        async with reading(link) as (member, _):
            coordinator = member.coordinator
            member.subscription.state(T0).seek(4)
            for _ in range(2):
                await coordinator.commit_news([T0])
            assert link.committed == [{T0: 4}]
            await coordinator.commit({T0: OffsetAndMetadata(2)})
            await coordinator.commit_news([T0])
            assert link.committed == [{T0: 4}, {T0: 2}, {T0: 4}]
            link.hold_commits = anyio.Event()
            with anyio.move_on_after(0):
                await coordinator.commit({T0: OffsetAndMetadata(1)})
            link.hold_commits = None
            await coordinator.commit_news([T0])
            assert link.committed[3:] == [{T0: 4}]

    run(check)


def test_a_committed_offset_is_sent_again_together_with_an_uncommitted_one(run: Run) -> None:
    """One request then reports all of the partitions."""

    async def check() -> None:
        link = ScriptedLink([T0, T1])
        async with anyio.create_task_group() as tasks:
            member = Fixture(tasks, link)
            await member.poll_until(lambda: member.held == {T0, T1})
            for tp in (T0, T1):
                member.subscription.state(tp).seek(4)
            await member.coordinator.commit_news([T0])
            await member.coordinator.commit_news([T0, T1])
            await member.coordinator.commit_news([T0, T1])
            assert link.committed == [{T0: 4}, {T0: 4, T1: 4}]
            tasks.cancel_scope.cancel()

    run(check)


def test_of_two_commits_at_once_neither_is_known_to_be_the_last(run: Run) -> None:
    """The second commit may have reached the group when the first is answered, and its caller is gone."""

    async def check() -> None:
        link = ScriptedLink([T0])
        async with reading(link) as (member, tasks):
            member.subscription.state(T0).seek(4)
            link.hold_commits = anyio.Event()
            tasks.start_soon(member.coordinator.commit, member.coordinator.consumed())
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0):
                await member.coordinator.commit({T0: OffsetAndMetadata(2)})
            link.hold_commits.set()
            await anyio.wait_all_tasks_blocked()
            await member.coordinator.commit_news([T0])
            assert link.committed == [{T0: 4}, {T0: 4}]

    run(check)


def test_after_an_older_commit_is_answered_last_the_offset_is_committed_again(run: Run) -> None:
    """The older commit was repeated because the coordinator was loading."""

    async def check() -> None:
        link = ScriptedLink([T0])
        async with reading(link) as (member, tasks):
            member.subscription.state(T0).seek(4)
            tried_again = link.hold_commits = anyio.Event()
            tasks.start_soon(member.coordinator.commit, {T0: OffsetAndMetadata(2)})
            await anyio.wait_all_tasks_blocked()
            link.hold_commits = None
            await member.coordinator.commit_news([T0])
            tried_again.set()
            await anyio.wait_all_tasks_blocked()
            await member.coordinator.commit_news([T0])
            assert link.committed == [{T0: 4}, {T0: 2}, {T0: 4}]

    run(check)


def test_a_commit_for_another_members_partition_is_not_remembered(run: Run) -> None:
    """The partition's owner may have committed since then. The next generation assigns the partition to this member."""

    async def check() -> None:
        link = ScriptedLink([], [T0])
        async with anyio.create_task_group() as tasks:
            member = Fixture(tasks, link)
            await member.poll_until(lambda: member.coordinator.settled_generation == 1)
            await member.coordinator.commit({T0: OffsetAndMetadata(4)})
            member.coordinator.request_rejoin()
            await member.poll_until(lambda: member.held == {T0})
            member.subscription.state(T0).seek(4)
            await member.coordinator.commit_news([T0])
            assert link.committed == [{T0: 4}, {T0: 4}]
            tasks.cancel_scope.cancel()

    run(check)


@pytest.mark.parametrize(("between", "commits"), [(0, 0), (1, 1)], ids=["the next generation", "one was missed"])
def test_commits_are_remembered_only_if_no_other_member_can_have_committed(
    run: Run, between: int, commits: int
) -> None:
    async def check() -> None:
        link = ScriptedLink([T0], [T0])
        async with anyio.create_task_group() as tasks:
            member = Fixture(tasks, link, partition_assignment_strategy="range")
            await member.poll_until(lambda: member.held == {T0})
            member.subscription.state(T0).seek(4)
            await member.coordinator.commit_news([T0])
            link.generation_id += between
            member.coordinator.request_rejoin()
            await member.poll_until(lambda: not member.subscription.partitions or link.generation_id > 1 + between)
            await member.poll_until(lambda: member.held == {T0} and member.coordinator.settled_generation > 1)
            member.subscription.state(T0).seek(4)
            await member.coordinator.commit_news([T0])
            assert len(link.committed) == 1 + commits
            tasks.cancel_scope.cancel()

    run(check)


class LeaderLink(ScriptedLink):
    """Makes the member its group's leader; ``on_sync`` is called while the assignment is in flight."""

    def __init__(self) -> None:
        super().__init__([T0], [T0])
        self.on_sync: Callable[[], None] = lambda: None
        self.heartbeats = 0
        self.given: list[bytes] = []
        """The member's own share of each assignment that it made."""

    async def request(self, body: Any, **others: Any) -> Any:
        if isinstance(body, HeartbeatRequest):
            self.heartbeats += 1
            return HeartbeatResponse()
        if isinstance(body, SyncGroupRequest):
            self.on_sync()
            self.given += [share.assignment for share in body.assignments]
        return await super().request(body, **others)

    async def _join(self, body: JoinGroupRequest) -> JoinGroupResponse:
        joined = await super()._join(body)
        if body.member_id:
            joined.leader = body.member_id
            joined.members = [
                JoinGroupResponseMember(member_id=body.member_id, metadata=body.protocols[0].metadata),
            ]
        return joined


def described(total: int, undeleted: int, layout_version: int = -1) -> Cluster:
    partitions = {p: PartitionInfo(p, 1, 0) for p in range(total)}
    topic = TopicInfo(
        "t", uuid.UUID(int=1), partitions, undeleted_partition_count=undeleted, layout_version=layout_version
    )
    return Cluster(topics={"t": topic})


def test_partitions_created_while_the_leader_joins_are_assigned_by_another_join(run: Run) -> None:
    """Metadata notifies only once.

    The leader therefore also compares the partitions at the end of the join with those that it assigned.
    """

    async def check() -> None:
        link = LeaderLink()
        async with anyio.create_task_group() as tasks:
            fixture = Fixture(tasks, link)
            fixture.metadata.cluster = described(1, 1)

            def grow() -> None:
                fixture.metadata.cluster = described(2, 2)
                fixture.metadata.update()

            link.on_sync = grow
            await fixture.poll_until(lambda: link.generation_id == 2)
            tasks.cancel_scope.cancel()

    run(check)


def test_a_leader_that_assigned_marked_partitions_checks_whether_they_are_removed(run: Run) -> None:
    """The leader gets no notice of a removal, since it need not be the member that reads the marked partitions."""

    async def check() -> None:
        for total in (1, 2):
            link = LeaderLink()
            async with anyio.create_task_group() as tasks:
                fixture = Fixture(tasks, link, heartbeat_interval_ms=5)
                fixture.metadata.cluster = described(total, 1)
                await fixture.poll_until(lambda fixture=fixture: fixture.held == {T0})
                tasks.start_soon(fixture.coordinator.run_heartbeats)
                while link.heartbeats < 3:
                    await anyio.sleep(0.001)  # polls: until heartbeats were sent
                assert bool(fixture.metadata.asked) == (total > 1)
                tasks.cancel_scope.cancel()

    run(check)


def test_a_member_that_knows_a_newer_layout_than_the_leader_used_asks_for_a_rebalance(run: Run) -> None:
    """A leader that does not read the topic gets no refusal, so it does not learn of the new layout itself."""

    async def check() -> None:
        link = ScriptedLink([T0], [T0], [T0, T1])
        link.layouts = [{}, {}, {"t": 1}]
        async with reading(link) as (member, _):
            member.metadata.cluster = described(1, 1, 0)
            member.metadata.update()
            assert not member.coordinator.needs_poll()
            member.metadata.cluster = described(2, 2, 1)
            member.metadata.update()
            asked = member.metadata.asked
            await member.poll_until(lambda: link.generation_id == 2 and member.coordinator.settled_generation == 2)
            assert member.metadata.asked > asked, (
                "the leader may lack the new layout, too, so this member refreshes its own metadata first"
            )
            assert not member.coordinator.needs_poll(), "the rejoin waits for the refresh"
            member.metadata.update()
            await member.poll_until(lambda: member.held == {T0, T1})
            member.metadata.update()
            assert not member.coordinator.needs_poll()
            joins = [request for request in link.seen if isinstance(request, JoinGroupRequest)][-3:]
            said = [request.protocols[0].metadata for request in joins]
            assert len(set(said)) == 3, "a join with unchanged metadata would begin no rebalance"

    run(check)


@pytest.mark.parametrize("layouts", [None, {"t": 1}, {"t": 2}])
def test_no_rebalance_is_requested_if_the_leader_is_not_behind(run: Run, layouts: dict[str, int] | None) -> None:
    """The same holds for a leader that names no layouts: another client refreshes its metadata in its own way."""

    async def check() -> None:
        link = ScriptedLink([T0])
        link.layouts = [layouts]
        async with reading(link) as (member, _):
            member.metadata.cluster = described(2, 2, 1)
            member.metadata.update()
            assert not member.coordinator.needs_poll()

    run(check)


def test_a_leader_refreshes_its_metadata_before_it_assigns_partitions(run: Run) -> None:
    """Another member may have started the rebalance because it has newer metadata."""

    async def check() -> None:
        link = LeaderLink()
        async with anyio.create_task_group() as tasks:
            fixture = Fixture(tasks, link)
            fixture.metadata.cluster = described(1, 1, 0)

            def refreshed() -> None:
                fixture.metadata.cluster = described(2, 2, 1)

            fixture.metadata.refreshed = refreshed
            await fixture.poll_until(lambda: fixture.held == {T0})
            assert [decode_assignment(share) for share in link.given] == [(T0, T1)]
            assert [read_layouts(assignment) for assignment in link.given] == [{"t": 1}]
            tasks.cancel_scope.cancel()

    run(check)


def test_a_leader_whose_refresh_fails_assigns_the_partitions_that_it_knows(run: Run) -> None:
    async def check() -> None:
        link = LeaderLink()
        async with anyio.create_task_group() as tasks:
            fixture = Fixture(tasks, link)
            fixture.metadata.cluster = described(1, 1, 0)

            def refreshed() -> None:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone")

            fixture.metadata.refreshed = refreshed
            await fixture.poll_until(lambda: fixture.held == {T0})
            assert [decode_assignment(share) for share in link.given] == [(T0,)]
            tasks.cancel_scope.cancel()

    run(check)


@pytest.mark.parametrize("layouts", [{}, {"t": 1}, {"a.b-c_d": 12, "t": 2**31 - 1}])
def test_the_layouts_of_an_assignment_are_read_back(layouts: dict[str, int]) -> None:
    data = encode_assignment([T0], layouts)
    assert read_layouts(data) == layouts
    assert decode_assignment(data) == (T0,)


@pytest.mark.parametrize(
    "user_data",
    [None, b"", b"anything", b"anabranch.layoutst:1", b"anabranch.layouts t", b"anabranch.layouts t:x"],
)
def test_other_user_data_names_no_layouts(user_data: bytes | None) -> None:
    body = ConsumerProtocolAssignment(assigned_partitions=[], user_data=user_data)
    assert read_layouts(encode_versioned(body, 1)) is None
    assert read_layouts(b"") is None


# ---------------------------------------------------------------- the start offset of a group


def test_a_commit_first_commits_the_start_offsets_of_other_partitions_of_the_topic(run: Run) -> None:
    """This happens once: a later commit of that partition is the user's, and no older offset may follow it."""

    async def check() -> None:
        link = ScriptedLink([T0, T1])
        async with anyio.create_task_group() as tasks:
            member = Fixture(tasks, link)
            await member.poll_until(lambda: member.held == {T0, T1})
            for tp in (T0, T1):
                member.subscription.state(tp).seek(4)
                member.subscription.state(tp).uncommitted_start = 4
            await member.coordinator.commit({T0: OffsetAndMetadata(9)})
            assert link.committed == [{T1: 4}, {T0: 9}]
            await member.coordinator.commit({T0: OffsetAndMetadata(10)})
            await member.coordinator.commit({T1: OffsetAndMetadata(7)})
            assert link.committed[2:] == [{T0: 10}, {T1: 7}]
            tasks.cancel_scope.cancel()

    run(check)


def test_the_start_offset_of_a_group_is_committed_as_soon_as_it_is_known(run: Run) -> None:
    """The start offset is committed at once, because it is lost if the member crashes.

    A commit of the user meanwhile is sent after it.
    """

    async def check() -> None:
        link = ScriptedLink([T0, T1])
        async with anyio.create_task_group() as tasks:
            member = Fixture(tasks, link)
            await member.poll_until(lambda: member.held == {T0, T1})
            link.hold_commits = anyio.Event()
            for tp in (T0, T1):
                member.subscription.state(tp).seek(4)
                member.subscription.state(tp).uncommitted_start = 4
            await member.coordinator.poll()
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(member.coordinator.commit, {T0: OffsetAndMetadata(9)})
            await anyio.wait_all_tasks_blocked()
            link.hold_commits.set()
            await anyio.wait_all_tasks_blocked()
            assert link.committed == [{T0: 4, T1: 4}, {T0: 9}]
            tasks.cancel_scope.cancel()

    run(check)


@pytest.mark.parametrize("keeps_offsets_elsewhere", [False, True])
def test_the_start_offset_of_a_group_is_committed_before_the_partition_is_revoked(
    run: Run, keeps_offsets_elsewhere: bool
) -> None:
    """Only this member knows the start offset, and the user may never have committed any offset."""

    async def check() -> None:
        link = ScriptedLink([T0, T1], [T0], [T0])
        before_report = not keeps_offsets_elsewhere
        async with anyio.create_task_group() as tasks:
            member = Fixture(tasks, link, ordered_delivery_commit_before_report=before_report)
            await member.poll_until(lambda: member.held == {T0, T1})
            member.subscription.state(T1).seek(4)
            member.subscription.state(T1).uncommitted_start = 4
            member.coordinator.request_rejoin()
            await member.poll_until(lambda: member.held == {T0})
            assert link.committed == ([{T1: 4}] if before_report else [])
            tasks.cancel_scope.cancel()

    run(check)


@pytest.mark.parametrize("how", ["seek", "reset", "restart", "commit"])
def test_the_start_offset_of_a_group_is_forgotten_when_the_position_changes(run: Run, how: str) -> None:
    async def check() -> None:
        link = ScriptedLink([T0])
        async with reading(link) as (member, _):
            state = member.subscription.state(T0)
            state.seek(4)
            state.uncommitted_start = 4
            if how == "seek":
                state.seek(2)
            elif how == "reset":
                state.reset(-1)
            elif how == "restart":
                state.restart(5)
            else:
                await member.coordinator.commit({T0: OffsetAndMetadata(9)})
            assert state.uncommitted_start is None

    run(check)
