"""Heartbeat 0-4, LeaveGroup 0-4, and the deadlines of members.

Heartbeat v3 and LeaveGroup v3 add ``group.instance.id``. LeaveGroup v3 removes many members at once; an administrator
may name them by instance id alone.
"""

from __future__ import annotations

from anabranch.broker.coordinator.fencing import check_member, present_member
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.join import UNKNOWN_MEMBER_ID
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.coordinator.position_owners import end_generation, note_polling, on_poll_deadlines
from anabranch.broker.coordinator.rebalance import (
    on_rebalance_deadline,
    on_sync_deadline,
    prepare_rebalance,
    remove_member,
    remove_pending_member,
)
from anabranch.broker.coordinator.responses import join_error, sync_error
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.protocol.generated.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

BATCH_LEAVE_VERSION = 3


def heartbeat(turn: Turn, token: Token, request: HeartbeatRequest) -> None:
    """Keep the member's session alive; REBALANCE_IN_PROGRESS makes the member rejoin."""
    turn.out.reply(token, HeartbeatResponse(error_code=_heartbeat(turn, request)))


def _heartbeat(turn: Turn, request: HeartbeatRequest) -> ErrorCode:
    found = present_member(turn.shard, request)
    if isinstance(found, ErrorCode):
        return found
    group, member = found
    group.keep_alive(member, turn.now.monotonic_ms)
    if request.polls_positions and not member.polls_positions:
        note_polling(group, member)
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE


def leave_group(turn: Turn, token: Token, api_version: int, request: LeaveGroupRequest) -> None:
    """Remove members; each gets its own error. Versions 0-2 name one member, whose error is at the top level."""
    identities = request.members
    if api_version < BATCH_LEAVE_VERSION:
        identities = [MemberIdentity(member_id=request.member_id)]
    group = turn.shard.groups.get(request.group_id)
    if group is not None and group.state is GroupState.DEAD:
        turn.out.reply(token, LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    results = [
        MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=ErrorCode.UNKNOWN_MEMBER_ID if group is None else _leave(turn, group, identity),
        )
        for identity in identities
    ]
    if api_version < BATCH_LEAVE_VERSION:
        turn.out.reply(token, LeaveGroupResponse(error_code=results[0].error_code))
    else:
        turn.out.reply(token, LeaveGroupResponse(members=results))


def _leave(turn: Turn, group: Group, identity: MemberIdentity) -> ErrorCode:
    member_id = identity.member_id
    if member_id == UNKNOWN_MEMBER_ID:
        instance_id = identity.group_instance_id
        current = None if instance_id is None else group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = current
    elif member_id in group.pending_members:
        remove_pending_member(turn, group, member_id)
        return ErrorCode.NONE
    else:
        error = check_member(group, member_id, identity.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
    remove_member(turn, group, group.members[member_id])
    return ErrorCode.NONE


# ---------------------------------------------------------------- time


def on_deadlines(turn: Turn, group: Group) -> None:
    """Handle due deadlines: sessions and pending member ids end, the rebalance or the wait for SyncGroup ends.

    Leaves ``group.wake_ms`` at the earliest deadline that remains.
    """
    now_ms = turn.now.monotonic_ms
    for member_id in [m for m, deadline_ms in group.pending_members.items() if deadline_ms <= now_ms]:
        remove_pending_member(turn, group, member_id)
    for member in list(group.members.values()):
        if member.deadline_ms is None or member.deadline_ms > now_ms or member.member_id not in group.members:
            continue
        if member.is_expected_to_heartbeat:
            remove_member(turn, group, member)
        else:
            member.deadline_ms = None  # its waiting request shows that it is alive; the answer starts the session again
    if group.rebalance_deadline_ms is not None and group.rebalance_deadline_ms <= now_ms:
        on_rebalance_deadline(turn, group)
    if group.sync_deadline_ms is not None and group.sync_deadline_ms <= now_ms:
        on_sync_deadline(turn, group)
    on_poll_deadlines(turn, group)
    group.reset_wake()


# ---------------------------------------------------------------- hand-over


def adopt_group(turn: Turn, group_id: str) -> None:
    """Build one group of a loaded partition, and start the sessions of its members.

    A group with more than ``group.max.size`` members rebalances so that it shrinks (KIP-389).
    """
    turn.shard.rebuild(group_id, turn.now.monotonic_ms)
    group = turn.shard.groups[group_id]
    if len(group.members) > turn.config.max_size:
        prepare_rebalance(turn, group)


def release_groups(turn: Turn, error: ErrorCode) -> None:
    """Unload the partition: answer every waiting request with ``error``, and mark every group dead."""
    for group in turn.shard.groups.values():
        for member in group.members.values():
            join = group.take_join(member)
            if join is not None:
                turn.out.reply(join.token, join_error(join.api_version, member.member_id, error))
            if member.sync is not None:
                turn.out.reply(member.sync, sync_error(error))
                member.sync = None
        end_generation(turn, group, error)
        group.transition_to(GroupState.DEAD, turn.now.wall_ms)
        group.wake_ms = None
