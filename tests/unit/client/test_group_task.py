"""The member's own task against a coordinator by script: cancelled calls, leaving while a join is under way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio

from client.assignors import resolve_assignors
from client.cluster import Cluster
from client.config import ConsumerConfig
from client.coordinator import GroupCoordinator
from client.group_member import MemberState
from client.group_protocol import encode_assignment
from client.listener import RebalanceListener
from client.signal import Signal
from client.subscription import Subscription
from protocol.errors import ErrorCode
from protocol.generated.join_group import JoinGroupRequest, JoinGroupResponse
from protocol.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from protocol.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from protocol.types import TopicPartition
from runtime.real_anyio import client_env

Run = Callable[[Callable[[], Awaitable[Any]]], Any]

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class ScriptedLink:
    """Gives out a member id, then a generation per join; ``assignments`` are what SyncGroup answers in turn."""

    group_id = "g"

    def __init__(self, *assignments: list[TopicPartition]) -> None:
        self.assignments = list(assignments)
        self.seen: list[Any] = []
        self.generation_id = 0
        self.hold_joins: anyio.Event | None = None
        self.join_is_held = anyio.Event()
        self.hold_commits: anyio.Event | None = None
        self.committed: list[dict[TopicPartition, int]] = []

    async def request(self, body: Any, **_: Any) -> Any:
        self.seen.append(body)
        if isinstance(body, JoinGroupRequest):
            return await self._join(body)
        if isinstance(body, SyncGroupRequest):
            return SyncGroupResponse(assignment=encode_assignment(self.assignments.pop(0)))
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

    async def commit_offsets(self, offsets: Any, timeout_ms: float, **_: Any) -> None:
        if self.hold_commits is not None:
            await self.hold_commits.wait()
        self.committed.append({tp: offset.offset for tp, offset in offsets.items()})

    async def pause(self, attempt: int) -> None:
        await anyio.sleep(0)  # polls: one turn of the loop

    def moved(self) -> None:
        """The script has one coordinator."""


class Fixture:
    """A coordinator on a scripted link, and the signal its changes set."""

    def __init__(self, tasks: anyio.abc.TaskGroup, link: ScriptedLink, **keys: Any) -> None:
        given = {"group_id": "g", "partition_assignment_strategy": "cooperative-sticky", "enable_auto_commit": False}
        config = ConsumerConfig.parse({**given, **keys})
        self.changed = Signal()
        self.subscription = Subscription()
        self.subscription.subscribe(["t"])
        metadata: Any = SimpleNamespace(
            on_update=lambda listener: None,
            want_only=lambda topics: None,
            cluster=Cluster(),
        )
        assignors = resolve_assignors(config.partition_assignment_strategy)
        any_link: Any = link
        self.coordinator = GroupCoordinator(
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
    """Records what it is told; ``hold`` makes the revoked callback wait."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.hold: anyio.Event | None = None

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("revoked", partitions))
        if self.hold is not None:
            await self.hold.wait()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))


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
            await member.poll_until(lambda: member.held == {T0})  # a later subscription joins anew, without an error
            assert member.coordinator.member.member_id != link.seen[1].member_id

    run(check)


def test_an_assignment_of_a_generation_that_was_lost_is_not_taken(run: Run) -> None:
    async def check() -> None:
        link = ScriptedLink([T0], [T1])
        async with anyio.create_task_group() as tasks:
            member, listener = Fixture(tasks, link), Listener()
            member.coordinator.listener = RebalanceListener(listener)
            await member.coordinator.poll()
            await anyio.wait_all_tasks_blocked()
            assert member.coordinator.member.state is MemberState.STABLE
            member.coordinator.member.forget()  # as a heartbeat that is told UNKNOWN_MEMBER_ID does
            await member.poll_until(lambda: bool(member.held))
            assert member.held == {T1}
            assert listener.calls == [("assigned", [T1])]

    run(check)


def test_a_commit_in_the_background_never_comes_after_a_later_one(run: Run) -> None:
    """The coordinator was away: what is tried again since then is older than what is committed now."""

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
