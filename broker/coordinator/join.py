"""JoinGroup 0-7.

v1 adds a rebalance timeout. In v4 a first join without member id is answered with MEMBER_ID_REQUIRED and a new member
id (KIP-394). v5 adds ``group.instance.id`` (KIP-345): a known static member is replaced and its predecessor fenced. v7
adds the protocol type to the response and makes the protocol name nullable. Skipping the assignment (v9, KIP-814) is
not offered.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.broker.coordinator.broker_services import RequestOrigin
from anabranch.broker.coordinator.durable import GroupRecord
from anabranch.broker.coordinator.fencing import check_member
from anabranch.broker.coordinator.group import (
    GROUP_BYTES,
    MEMBER_BYTES,
    Group,
    Member,
    ParkedJoin,
    Protocols,
    protocols_bytes,
)
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.outcome import CoordinatorOutcome, Now, Then, Turn
from anabranch.broker.coordinator.position_owners import refuse_poll
from anabranch.broker.coordinator.rebalance import (
    generation_response,
    maybe_complete_join,
    maybe_prepare_rebalance,
    prepare_rebalance,
    refuse_sync,
    stored_generation,
)
from anabranch.broker.coordinator.responses import group_append_error, join_error
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.join_group import JoinGroupRequest
from anabranch.protocol.subscriptions import CONSUMER_PROTOCOL_TYPE, subscribed_topics

UNKNOWN_MEMBER_ID = ""
MEMBER_ID_REQUIRED_VERSION = 4


@dataclass(frozen=True, slots=True)
class Joining:
    """A JoinGroup request, with further facts about its sender."""

    request: JoinGroupRequest
    parked: ParkedJoin
    client_id: str
    client_host: str
    unique: str
    """Text that makes a generated member id unique."""
    protocols: Protocols

    @property
    def instance_id(self) -> str | None:
        return self.request.group_instance_id

    @property
    def rebalance_timeout_ms(self) -> int:
        """The requested rebalance timeout; in version 0 the session timeout."""
        asked_ms = self.request.rebalance_timeout_ms
        return asked_ms if asked_ms >= 0 else self.request.session_timeout_ms

    def new_member_id(self) -> str:
        """``<client id or instance id>-<unique>``."""
        prefix = self.client_id if self.instance_id is None else self.instance_id
        return f"{prefix}-{self.unique}"

    def refuse(self, turn: Turn, error: ErrorCode, member_id: str | None = None) -> None:
        shown_id = self.request.member_id if member_id is None else member_id
        turn.out.reply(self.parked.token, join_error(self.parked.api_version, shown_id, error))


def join_group(turn: Turn, token: Token, ctx: RequestOrigin, request: JoinGroupRequest, unique: str) -> None:
    """Add a member or let it rejoin, and start or complete a rebalance if that is needed."""
    if len(request.protocols) > turn.config.max_protocols:
        turn.out.reply(token, join_error(ctx.api_version, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    joining = Joining(
        request=request,
        parked=ParkedJoin(token, ctx.api_version),
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.client_host.lstrip('/')}",  # Java's notation of an address, which tools show
        unique=unique,
        protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
    )
    config = turn.config
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        joining.refuse(turn, ErrorCode.INVALID_SESSION_TIMEOUT)
        return
    is_unknown = request.member_id == UNKNOWN_MEMBER_ID
    group = turn.shard.groups.get(request.group_id)
    if group is None:
        if not is_unknown:
            joining.refuse(turn, ErrorCode.UNKNOWN_MEMBER_ID)
            return
        group = Group(request.group_id, turn.shard.memory)
    if not _has_room(group, request.member_id, config.max_size):
        group.remove(request.member_id)
        joining.refuse(turn, ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID)
    elif group.state is GroupState.DEAD:
        joining.refuse(turn, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    elif not group.supports(request.protocol_type, joining.protocols):
        joining.refuse(turn, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif not turn.shard.has_room(_more_bytes(group, joining)):
        turn.shard.on_refused()
        joining.refuse(turn, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    else:
        turn.shard.groups[request.group_id] = group
        if is_unknown:
            _join_new(turn, group, joining)
        else:
            _join_known(turn, group, joining)
    maybe_complete_join(turn, group)


def _has_room(group: Group, member_id: str, max_size: int) -> bool:
    """Whether ``group.max.size`` lets the member in (Kafka ``acceptJoiningMember``, KIP-389)."""
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.join is not None) or group.awaiting_join < max_size
    if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        return member is not None or len(group.members) < max_size
    return True


def _more_bytes(group: Group, joining: Joining) -> int:
    """The memory that the group takes if the member joins, beyond what it takes now, without the member's ids."""
    member_id = joining.request.member_id
    if joining.instance_id is not None:
        member_id = group.static_members.get(joining.instance_id, member_id)
    member = group.members.get(member_id)
    taken = -MEMBER_BYTES if member is None else protocols_bytes(member.protocols)
    return protocols_bytes(joining.protocols) - taken + (0 if group.kept_bytes else GROUP_BYTES)


def _join_new(turn: Turn, group: Group, joining: Joining) -> None:
    member_id = joining.new_member_id()
    if joining.instance_id is not None:
        if joining.instance_id in group.static_members:
            _replace_static(turn, group, joining, joining.instance_id, member_id)
        else:
            _add_member(turn, group, joining, member_id)
    elif joining.parked.api_version >= MEMBER_ID_REQUIRED_VERSION:
        deadline_ms = turn.now.monotonic_ms + joining.request.session_timeout_ms
        group.expect(member_id, deadline_ms)
        joining.refuse(turn, ErrorCode.MEMBER_ID_REQUIRED, member_id)
    else:
        _add_member(turn, group, joining, member_id)


def _join_known(turn: Turn, group: Group, joining: Joining) -> None:
    member_id = joining.request.member_id
    if member_id in group.pending_members and joining.instance_id is None:
        _add_member(turn, group, joining, member_id)
        return
    error = check_member(group, member_id, joining.instance_id)
    if error is not ErrorCode.NONE:
        joining.refuse(turn, error)
        return
    member = group.members[member_id]
    unchanged = member.protocols == joining.protocols
    if group.state is GroupState.PREPARING_REBALANCE:
        _rejoin(turn, group, member, joining)
    elif group.state is GroupState.COMPLETING_REBALANCE and unchanged:
        # The member did not get the response to its join: answer again.
        turn.out.reply(joining.parked.token, generation_response(group, member, joining.parked))
    elif group.state is GroupState.STABLE and unchanged and member_id != group.leader_id:
        turn.out.reply(joining.parked.token, generation_response(group, member, joining.parked))
    elif group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        # The metadata changed; or the leader rejoins, because an input of its assignment changed.
        _rejoin(turn, group, member, joining)
    else:
        joining.refuse(turn, ErrorCode.UNKNOWN_MEMBER_ID)


def _add_member(turn: Turn, group: Group, joining: Joining, member_id: str) -> None:
    if not group.members:
        group.protocol_type = joining.request.protocol_type
    if group.state is GroupState.PREPARING_REBALANCE and group.generation_id == 0:
        group.new_member_added = True
    member = Member(
        member_id=member_id,
        group_instance_id=joining.instance_id,
        client_id=joining.client_id,
        client_host=joining.client_host,
        rebalance_timeout_ms=joining.rebalance_timeout_ms,
        session_timeout_ms=joining.request.session_timeout_ms,
        protocols=joining.protocols,
        join=joining.parked,
        is_new=True,
    )
    group.add(member)
    group.keep_alive(member, turn.now.monotonic_ms, turn.config.new_member_join_timeout_ms)
    maybe_prepare_rebalance(turn, group)


def _rejoin(turn: Turn, group: Group, member: Member, joining: Joining) -> None:
    group.update(member, joining.protocols, joining.rebalance_timeout_ms, joining.request.session_timeout_ms)
    _park(turn, group, member, joining.parked)
    maybe_prepare_rebalance(turn, group)


def _park(turn: Turn, group: Group, member: Member, join: ParkedJoin) -> None:
    """Let the join wait. An earlier join of the member is answered with an error: its connection broke."""
    previous = group.park_join(member, join)
    if previous is not None:
        error = ErrorCode.REBALANCE_IN_PROGRESS
        turn.out.reply(previous.token, join_error(previous.api_version, member.member_id, error))


# ---------------------------------------------------------------- static members


def _replace_static(turn: Turn, group: Group, joining: Joining, instance_id: str, new_member_id: str) -> None:
    """Replace a static member that joins again without its member id, and fence its predecessor.

    If the group is stable, and neither its protocol nor the member's topics change, no rebalance is needed. The
    generation is written with the new member id, and the join is answered when that write is committed.
    """
    old_member_id = group.static_members[instance_id]
    old_leader_id = group.leader_id
    member = group.members[old_member_id]
    _fence(turn, group, member)
    before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
    group.rename_static(instance_id, new_member_id)
    group.update(member, joining.protocols, joining.rebalance_timeout_ms, joining.request.session_timeout_ms)
    group.park_join(member, joining.parked)
    group.keep_alive(member, turn.now.monotonic_ms)
    if group.state is GroupState.COMPLETING_REBALANCE:
        # The list of members that the leader received may have the old id.
        prepare_rebalance(turn, group)
    elif group.state is GroupState.STABLE:
        if group.select_protocol() != group.protocol_name or _has_other_topics(group, member, before[0]):
            maybe_prepare_rebalance(turn, group)
            return
        stored = turn.shard.durable.generations[group.group_id]
        assignments = {
            m.member_id: stored.assignment_of(m.member_id, m.group_instance_id) for m in group.members.values()
        }
        then = StaticMemberStored(
            group, instance_id, old_member_id, new_member_id, group.generation_id, old_leader_id, before
        )
        turn.out.write(group.group_id, [GroupRecord(group.group_id, stored_generation(group, assignments))], then)


def _has_other_topics(group: Group, member: Member, before: Protocols) -> bool:
    """Whether a member of a consumer group subscribes to other topics than before. Kafka does not compare them."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE or group.protocol_name is None:
        return False
    was = subscribed_topics([dict(before).get(group.protocol_name, b"")])
    now = subscribed_topics([member.metadata(group.protocol_name)])
    return was is not None and now is not None and was != now


def _fence(turn: Turn, group: Group, member: Member) -> None:
    join = group.take_join(member)
    if join is not None:
        refusal = join_error(join.api_version, member.member_id, ErrorCode.FENCED_INSTANCE_ID)
        turn.out.reply(join.token, refusal)
    refuse_sync(turn, group, member, ErrorCode.FENCED_INSTANCE_ID)
    refuse_poll(turn, group, member.member_id, ErrorCode.FENCED_INSTANCE_ID)


@dataclass(frozen=True, slots=True)
class StaticMemberStored:
    """A stable group's generation was written with a static member's new id."""

    group: Group
    instance_id: str
    old_member_id: str
    new_member_id: str
    generation_id: int
    old_leader_id: str | None
    before: tuple[Protocols, int, int]
    """The protocols, rebalance timeout and session timeout to restore if the write is lost."""

    def resolve(self, shard: Shard, error: ErrorCode, now: Now) -> CoordinatorOutcome:
        turn = Turn(shard, now)
        group, member = self.group, self.group.members.get(self.new_member_id)
        in_time = group.state is GroupState.STABLE and group.generation_id == self.generation_id
        if member is None or not in_time:
            # A rebalance began or the member was removed: its join is answered already.
            return turn.out
        if error is ErrorCode.NONE:
            join = group.take_join(member)
            if join is not None:
                # With the old leader's id, a leader that joined again sends no assignment, so no member would get one.
                response = generation_response(group, member, join, leader_id=self.old_leader_id or "")
                turn.out.reply(join.token, response)
            group.keep_alive(member, now.monotonic_ms)
            return turn.out
        join = group.take_join(member)
        if join is not None:
            turn.out.reply(join.token, join_error(join.api_version, UNKNOWN_MEMBER_ID, group_append_error(error)))
        group.rename_static(self.instance_id, self.old_member_id)
        group.update(member, *self.before)
        group.keep_alive(member, now.monotonic_ms)
        return turn.out

    def overdue(self, shard: Shard, now: Now) -> tuple[CoordinatorOutcome, Then | None]:
        """Handle the write as lost. If it is committed later, the stored member is found by its instance id."""
        return self.resolve(shard, ErrorCode.REQUEST_TIMED_OUT, now), None
