"""The offsets that a group member commits: their order, their repetition, and the start offset of the group."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import pytest

from anabranch.client.errors import ErrorCode, KafkaError
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.client.group.listener import RebalanceListener
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupResponse
from anabranch.protocol.types import TopicPartition
from tests.support.log.log_fixture import ManualClock
from tests.unit.client.scripted_group import T0, T1, Fixture, ScriptedLink, reading, start_at


@pytest.mark.parametrize("is_sent", [True, False], ids=["it was not answered", "its task has not run yet"])
async def test_a_background_commit_never_overwrites_a_later_commit(is_sent: bool) -> None:
    """A retry of the background commit would be older than a commit that starts now."""
    link = ScriptedLink([T0])
    async with reading(link, enable_auto_commit=True, auto_commit_interval_ms=0) as (member, _):
        await anyio.wait_all_tasks_blocked()
        link.committed.clear()
        tried_again = link.hold_commits = anyio.Event()
        member.subscription.state(T0).seek(4)
        await member.coordinator.poll()
        if is_sent:
            await anyio.wait_all_tasks_blocked()
        link.hold_commits = None
        member.subscription.state(T0).seek(25)
        await member.coordinator.commits.commit(member.coordinator.commits.consumed())
        tried_again.set()
        await anyio.wait_all_tasks_blocked()
        assert link.committed == [{T0: 25}]


async def test_commit_news_skips_offsets_that_this_member_has_committed() -> None:
    """The offset is committed again after a commit of another offset, and after a commit without a response."""
    link = ScriptedLink([T0])
    async with reading(link) as (member, _):
        coordinator = member.coordinator
        member.subscription.state(T0).seek(4)
        for _ in range(2):
            await coordinator.commits.commit_news([T0])
        assert link.committed == [{T0: 4}]
        await coordinator.commits.commit({T0: OffsetAndMetadata(2)})
        await coordinator.commits.commit_news([T0])
        assert link.committed == [{T0: 4}, {T0: 2}, {T0: 4}]
        link.hold_commits = anyio.Event()
        with anyio.move_on_after(0):
            await coordinator.commits.commit({T0: OffsetAndMetadata(1)})
        link.hold_commits = None
        await coordinator.commits.commit_news([T0])
        assert link.committed[3:] == [{T0: 4}]


async def test_a_committed_offset_is_sent_again_together_with_an_uncommitted_one() -> None:
    """One request then reports all of the partitions."""
    link = ScriptedLink([T0, T1])
    async with reading(link, T0, T1) as (member, _):
        for tp in (T0, T1):
            member.subscription.state(tp).seek(4)
        await member.coordinator.commits.commit_news([T0])
        await member.coordinator.commits.commit_news([T0, T1])
        await member.coordinator.commits.commit_news([T0, T1])
        assert link.committed == [{T0: 4}, {T0: 4, T1: 4}]


async def test_after_two_concurrent_commits_the_offset_is_committed_again() -> None:
    """The second commit was cancelled. The coordinator may have applied it before or after the first commit."""
    link = ScriptedLink([T0])
    async with reading(link) as (member, tasks):
        member.subscription.state(T0).seek(4)
        link.hold_commits = anyio.Event()
        tasks.start_soon(member.coordinator.commits.commit, member.coordinator.commits.consumed())
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0):
            await member.coordinator.commits.commit({T0: OffsetAndMetadata(2)})
        link.hold_commits.set()
        await anyio.wait_all_tasks_blocked()
        await member.coordinator.commits.commit_news([T0])
        assert link.committed == [{T0: 4}, {T0: 4}]


async def test_after_an_older_commit_is_answered_last_the_offset_is_committed_again() -> None:
    """The older commit was repeated because the coordinator was loading."""
    link = ScriptedLink([T0])
    async with reading(link) as (member, tasks):
        member.subscription.state(T0).seek(4)
        tried_again = link.hold_commits = anyio.Event()
        tasks.start_soon(member.coordinator.commits.commit, {T0: OffsetAndMetadata(2)})
        await anyio.wait_all_tasks_blocked()
        link.hold_commits = None
        await member.coordinator.commits.commit_news([T0])
        tried_again.set()
        await anyio.wait_all_tasks_blocked()
        await member.coordinator.commits.commit_news([T0])
        assert link.committed == [{T0: 4}, {T0: 2}, {T0: 4}]


async def test_a_commit_that_a_later_one_replaced_is_not_remembered() -> None:
    """The program goes back to the older offset."""
    link = ScriptedLink([T0])
    async with reading(link) as (member, _):
        queued = link.commit_order.call()
        member.subscription.state(T0).seek(9)
        await member.coordinator.commits.commit_news([T0])
        await member.coordinator.commits.commit({T0: OffsetAndMetadata(4)}, call=queued)
        member.subscription.state(T0).seek(4)
        await member.coordinator.commits.commit_news([T0])
        assert link.committed == [{T0: 9}, {T0: 4}]


async def test_a_commit_for_another_members_partition_is_not_remembered() -> None:
    """The partition's owner may have committed since then. The next generation assigns the partition to this member."""
    link = ScriptedLink([], [T0])
    async with anyio.create_task_group() as tasks:
        member = Fixture(tasks, link)
        await member.poll_until(lambda: member.coordinator.settled_generation == 1)
        await member.coordinator.commits.commit({T0: OffsetAndMetadata(4)})
        member.coordinator.request_rejoin()
        await member.poll_until(lambda: member.held == {T0})
        member.subscription.state(T0).seek(4)
        await member.coordinator.commits.commit_news([T0])
        assert link.committed == [{T0: 4}, {T0: 4}]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("between", "commits"), [(0, 0), (1, 1)], ids=["the next generation", "one was missed"])
async def test_commits_are_remembered_only_if_no_other_member_can_have_committed(between: int, commits: int) -> None:
    link = ScriptedLink([T0], [T0])
    async with reading(link, partition_assignment_strategy="range") as (member, _):
        member.subscription.state(T0).seek(4)
        await member.coordinator.commits.commit_news([T0])
        link.generation_id += between
        member.coordinator.request_rejoin()
        await member.poll_until(lambda: not member.subscription.partitions or link.generation_id > 1 + between)
        await member.poll_until(lambda: member.held == {T0} and member.coordinator.settled_generation > 1)
        member.subscription.state(T0).seek(4)
        await member.coordinator.commits.commit_news([T0])
        assert len(link.committed) == 1 + commits


# ---------------------------------------------------------------- the start offset of a group


async def test_a_commit_first_commits_the_start_offsets_of_other_partitions_of_the_topic() -> None:
    """A start offset is committed only once, so that it never replaces a later commit of the user."""
    link = ScriptedLink([T0, T1])
    async with reading(link, T0, T1) as (member, _):
        start_at(member, 4, T0, T1)
        await member.coordinator.commits.commit({T0: OffsetAndMetadata(9)})
        assert link.committed == [{T1: 4}, {T0: 9}]
        await member.coordinator.commits.commit({T0: OffsetAndMetadata(10)})
        await member.coordinator.commits.commit({T1: OffsetAndMetadata(7)})
        assert link.committed[2:] == [{T0: 10}, {T1: 7}]


async def test_the_start_offset_of_a_group_is_committed_as_soon_as_it_is_known() -> None:
    """The start offset is committed at once, because it is lost if the member crashes.

    A commit that the user makes meanwhile is sent after the start offset.
    """
    link = ScriptedLink([T0, T1])
    async with reading(link, T0, T1) as (member, tasks):
        link.hold_commits = anyio.Event()
        start_at(member, 4, T0, T1)
        await member.coordinator.poll()
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(member.coordinator.commits.commit, {T0: OffsetAndMetadata(9)})
        await anyio.wait_all_tasks_blocked()
        link.hold_commits.set()
        await anyio.wait_all_tasks_blocked()
        assert link.committed == [{T0: 4, T1: 4}, {T0: 9}]


@pytest.mark.parametrize("is_refused", [False, True])
async def test_on_commit_is_called_for_commits_of_the_program_and_not_for_start_offsets(is_refused: bool) -> None:
    link = ScriptedLink([T0, T1])
    async with anyio.create_task_group() as tasks:
        member = Fixture(tasks, link)
        commits = member.coordinator.commits
        called: list[Any] = []
        commits.on_commit = lambda offsets, error: called.append((offsets, error and error.code))
        await member.poll_until(lambda: member.held == {T0, T1})
        refusal = link.refuse_commits = ErrorCode.OFFSET_METADATA_TOO_LARGE if is_refused else None
        member.subscription.state(T0).uncommitted_start = 4
        await member.coordinator.poll()
        await anyio.wait_all_tasks_blocked()
        member.subscription.state(T1).uncommitted_start = 5
        with contextlib.suppress(KafkaError):
            await commits.commit_starts()
        assert called == []
        assert is_refused or link.committed == [{T0: 4}, {T1: 5}]
        chosen = {T0: OffsetAndMetadata(9)}
        with contextlib.suppress(KafkaError):
            await commits.commit(chosen)
        assert called == [(chosen, refusal)]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("is_automatic", [False, True])
async def test_a_start_offset_replaces_no_commit_that_is_called_before_the_start_goes_out(is_automatic: bool) -> None:
    link = ScriptedLink([T0, T1])
    clock = ManualClock()
    config = {"enable_auto_commit": is_automatic, "auto_commit_interval_ms": 60_000}
    async with reading(link, T0, T1, clock=clock, **config) as (member, _):
        await anyio.wait_all_tasks_blocked()
        for tp in (T0, T1):
            member.subscription.state(tp).seek(9)
            member.subscription.state(tp).uncommitted_start = 4
        clock.seconds += 60
        await member.coordinator.poll()
        if not is_automatic:
            await member.coordinator.commits.commit({T0: OffsetAndMetadata(9), T1: OffsetAndMetadata(9)})
        await anyio.wait_all_tasks_blocked()
        assert link.committed == [{T0: 4, T1: 4}, {T0: 9, T1: 9}]


async def test_a_queued_commit_goes_out_after_a_start_offset_that_another_commit_sends_first() -> None:
    link = ScriptedLink([T0, T1])
    async with reading(link, T0, T1) as (member, _):
        start_at(member, 4, T1)
        queued = link.commit_order.call()
        await member.coordinator.commits.commit({T0: OffsetAndMetadata(9)})
        await member.coordinator.commits.commit({T1: OffsetAndMetadata(7)}, call=queued)
        assert link.committed == [{T1: 4}, {T0: 9}, {T1: 7}]


@pytest.mark.parametrize("keeps_offsets_elsewhere", [False, True])
async def test_the_start_offset_of_a_group_is_committed_before_the_partition_is_revoked(
    keeps_offsets_elsewhere: bool,
) -> None:
    """Only this member knows the start offset, and the user may never have committed any offset."""
    link = ScriptedLink([T0, T1], [T0], [T0])
    before_report = not keeps_offsets_elsewhere
    async with reading(link, T0, T1, ordered_delivery_commit_before_report=before_report) as (member, _):
        start_at(member, 4, T1)
        member.coordinator.request_rejoin()
        await member.poll_until(lambda: member.held == {T0})
        assert link.committed == ([{T1: 4}] if before_report else [])


async def test_start_offsets_are_committed_before_a_join_in_which_the_partitions_are_kept() -> None:
    """The rebalance assigns a new partition to another member.

    If no offset is committed, the other member starts at the end of the new partition. In partitions that the other
    member gets later, it starts at the beginning.
    """
    link = ScriptedLink([T0, T1], [T0, T1])
    async with reading(link, T0, T1) as (member, _):
        start_at(member, 4, T0, T1)
        link.hold_joins = anyio.Event()
        member.coordinator.request_rejoin()
        await member.coordinator.poll()
        await link.join_is_held.wait()
        assert link.committed == [{T0: 4, T1: 4}]


async def test_an_automatic_commit_that_is_due_during_a_join_is_made_after_it() -> None:
    link = ScriptedLink([T0], [T0])
    clock = ManualClock()
    async with reading(link, clock=clock, enable_auto_commit=True, auto_commit_interval_ms=60_000) as (member, _):
        await anyio.wait_all_tasks_blocked()
        link.hold_joins = anyio.Event()
        member.coordinator.request_rejoin()
        await member.coordinator.poll()
        await link.join_is_held.wait()
        member.subscription.state(T0).seek(4)
        clock.seconds += 60
        await member.coordinator.poll()
        await anyio.wait_all_tasks_blocked()
        assert link.committed == []
        link.hold_joins.set()
        await member.poll_until(lambda: link.generation_id == 2 and not member.coordinator.needs_poll())
        await member.coordinator.poll()
        await anyio.wait_all_tasks_blocked()
        assert link.committed == [{T0: 4}]


async def test_a_join_waits_for_a_commit_of_start_offsets_in_flight() -> None:
    """A coordinator that does not know a new partition refuses the commit. It would refuse a retry after the join."""
    link = ScriptedLink([T0, T1], [T0, T1])
    async with reading(link, T0, T1) as (member, tasks):
        tried_again = link.hold_commits = anyio.Event()
        start_at(member, 4, T1)
        await member.coordinator.poll()
        await anyio.wait_all_tasks_blocked()
        member.coordinator.request_rejoin()
        tasks.start_soon(member.coordinator.poll)
        await anyio.wait_all_tasks_blocked()
        assert link.generation_id == 1
        tried_again.set()
        await anyio.wait_all_tasks_blocked()
        assert (link.generation_id, link.committed) == (2, [{T1: 4}])


@pytest.mark.parametrize(
    ("strategy", "steps"),
    [
        ("cooperative-sticky", ["join", "commit", "revoked", "join"]),
        ("range", ["commit", "revoked", "join"]),
    ],
)
async def test_a_member_commits_before_it_gives_up_a_partition_and_delays_no_other_join(
    strategy: str, steps: list[str]
) -> None:
    """While a member commits, the group waits for the member's JoinGroup. A partition that is kept needs no commit."""
    seen: list[str] = []

    class Link(ScriptedLink):
        async def _join(self, body: JoinGroupRequest) -> JoinGroupResponse:
            seen.append("join")
            joined = await super()._join(body)
            joined.protocol_name = strategy
            return joined

        async def commit_offsets(self, *given: Any, **named: Any) -> set[TopicPartition]:
            seen.append("commit")
            return await super().commit_offsets(*given, **named)

    class Revoked:
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            seen.append("revoked")

    link = Link([T0, T1], [T0], [T0])
    async with anyio.create_task_group() as tasks:
        member = Fixture(tasks, link, partition_assignment_strategy=strategy, enable_auto_commit=True)
        member.coordinator.listener = RebalanceListener(Revoked())
        await member.poll_until(lambda: member.held == {T0, T1})
        member.subscription.state(T1).seek(4)
        seen.clear()
        member.coordinator.request_rejoin()
        await member.poll_until(lambda: len(seen) >= len(steps))
        assert seen == steps
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["seek", "reset", "restart", "commit"])
async def test_the_start_offset_of_a_group_is_forgotten_when_the_position_changes(how: str) -> None:
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
            await member.coordinator.commits.commit({T0: OffsetAndMetadata(9)})
        assert state.uncommitted_start is None
