"""A group member on a scripted link to its coordinator."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from anabranch.client.cluster import Cluster
from anabranch.client.config import ConsumerConfig
from anabranch.client.group.assignors import resolve_assignors
from anabranch.client.group.commit_order import CommitOrder
from anabranch.client.group.group_protocol import AssignedLayout, encode_assignment
from anabranch.client.group.membership import GroupMembership
from anabranch.client.subscription.subscription import Subscription
from anabranch.protocol.errors import ErrorCode, error_for
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupResponse
from anabranch.protocol.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from anabranch.protocol.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock
from anabranch.runtime.real_anyio import client_env
from anabranch.runtime.signal import Signal

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class ScriptedLink:
    """Gives out a member id, then a generation per join; SyncGroup returns the ``assignments`` one after the other."""

    group_id = "g"

    def __init__(self, *assignments: list[TopicPartition]) -> None:
        self.commit_order = CommitOrder()
        self.assignments = list(assignments)
        self.layouts: list[dict[str, AssignedLayout] | None] = []
        """The layouts that the leader names in each response. The leader names none once the list is used up."""
        self.seen: list[Any] = []
        self.generation_id = 0
        self.hold_joins: anyio.Event | None = None
        self.join_is_held = anyio.Event()
        self.hold_commits: anyio.Event | None = None
        self.refuse_commits: ErrorCode | None = None
        self.refuse_heartbeats: ErrorCode | None = None
        self.refuse_joins: ErrorCode | None = None
        self.unknown_member: str | None = None
        """The id of a member that the coordinator has forgotten."""
        self.committed: list[dict[TopicPartition, int]] = []

    async def request(self, body: Any, **_: Any) -> Any:
        self.seen.append(body)
        if isinstance(body, JoinGroupRequest):
            return await self._join(body)
        if isinstance(body, SyncGroupRequest):
            layouts = self.layouts.pop(0) if self.layouts else None
            return SyncGroupResponse(assignment=encode_assignment(self.assignments.pop(0), layouts))
        if isinstance(body, HeartbeatRequest):
            return HeartbeatResponse(error_code=self.refuse_heartbeats or ErrorCode.NONE)
        assert isinstance(body, LeaveGroupRequest)
        return LeaveGroupResponse()

    async def _join(self, body: JoinGroupRequest) -> JoinGroupResponse:
        if self.refuse_joins is not None:
            return JoinGroupResponse(error_code=self.refuse_joins)
        if body.member_id == self.unknown_member:
            return JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
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

    async def commit_offsets(
        self, offsets: Any, timeout_ms: float, *, call: int | None = None, **_: Any
    ) -> set[TopicPartition]:
        left = self.commit_order.going_out(self.commit_order.call() if call is None else call, offsets)
        if self.hold_commits is not None:
            await self.hold_commits.wait()
        if self.refuse_commits is not None:
            raise error_for(self.refuse_commits)
        if left:
            self.committed.append({tp: offset.offset for tp, offset in left.items()})
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
    """A group membership on a scripted link, and the signal that its changes set."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, link: ScriptedLink, *, clock: Clock | None = None, **keys: Any
    ) -> None:
        given = {"group_id": "g", "partition_assignment_strategy": "cooperative-sticky", "enable_auto_commit": False}
        config = ConsumerConfig.parse({**given, **keys})
        self.changed = Signal()
        self.subscription = Subscription()
        self.subscription.subscribe(["t"])
        self.metadata = ScriptedMetadata()
        metadata: Any = self.metadata
        assignors = resolve_assignors(config.partition_assignment_strategy)
        any_link: Any = link
        env = client_env() if clock is None else dataclasses.replace(client_env(), clock=clock)
        self.coordinator = GroupMembership(
            env, config, any_link, assignors, self.subscription, metadata, tasks, self.changed.set
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
async def reading(
    link: ScriptedLink, *partitions: TopicPartition, **config: Any
) -> AsyncIterator[tuple[Fixture, anyio.abc.TaskGroup]]:
    """Run a member to which these partitions are assigned, by default partition 0, for the length of a block."""
    async with anyio.create_task_group() as tasks:
        member = Fixture(tasks, link, **config)
        await member.poll_until(lambda: member.held == set(partitions or [T0]))
        yield member, tasks
        tasks.cancel_scope.cancel()


def start_at(member: Fixture, offset: int, *partitions: TopicPartition) -> None:
    """Let the member begin at an offset of the group that is not committed yet."""
    for tp in partitions:
        member.subscription.state(tp).seek(offset)
        member.subscription.state(tp).uncommitted_start = offset
