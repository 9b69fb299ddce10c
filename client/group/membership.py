"""A consumer's membership in its group: joins, heartbeats, commits (classic protocol, KIP-429 and KIP-345).

Rebalance callbacks and changes of the assignment happen in the user's task, inside ``poll``, which ``getmany`` calls.
The next call of ``getmany`` means that the delivered records are processed. Only the requests run in separate tasks, so
that a user's timeout on ``getmany`` never loses a response.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import ClientClosedError, CommitFailedError, ErrorCode, KafkaError, error_for
from anabranch.client.group.assignors import Assignor
from anabranch.client.group.coordinator_link import CoordinatorLink, OffsetAndMetadata, Offsets
from anabranch.client.group.group_member import GroupMember, MembershipFailure, MemberState, Reaction, react
from anabranch.client.group.group_protocol import (
    PROTOCOL_TYPE,
    AssignedLayout,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    read_layouts,
    refuse_unsubscribed,
)
from anabranch.client.group.led_assignment import LedAssignment, spans_of
from anabranch.client.group.listener import RebalanceListener
from anabranch.client.net.connections import GENERAL, GROUP
from anabranch.client.net.metadata import Metadata
from anabranch.client.subscription.subscription import Mode, Subscription
from anabranch.client.tasks import Tasks
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from anabranch.protocol.generated.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from anabranch.protocol.message import Message
from anabranch.protocol.sentinels import NO_EPOCH, NO_GENERATION
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env

_log = logging.getLogger(__name__)
_JOIN_MARGIN_MS = 5_000
"""A coordinator answers JoinGroup after up to the rebalance timeout; Kafka's client waits this much longer."""
_NEVER_RESIZED = AssignedLayout(version=0, total=0)
_LEADER_REFRESH_S = 2.0
"""Seconds for which a leader waits for newer metadata before it assigns partitions by its present metadata."""


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
        self._assignors = assignors
        self._subscription = subscription
        self._metadata = metadata
        self._tasks = tasks
        self._on_change = on_change
        self.listener = RebalanceListener()
        self.polls_positions: Callable[[], bool] = lambda: False
        """Whether this member polls for positions in every generation, so the coordinator may wait for its polls."""
        self.on_taken: Callable[[], None] = lambda: None
        """Called after a new assignment is in force, before the user's callback."""
        self.member = GroupMember()
        self._cooperative = all(a.cooperative for a in assignors)
        self._joining = False
        self._join_scope: anyio.CancelScope | None = None
        self._joined: _Joined | None = None
        self._lost = False
        self._failure = MembershipFailure()
        self._led: LedAssignment | None = None
        """The assignment of all members, if this member is the leader and no other assignment is needed."""
        self._led_owners: dict[TopicPartition, str] = {}
        self._assigned_layouts: dict[str, AssignedLayout] | None = None
        """If another member is the leader: the layouts on which its assignment is based; None if it sent no layouts."""
        self._taken_generation = NO_GENERATION
        self._own_commits: dict[TopicPartition, object] = {}
        """Offsets that this member committed, for partitions where no other member can have committed since."""
        self._last_poll = env.clock.monotonic()
        self._next_auto_commit = self._last_poll + config.auto_commit_interval_ms / 1000
        self._background_commit: anyio.CancelScope | None = None
        self.on_commit: Callable[[Offsets, KafkaError | None], None] = lambda offsets, error: None
        self._starts_settled: anyio.Event | None = None
        """Set when the running commit of the group's start offsets ends; None while no such commit is running."""
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
        return self.member.member_id if tp in self._subscription.partitions else self._led_owners.get(tp)

    def on_position_error(self, error: KafkaError, generation_id: int) -> None:
        """React to a refused poll for positions as to a refused heartbeat."""
        if self.member.state is not MemberState.STABLE or self.member.generation_id != generation_id:
            return
        if self.note_error(error) is Reaction.FAIL:
            self._fail(error)
        self._on_change()

    # ------------------------------------------------------------ the user's task

    async def poll(self) -> None:
        """Run the steps that belong to the user's task: callbacks, assignment changes, the start of a join."""
        now = self._env.clock.monotonic()
        self._last_poll = now
        if self._failure.error is not None:
            if self._lost:
                await self._give_up_lost()
            raise self._failure.take()
        if not self._subscription.is_group_managed:
            self._auto_commit(now)
            return
        if self._lost:
            await self._give_up_lost()
        if self._joined is not None:
            await self._take_assignment()
        if self.member.rejoin_needed and not self._joining and self._may_join():
            await self._prepare_join()
            self._start_join()
        self._commit_known_starts()
        self._auto_commit(now)

    @property
    def has_lost(self) -> bool:
        """Whether the partitions may already belong to another member while ``poll`` has not given them up yet."""
        return self._lost and self._subscription.is_group_managed

    def needs_poll(self) -> bool:
        """Whether ``poll`` has more to do than note the time."""
        return (
            self._failure.error is not None
            or self._lost
            or self._joined is not None
            or (self.member.rejoin_needed and not self._joining)
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
        self._lost = False
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
        if self._cooperative:
            give_up = [tp for tp in owned if tp.topic not in self._subscription.topics]
        else:
            give_up = list(owned)
        if give_up:
            await self._commit_before_rebalance()
            await self.listener.revoked(give_up)
            self._subscription.set_assignment([tp for tp in owned if tp not in set(give_up)])
        else:
            with contextlib.suppress(KafkaError):
                await self._commit_starts()

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
            await self._commit_before_rebalance()
            await self.listener.revoked(gone)
        # Not earlier: if a call is cancelled while it commits or revokes, the next call still finds the assignment.
        self._joined = None
        self._remember_commits(joined)
        self._subscription.set_assignment(sorted(assigned))
        self._taken_generation = joined.generation_id
        # A leader also watches the partition counts of the other members' topics.
        self._metadata.want_only(self._subscription.topics | (self._led.spans.keys() if self._led else frozenset()))
        self._subscription.on_metadata(self._metadata.cluster)
        if self._cooperative and gone:
            self.member.rejoin_needed = True  # the next rebalance assigns the partitions that were given up
        self.on_taken()
        await self.listener.assigned(new if self._cooperative else sorted(assigned))
        self._on_change()

    def _remember_commits(self, joined: _Joined) -> None:
        """Keep own commits only of partitions that this member had in the previous generation too."""
        is_next = joined.generation_id == self._taken_generation + 1
        owned = joined.partitions if is_next else ()
        self._own_commits = {tp: self._own_commits[tp] for tp in owned if tp in self._own_commits}

    async def _commit_before_rebalance(self) -> None:
        """Commit consumed offsets; without ``enable_auto_commit`` only the offsets where the group began."""
        try:
            if self._config.enable_auto_commit:
                await self.commit(self.consumed())
            else:
                await self._commit_starts()
        except KafkaError:
            return  # the partition's next owner gets the records since the last commit again

    # ------------------------------------------------------------ joining

    def _start_join(self) -> None:
        self._joining = True
        self._tasks.start_soon(self._join_until_done)

    async def _join_until_done(self) -> None:
        """Join and sync until there is an assignment, the group refuses for good, or the member leaves."""
        try:
            with anyio.CancelScope() as self._join_scope:
                await self._try_to_join()
        except ClientClosedError:
            return
        except ValueError as malformed:
            self._fail(KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(malformed)))
        finally:
            self._join_scope = None
            self._joining = False
            self._check_topics()  # changes during the join were not compared with the assignment
            if self.needs_assignment():
                self._metadata.request_update()  # the new metadata is compared with the assignment again
            self._on_change()

    async def _try_to_join(self) -> None:
        attempt = 0
        while self._subscription.is_group_managed:
            attempt += 1
            try:
                partitions = await self._join_and_sync()
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
                reaction = self.note_error(error)
                if reaction is Reaction.FAIL:
                    self.member.forget()
                    self._fail(error)
                    return
                if self._lost and self._subscription.partitions:
                    self.member.rejoin_needed = True
                    return  # the user's task must see the loss before the next join
                if reaction.is_rejoin and attempt == 1:
                    continue
            await self.link.pause(attempt)

    def note_error(self, error: KafkaError) -> Reaction:
        """Change the member's state as an error demands, and return the reaction."""
        reaction = react(error.code)
        _log.info("group %s: %s (reaction: %s)", self.link.group_id, error, reaction.name.lower().replace("_", " "))
        if reaction is Reaction.FIND_COORDINATOR:
            self.link.moved()
        elif reaction in (Reaction.REJOIN_WITHOUT_PARTITIONS, Reaction.REJOIN_AS_NEW):
            self._lose(keep_member_id=reaction is not Reaction.REJOIN_AS_NEW)
        elif reaction is Reaction.REJOIN:
            self.member.rejoin_needed = True
        elif reaction is Reaction.FAIL and error.code is ErrorCode.FENCED_INSTANCE_ID:
            self._lose()
        return reaction

    def _fail(self, error: KafkaError) -> None:
        """Let the user's next call raise the error."""
        self._failure.note(self.link.group_id, error, self._config.group_instance_id)

    def _lose(self, *, keep_member_id: bool = False) -> None:
        self.member.forget(keep_member_id=keep_member_id)
        self._own_commits = {}
        self._lost = bool(self._subscription.partitions)

    async def _join_and_sync(self) -> tuple[TopicPartition, ...]:
        member, config = self.member, self._config
        member.become(MemberState.JOINING)
        topics = self._subscription.topics
        member.rejoin_needed = False  # a rejoin requested after this line needs another join
        request = JoinGroupRequest(
            group_id=self.link.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=member.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=self._protocols(topics),
        )
        timeout_ms = max(config.request_timeout_ms, config.max_poll_interval_ms + _JOIN_MARGIN_MS)
        joined: JoinGroupResponse = await self._ask(request, timeout_ms)
        if joined.error_code:
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                member.member_id = joined.member_id
            raise error_for(joined.error_code)
        member.joined(joined.generation_id, joined.member_id, joined.protocol_name, joined.leader == joined.member_id)
        assignments = await self._assign(joined) if member.leader else []
        if not member.leader:
            self._led = None
            self._led_owners = {}
        sync = SyncGroupRequest(
            group_id=self.link.group_id,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=member.protocol_name,
            assignments=assignments,
        )
        synced: SyncGroupResponse = await self._ask(sync, timeout_ms)
        if synced.error_code:
            raise error_for(synced.error_code)
        partitions = decode_assignment(synced.assignment)
        refuse_unsubscribed(partitions, topics)
        rejoin = member.rejoin_needed
        self._assigned_layouts = None if member.leader else read_layouts(synced.assignment)
        member.synced()
        member.rejoin_needed = rejoin or self._subscription.topics != topics
        return partitions

    async def _ask(self, request: Message, timeout_ms: float) -> Any:
        response = await self.link.request(request, timeout_ms=timeout_ms)
        await anyio.lowlevel.checkpoint_if_cancelled()  # the member may have left since the answer arrived
        return response

    def _protocols(self, topics: Iterable[str]) -> list[JoinGroupRequestProtocol]:
        owned = self._subscription.partitions if self._cooperative else ()
        generation_id = self.member.generation_id
        return [
            JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=encode_subscription(
                    topics,
                    owned,
                    user_data=assignor.user_data(generation_id),
                    generation_id=generation_id,
                    rack_id=self._config.client_rack,
                ),
            )
            for assignor in self._assignors
        ]

    async def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Assign partitions to all members, as the group's leader.

        Metadata is refreshed first: another member may know a newer layout than this member.
        """
        assignor = next((a for a in self._assignors if a.name == joined.protocol_name), None)
        if assignor is None:
            raise error_for(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group chose the assignor {joined.protocol_name!r}, which this member did not offer",
            )
        members = {m.member_id: decode_subscription(m.metadata, m.group_instance_id) for m in joined.members}
        topics = sorted({topic for member in members.values() for topic in member.topics})
        for topic in topics:
            self._metadata.ensure(topic)
        if any(topic not in self._metadata.cluster.topics for topic in topics):
            await self._metadata.refresh()
        else:
            with anyio.move_on_after(_LEADER_REFRESH_S), contextlib.suppress(KafkaError):
                await self._metadata.refresh()
        cluster = self._metadata.cluster
        led = self._led = LedAssignment.make(assignor, members, spans_of(cluster, topics))
        self._led_owners = led.owners()
        layouts = {
            topic: AssignedLayout(cluster.topics[topic].layout_version, span.total)
            for topic, span in led.spans.items()
            if cluster.is_resized(topic)
        }
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(partitions, layouts))
            for member_id, partitions in led.partitions.items()
        ]

    def needs_assignment(self) -> bool:
        """Whether the leader should assign partitions again, because this member knows a newer layout.

        At a merge a cooperative leader keeps the assignment if it can. So the other members ask only if partitions are
        new or removed. They do not rely on the leader alone: the leader may read no partition of the topic, or be a
        restarted static member that does not know that it leads.
        """
        used = self._assigned_layouts
        if used is None:
            return False
        cluster = self._metadata.cluster
        resized = [name for name in self._subscription.topics if cluster.is_resized(name)]
        return any(
            cluster.topics[name].layout_version > layout.version
            and (not self._cooperative or 0 < span.total != layout.total)
            for name, span in spans_of(cluster, resized).items()
            for layout in [used.get(name, _NEVER_RESIZED)]
        )

    def _on_metadata(self) -> None:
        self._check_topics()
        if not self._joining and self.needs_assignment():
            # The subscription names the present generation, so that each join differs from the previous join.
            self._assigned_layouts = None
            self.request_rejoin()

    def _check_topics(self) -> None:
        subscription = self._subscription
        if subscription.mode is Mode.PATTERN and subscription.match(
            self._metadata.cluster, exclude_internal=self._config.exclude_internal_topics
        ):
            self.request_rejoin()
        led = self._led
        if led is not None and not self._joining:
            self._led = led.for_spans(spans_of(self._metadata.cluster, led.spans))
            if self._led is None:
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
                self._lost = bool(self._subscription.partitions)  # set before the user's task can poll again
                await self.leave()
                continue
            await self._heartbeat()
            if self._led is not None and self._led.has_marked():
                self._metadata.request_update()  # only metadata shows that assigned marked partitions were removed

    async def _heartbeat(self) -> None:
        member = self.member
        generation_id = member.generation_id
        request = HeartbeatRequest(
            group_id=self.link.group_id,
            generation_id=generation_id,
            member_id=member.member_id,
            group_instance_id=self._config.group_instance_id,
            polls_positions=self.polls_positions(),
        )
        try:
            response: HeartbeatResponse = await self.link.request(
                request, timeout_ms=min(self._config.session_timeout_ms, self._config.request_timeout_ms)
            )
            error = error_for(response.error_code) if response.error_code else None
        except KafkaError as failed:
            error = failed
        if error is None or member.state is not MemberState.STABLE or member.generation_id != generation_id:
            return  # an error of an earlier generation does not concern the present generation
        if self.note_error(error) is Reaction.FAIL:
            self._fail(error)
        self._on_change()

    # ------------------------------------------------------------ leaving

    async def close(self, *, commit: bool) -> None:
        """Commit as configured if ``commit`` is set, give the partitions up, and leave the group."""
        self._failure = MembershipFailure()
        if self._lost:
            await self._give_up_lost()
        if commit:
            await self._commit_before_rebalance()
        owned = list(self._subscription.partitions)
        if self._subscription.is_group_managed and owned:
            await self.listener.revoked(owned)
        await self.leave()

    async def leave(self) -> None:
        """End the membership, including a running join, and leave the group at the coordinator.

        A static member stays in the group until its session ends (KIP-345).
        """
        member_id = self.member.member_id
        self._own_commits = {}
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

    # ------------------------------------------------------------ commits

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The processed offset of each partition that has a position and still exists."""
        cluster, states = self._metadata.cluster, self._subscription.partitions
        return {
            tp: OffsetAndMetadata(offset, states[tp].stored_metadata, epoch, states[tp].incarnation)
            for tp, (offset, epoch) in self._subscription.positions().items()
            if not cluster.knows_removed(tp, states[tp].incarnation)
        }

    async def commit(
        self, offsets: Offsets, *, is_processed: bool = False, call: int | None = None
    ) -> set[TopicPartition]:
        """Commit as this member. Raises CommitFailedError if the group has rebalanced without it.

        A running commit in the background is cancelled first, because its older offsets must not arrive after the new
        offsets. The other arguments and the result are as in ``CoordinatorLink.commit_offsets``.
        """
        if not offsets:
            return set()
        call = self.link.commit_order.call() if call is None else call
        if self._background_commit is not None:
            self._background_commit.cancel()
        await self._commit_starts(but=offsets)
        return await self._commit(offsets, is_processed=is_processed, call=call)

    def _starts(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The uncommitted offsets where the group begins in partitions of resized topics.

        Until they are committed, a later member may find offsets in one partition and no offsets in another. Such a
        member assumes that a partition without an offset was created by a split, and reads it from the start. Without
        ``ordered_delivery_commit_before_report`` the result is empty, because the program keeps offsets elsewhere.
        """
        if not self._config.ordered_delivery_commit_before_report:
            return {}
        return {
            tp: OffsetAndMetadata(state.uncommitted_start, "", NO_EPOCH, state.incarnation)
            for tp, state in self._subscription.partitions.items()
            if state.uncommitted_start is not None and state.uncommitted_start >= 0
        }

    async def _commit_starts(self, but: Container[TopicPartition] = ()) -> None:
        """Before any other commit, commit the offsets where the group begins, except for the partitions in ``but``."""
        if self._starts_settled is not None:
            await self._starts_settled.wait()
        starts = {tp: start for tp, start in self._starts().items() if tp not in but}
        if starts:
            await self._commit(starts, call=self.link.commit_order.before_unsent())

    def _commit_known_starts(self) -> None:
        """Commit the offsets where the group begins as soon as they are known: a crash would lose them."""
        starts = self._starts()
        if starts and self._starts_settled is None and not self._joining and self.member.generation_id >= 0:
            self._starts_settled = anyio.Event()
            call = self.link.commit_order.before_unsent()
            self._tasks.start_soon(self._commit_starts_in_background, starts, call, self._starts_settled)

    async def _commit_starts_in_background(self, starts: Offsets, call: int, settled: anyio.Event) -> None:
        try:
            with contextlib.suppress(KafkaError, ClientClosedError):
                await self._commit(starts, call=call)
        finally:
            self._starts_settled = None
            settled.set()

    async def commit_news(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Unless this member has committed all consumed offsets of these partitions already, commit them.

        An offset that was fetched from the coordinator does not count as committed by this member, because the fetch
        does not prove that this client is still a member. All records before the offsets are processed. Returns the
        partitions whose positions the coordinator has reported with the commit. The request also repeats partitions
        that were committed before: otherwise their positions would need a separate report.
        """
        consumed, known = self.consumed(), self._own_commits if self._subscription.is_group_managed else {}
        found = {tp: consumed[tp] for tp in partitions if tp in consumed}
        if all(known.get(tp) == offset for tp, offset in found.items()):
            return set()
        return await self.commit(found, is_processed=self._subscription.is_group_managed)

    async def _commit(self, offsets: Offsets, *, is_processed: bool = False, call: int) -> set[TopicPartition]:
        under_way, owned, taken = object(), self._subscription.partitions, False
        for tp in offsets.keys() & owned.keys():
            owned[tp].uncommitted_start = None  # even if this commit fails, no commit of an older offset may follow
        self._own_commits |= dict.fromkeys(offsets, under_way)
        try:
            reported = await self._commit_as_member(offsets, is_processed=is_processed, call=call)
            taken = True
            self.on_commit(offsets, None)
            return reported
        except KafkaError as error:
            self.on_commit(offsets, error)
            raise
        finally:
            for tp, offset in offsets.items():
                # Another running commit may have been carried out before this commit or after it.
                was_alone = self._own_commits.pop(tp, None) is under_way
                if taken and was_alone and tp in owned and not self.link.commit_order.is_replaced(call, tp):
                    self._own_commits[tp] = offset

    async def _commit_as_member(self, offsets: Offsets, *, is_processed: bool, call: int) -> set[TopicPartition]:
        member = self.member
        managed = self._subscription.is_group_managed
        if self._failure.is_final:
            raise self._failure.take()
        if managed and member.generation_id < 0:
            raise CommitFailedError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"the consumer is not a member of group {self.link.group_id} at the moment"
            )
        generation_id = member.generation_id
        try:
            return await self.link.commit_offsets(
                offsets,
                self._config.default_api_timeout_ms,
                generation_id=generation_id if managed else NO_GENERATION,
                member_id=member.member_id if managed else "",
                group_instance_id=self._config.group_instance_id if managed else None,
                is_processed=is_processed,
                call=call,
            )
        except KafkaError as error:
            reaction = react(error.code)
            # During a join the response to JoinGroup decides whether this client is still a member.
            is_current = managed and member.state is MemberState.STABLE and member.generation_id == generation_id
            if not reaction.is_rejoin:
                if is_current and error.code is ErrorCode.FENCED_INSTANCE_ID:
                    self.note_error(error)
                    self._fail(error)
                raise
            if is_current:
                self.note_error(error)
            raise CommitFailedError(
                error.code,
                f"group {self.link.group_id} has rebalanced ({error.message}): the partitions may belong to another "
                "member. Process faster, raise max_poll_interval_ms or lower max_poll_records",
            ) from error

    def _auto_commit(self, now: float) -> None:
        is_due = self._config.enable_auto_commit and now >= self._next_auto_commit and self._background_commit is None
        if not is_due or self._joining:  # the commit follows after the join
            return
        self._next_auto_commit = now + self._config.auto_commit_interval_ms / 1000
        if offsets := self.consumed():
            self._background_commit = anyio.CancelScope()
            call = self.link.commit_order.call()
            self._tasks.start_soon(self._commit_in_background, offsets, call, self._background_commit)

    async def _commit_in_background(self, offsets: Offsets, call: int, scope: anyio.CancelScope) -> None:
        try:
            with scope, contextlib.suppress(KafkaError, ClientClosedError):  # the next commit has newer offsets
                if self._starts_settled is not None:
                    await self._starts_settled.wait()
                if not scope.cancel_called:  # a newer commit may be sent already
                    await self._commit(offsets, call=call)
        finally:
            self._background_commit = None
