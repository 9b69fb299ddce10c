"""SyncGroup 0-5.

The leader's assignment is committed before any member gets it. v3 adds ``group.instance.id``. In v5 protocol type and
protocol name are required and must match those of the group. A leader whose assignments find no room
(``group.members.max.bytes``) gets COORDINATOR_NOT_AVAILABLE, which clients retry. Assignments that take no
more than their members are counted with always find room: a group must not wait for others to end its rebalance, and
all of them together take at most as much again.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.broker.coordinator.durable import GroupRecord
from anabranch.broker.coordinator.fencing import present_member
from anabranch.broker.coordinator.group import MEMBER_BYTES, Group, Member
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.outcome import CoordinatorOutcome, Now, Then, Turn
from anabranch.broker.coordinator.rebalance import (
    maybe_complete_join,
    maybe_prepare_rebalance,
    refuse_sync,
    stored_generation,
    synced,
)
from anabranch.broker.coordinator.responses import group_append_error, sync_error
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.sync_group import SyncGroupRequest, SyncGroupResponse

MANDATORY_PROTOCOL_VERSION = 5


def sync_group(turn: Turn, token: Token, api_version: int, request: SyncGroupRequest) -> None:
    """Answer a member with its assignment, or let it wait until the leader's assignment is committed."""
    found = _check(turn.shard, api_version, request)
    if isinstance(found, ErrorCode):
        turn.out.reply(token, sync_error(found))
        return
    group, member = found
    assigned_bytes = sum(len(assigned.assignment) for assigned in request.assignments)
    assigns = group.state is not GroupState.STABLE and member.member_id == group.leader_id
    is_small = assigned_bytes <= len(group.members) * MEMBER_BYTES
    if assigns and not is_small and not turn.shard.has_room(assigned_bytes - group.assigned_bytes):
        turn.shard.on_refused()
        turn.out.reply(token, sync_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    synced(group, member.member_id)
    if group.state is GroupState.STABLE:
        group.keep_alive(member, turn.now.monotonic_ms)
        turn.out.reply(token, _assignment(turn.shard, group, member))
        return
    refuse_sync(turn, group, member, ErrorCode.REBALANCE_IN_PROGRESS)  # the request that this one repeats
    member.sync = token
    if assigns and not group.assignment_in_flight:
        group.note_assigned(assigned_bytes)
        group.assignment_in_flight = True
        assignments = {assigned.member_id: assigned.assignment for assigned in request.assignments}
        record = GroupRecord(group.group_id, stored_generation(group, assignments))
        turn.out.write(group.group_id, [record], AssignmentStored(group, group.generation_id))


def _check(shard: Shard, api_version: int, request: SyncGroupRequest) -> tuple[Group, Member] | ErrorCode:
    if api_version >= MANDATORY_PROTOCOL_VERSION and (request.protocol_type is None or request.protocol_name is None):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    found = present_member(shard, request)
    if isinstance(found, ErrorCode):
        return found
    group, _ = found
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name is not None and request.protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return found


def _assignment(shard: Shard, group: Group, member: Member) -> SyncGroupResponse:
    stored = shard.durable.generations[group.group_id]
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=stored.assignment_of(member.member_id, member.group_instance_id),
    )


@dataclass(frozen=True, slots=True)
class AssignmentStored:
    """The leader's assignment of a generation was written."""

    group: Group
    generation_id: int

    def resolve(self, shard: Shard, error: ErrorCode, now: Now) -> CoordinatorOutcome:
        """Make the group stable and answer every member. If the write was lost, make every member rejoin instead."""
        turn, group = Turn(shard, now), self.group
        if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != self.generation_id:
            return turn.out
        group.assignment_in_flight = False
        if error is not ErrorCode.NONE:
            for member in group.members.values():
                refuse_sync(turn, group, member, group_append_error(error))
            maybe_prepare_rebalance(turn, group)
            maybe_complete_join(turn, group)
            return turn.out
        group.transition_to(GroupState.STABLE, now.wall_ms)
        for member in group.members.values():
            if member.sync is not None:
                turn.out.reply(member.sync, _assignment(shard, group, member))
                member.sync = None
                group.keep_alive(member, now.monotonic_ms)
        return turn.out

    def overdue(self, shard: Shard, now: Now) -> tuple[CoordinatorOutcome, Then | None]:
        """Handle the write as lost. If the generation is committed later all the same, no member gets it."""
        return self.resolve(shard, ErrorCode.REQUEST_TIMED_OUT, now), None
