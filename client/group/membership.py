"""A member of a group: polls, changes of its assignment, its end (classic protocol, KIP-429 and KIP-345).

Rebalance callbacks and changes of the assignment happen in the user's task, inside ``poll``, which ``getmany`` calls.
The next call of ``getmany`` means that the delivered records are processed. Only the requests run in separate tasks, so
that a user's timeout on ``getmany`` never loses a response.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import ClientClosedError, ErrorCode, KafkaError
from anabranch.client.group.assignors import Assignor
from anabranch.client.group.commits import MemberCommits
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.group.group_member import MembershipFailure, MemberState, Reaction
from anabranch.client.group.heartbeat import beat
from anabranch.client.group.join import Join
from anabranch.client.group.listener import RebalanceListener
from anabranch.client.group.standing import MemberStanding
from anabranch.client.net.connections import GENERAL, GROUP
from anabranch.client.net.metadata import Metadata
from anabranch.client.subscription.subscription import Mode, Subscription
from anabranch.client.tasks import Tasks
from anabranch.protocol.generated.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.sentinels import NO_GENERATION
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Joined:
    """A finished join that the user's task has not seen yet."""

    partitions: tuple[TopicPartition, ...]
    generation_id: int


class GroupMembership:
    """One member. ``poll`` is called by the user's task, ``run_heartbeats`` runs on its own."""

    def __init__(
        self,
        env: Env,
        config: ConsumerConfig,
        link: CoordinatorLink,
        assignors: tuple[Assignor, ...],
        subscription: Subscription,
        metadata: Metadata,
        tasks: Tasks,
        on_change: Callable[[], None],
    ) -> None:
        self._env = env
        self._config = config
        self.link = link
        self._subscription = subscription
        self._metadata = metadata
        self._tasks = tasks
        self._on_change = on_change
        self.listener = RebalanceListener()
        self.polls_positions: Callable[[], bool] = lambda: False
        """Whether this member polls for positions in every generation, so the coordinator may wait for its polls."""
        self.on_taken: Callable[[], None] = lambda: None
        """Called after a new assignment is in force, before the user's callback."""
        self.standing = MemberStanding(link, subscription, config.group_instance_id)
        self.member = self.standing.member
        self.join = Join(config, link, assignors, subscription, metadata, self.member)
        self._last_poll = env.clock.monotonic()
        self.commits = MemberCommits(config, link, self.standing, subscription, metadata, tasks, self._last_poll)
        self.standing.on_lost = lambda: self.commits.keep_own(())
        self._join_scope: anyio.CancelScope | None = None
        self._joined: _Joined | None = None
        self._taken_generation = NO_GENERATION
        metadata.on_update(self._on_metadata)

    # ------------------------------------------------------------ this member

    @property
    def settled_generation(self) -> int:
        """The present generation, once its assignment is in force and the revoked partitions are given up; else -1."""
        member = self.member
        settled = member.state is MemberState.STABLE and self._taken_generation == member.generation_id
        return member.generation_id if settled else NO_GENERATION

    @property
    def member_id(self) -> str:
        return self.member.member_id

    def owner_of(self, tp: TopicPartition) -> str | None:
        """The member that reads a partition, as far as this member knows. Only the leader knows all owners."""
        return self.member.member_id if tp in self._subscription.partitions else self.join.owners.get(tp)

    def on_position_error(self, error: KafkaError, generation_id: int) -> None:
        """React to a refused poll for positions as to a refused heartbeat."""
        if not self.standing.is_stable_in(generation_id):
            return
        if self.standing.note_error(error) is Reaction.FAIL:
            self.standing.fail(error)
        self._on_change()

    # ------------------------------------------------------------ the user's task

    async def poll(self) -> None:
        """Run the steps that belong to the user's task: callbacks, assignment changes, the start of a join."""
        now = self._env.clock.monotonic()
        self._last_poll = now
        if self.standing.failure.error is not None:
            if self.standing.is_lost:
                await self._give_up_lost()
            raise self.standing.failure.take()
        if not self._subscription.is_group_managed:
            self.commits.auto_commit(now)
            return
        if self.standing.is_lost:
            await self._give_up_lost()
        if self._joined is not None:
            await self._take_assignment()
        if self.member.rejoin_needed and not self.standing.is_joining and self._may_join():
            await self._prepare_join()
            self._start_join()
        self.commits.commit_known_starts()
        self.commits.auto_commit(now)

    @property
    def has_lost(self) -> bool:
        """Whether the partitions may already belong to another member while ``poll`` has not given them up yet."""
        return self.standing.is_lost and self._subscription.is_group_managed

    def needs_poll(self) -> bool:
        """Whether ``poll`` has more to do than note the time."""
        return (
            self.standing.failure.error is not None
            or self.standing.is_lost
            or self._joined is not None
            or (self.member.rejoin_needed and not self.standing.is_joining)
        )

    def _may_join(self) -> bool:
        # A pattern needs the topics' names first.
        return self._subscription.mode is not Mode.PATTERN or self._metadata.knows_all_topics

    def request_rejoin(self) -> None:
        """Join again at the next poll, because the subscription or the topics changed."""
        self.member.rejoin_needed = True
        self._on_change()

    async def _give_up_lost(self) -> None:
        """Give up the partitions that the member has lost. Nothing may be committed for them."""
        self.standing.is_lost = False
        owned = list(self._subscription.partitions)
        self._subscription.set_assignment(())
        if owned:
            await self.listener.lost(owned)

    async def _prepare_join(self) -> None:
        """Commit the processed records. Then give up the partitions that must not be kept over the rebalance.

        If all partitions are kept, only the offsets where the group began are committed now: a member that gets a new
        partition in the rebalance looks for commits of the group. Other offsets are committed after the rebalance.
        """
        owned = self._subscription.partitions
        if self.member.generation_id < 0 and not owned:
            return
        if self.join.is_cooperative:
            give_up = [tp for tp in owned if tp.topic not in self._subscription.topics]
        else:
            give_up = list(owned)
        if give_up:
            await self.commits.commit_before_rebalance()
            await self.listener.revoked(give_up)
            self._subscription.set_assignment([tp for tp in owned if tp not in set(give_up)])
        else:
            with contextlib.suppress(KafkaError):
                await self.commits.commit_starts()

    async def _take_assignment(self) -> None:
        joined = self._joined
        assert joined is not None
        if joined.generation_id != self.member.generation_id:
            self._joined = None  # the group has rebalanced again: another join brings another assignment
            return
        owned = set(self._subscription.partitions)
        assigned = set(joined.partitions)
        gone = sorted(owned - assigned)
        new = sorted(assigned - owned)
        if gone:
            await self.commits.commit_before_rebalance()
            await self.listener.revoked(gone)
        # Not earlier: if a call is cancelled while it commits or revokes, the next call still finds the assignment.
        self._joined = None
        is_next = joined.generation_id == self._taken_generation + 1
        self.commits.keep_own(joined.partitions if is_next else ())
        self._subscription.set_assignment(sorted(assigned))
        self._taken_generation = joined.generation_id
        # A leader also watches the partition counts of the other members' topics.
        led = self.join.led
        self._metadata.want_only(self._subscription.topics | (led.spans.keys() if led else frozenset()))
        self._subscription.on_metadata(self._metadata.cluster)
        if self.join.is_cooperative and gone:
            self.member.rejoin_needed = True  # the next rebalance assigns the partitions that were given up
        self.on_taken()
        await self.listener.assigned(new if self.join.is_cooperative else sorted(assigned))
        self._on_change()

    # ------------------------------------------------------------ joining

    def _start_join(self) -> None:
        self.standing.is_joining = True
        self._tasks.start_soon(self._join_until_done)

    async def _join_until_done(self) -> None:
        """Join and sync until there is an assignment, the group refuses for good, or the member leaves."""
        try:
            with anyio.CancelScope() as self._join_scope:
                await self._try_to_join()
        except ClientClosedError:
            return
        except ValueError as malformed:
            self.standing.fail(KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(malformed)))
        finally:
            self._join_scope = None
            self.standing.is_joining = False
            self._check_topics()  # changes during the join were not compared with the assignment
            if self.join.needs_assignment():
                self._metadata.request_update()  # the new metadata is compared with the assignment again
            self._on_change()

    async def _try_to_join(self) -> None:
        attempt = 0
        while self._subscription.is_group_managed:
            attempt += 1
            try:
                partitions = await self.join.join_and_sync()
                self._joined = _Joined(partitions, self.member.generation_id)
                _log.info(
                    "group %s: joined as %s, generation_id=%d partitions=%s",
                    self.link.group_id,
                    self.member.member_id,
                    self.member.generation_id,
                    ",".join(map(str, sorted(partitions))) or "none",
                )
                return
            except KafkaError as error:
                reaction = self.standing.note_error(error)
                if reaction is Reaction.FAIL:
                    self.member.forget()
                    self.standing.fail(error)
                    return
                if self.standing.is_lost and self._subscription.partitions:
                    self.member.rejoin_needed = True
                    return  # the user's task must see the loss before the next join
                if reaction.is_rejoin and attempt == 1:
                    continue
            await self.link.pause(attempt)

    def _on_metadata(self) -> None:
        self._check_topics()
        if not self.standing.is_joining and self.join.needs_assignment():
            # The subscription names the present generation, so that each join differs from the previous join.
            self.join.assigned_layouts = None
            self.request_rejoin()

    def _check_topics(self) -> None:
        subscription = self._subscription
        if subscription.mode is Mode.PATTERN and subscription.match(
            self._metadata.cluster, exclude_internal=self._config.exclude_internal_topics
        ):
            self.request_rejoin()
        if self.join.led is not None and not self.standing.is_joining:
            self.join.refit()
            if self.join.led is None:
                self.request_rejoin()

    # ------------------------------------------------------------ heartbeats

    async def run_heartbeats(self) -> None:
        """Keep the membership alive. Give it up when the user has not polled for ``max_poll_interval_ms``."""
        interval_s = self._config.heartbeat_interval_ms / 1000
        while True:
            await anyio.sleep(interval_s)
            if self.member.state is not MemberState.STABLE:
                continue
            if self._env.clock.monotonic() - self._last_poll > self._config.max_poll_interval_ms / 1000:
                # Set before the user's task can poll again.
                self.standing.is_lost = bool(self._subscription.partitions)
                await self.leave()
                continue
            await self._heartbeat()
            if self.join.led is not None and self.join.led.has_marked():
                self._metadata.request_update()  # only metadata shows that assigned marked partitions were removed

    async def _heartbeat(self) -> None:
        error = await beat(self._config, self.link, self.standing, polls_positions=self.polls_positions())
        if error is not None:
            self._on_change()

    # ------------------------------------------------------------ leaving

    async def close(self, *, commit: bool) -> None:
        """Commit as configured if ``commit`` is set, give the partitions up, and leave the group."""
        self.standing.failure = MembershipFailure()
        if self.standing.is_lost:
            await self._give_up_lost()
        if commit:
            await self.commits.commit_before_rebalance()
        owned = list(self._subscription.partitions)
        if self._subscription.is_group_managed and owned:
            await self.listener.revoked(owned)
        await self.leave()

    async def leave(self) -> None:
        """End the membership, including a running join, and leave the group at the coordinator.

        A static member stays in the group until its session ends (KIP-345).
        """
        member_id = self.member.member_id
        self.commits.keep_own(())
        purpose = GROUP
        if self._join_scope is not None:
            self._join_scope.cancel()
            # On the connection GROUP the coordinator may park the JoinGroup and all later requests.
            purpose = GENERAL
        self.member.forget()
        if member_id and self._config.group_instance_id is None:
            _log.info("group %s: member %s leaves", self.link.group_id, member_id)
            identity = MemberIdentity(member_id=member_id, group_instance_id=None)
            request = LeaveGroupRequest(group_id=self.link.group_id, members=[identity])
            with contextlib.suppress(KafkaError):  # if the request fails, the session timeout ends the membership
                await self.link.request(request, purpose=purpose)
