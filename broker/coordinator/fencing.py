"""Checks that a request comes from a member of the group, in the group's present generation.

Every API checks for the errors in the same order: COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID,
ILLEGAL_GENERATION.
"""

from __future__ import annotations

from typing import Protocol

from anabranch.broker.coordinator.group import Group, Member
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.shard import Shard
from anabranch.protocol.errors import ErrorCode


class MemberRequest(Protocol):
    """The common fields of Heartbeat, SyncGroup, OffsetCommit and ConsumerGroupPosition."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id: int


def present_member(shard: Shard, request: MemberRequest) -> tuple[Group, Member] | ErrorCode:
    """The request's group and member, or the error with which the request is refused."""
    group = shard.groups.get(request.group_id)
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = check_generation(group, request)
    return (group, group.members[request.member_id]) if error is ErrorCode.NONE else error


def check_generation(group: Group, request: MemberRequest) -> ErrorCode:
    """NONE when the request comes from a member of the group's present generation."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = check_member(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    return ErrorCode.NONE if request.generation_id == group.generation_id else ErrorCode.ILLEGAL_GENERATION


def check_member(group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
    """UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID unless the ids belong to a member (Kafka ``validateCurrentMember``)."""
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID
