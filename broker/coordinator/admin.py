"""DescribeGroups 0-5, ListGroups 0-4, DeleteGroups 0-2.

DescribeGroups v3 adds authorized operations, v4 ``group.instance.id``. Tags 10298 and 10299 of DescribeGroups show
which members a rebalance waits for. ListGroups v4 adds a filter by state.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from anabranch.broker.coordinator.durable import CoordinatorRecord, OffsetRecord
from anabranch.broker.coordinator.expiry import GroupRemoved, remove_group
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.outcome import CoordinatorOutcome, Now, Then, Turn
from anabranch.broker.coordinator.responses import offset_append_error
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_groups import DeletableGroupResult
from anabranch.protocol.generated.describe_groups import DescribedGroup, DescribedGroupMember
from anabranch.protocol.generated.list_groups import ListedGroup


def describe_group(shard: Shard, group_id: str, now: Now) -> DescribedGroup:
    """The group's state and members; metadata and assignments only if it is Stable. An absent group is Dead."""
    group = shard.groups.get(group_id)
    if group is None:
        return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=_described_members(shard, group, now),
    )


def _described_members(shard: Shard, group: Group, now: Now) -> list[DescribedGroupMember]:
    stored = shard.durable.generations[group.group_id] if group.state is GroupState.STABLE else None
    deadline_ms = group.rebalance_deadline_ms if group.state is GroupState.PREPARING_REBALANCE else None
    awaited_ms, left_ms = -1, -1
    if deadline_ms is not None:
        awaited_ms = max(0, now.wall_ms - group.state_timestamp_ms)
        left_ms = max(0, deadline_ms - now.monotonic_ms)
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=b"" if stored is None else member.metadata(group.protocol_name or ""),
            member_assignment=(
                b"" if stored is None else stored.assignment_of(member.member_id, member.group_instance_id)
            ),
            awaited_ms=-1 if member.join is not None else awaited_ms,
            wait_left_ms=-1 if member.join is not None else left_ms,
        )
        for member in group.members.values()
    ]


def list_groups(shard: Shard, states: Collection[str] | None = None) -> list[ListedGroup]:
    """The groups in any of ``states`` (names as in ``GroupState``); all groups if ``states`` is None."""
    return [
        ListedGroup(group_id=group.group_id, protocol_type=group.protocol_type or "", group_state=group.state.value)
        for group in shard.groups.values()
        if states is None or group.state.value in states
    ]


def delete_group(turn: Turn, token: Token, group_id: str) -> None:
    """Write tombstones for an empty group and its offsets. ``DeletableGroupResult`` is sent when they are committed."""
    group = turn.shard.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        error = ErrorCode.GROUP_ID_NOT_FOUND
    elif group.state is not GroupState.EMPTY:
        error = ErrorCode.NON_EMPTY_GROUP
    else:
        partitions = dict.fromkeys([*turn.shard.durable.offsets_of(group_id), *group.pending_commits])
        tombstones: list[CoordinatorRecord] = [OffsetRecord(group_id, tp, None) for tp in partitions]
        remove_group(turn, group, tombstones, GroupDeleted(group, token))
        return
    turn.out.reply(token, DeletableGroupResult(group_id=group_id, error_code=error))


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """The tombstones of DeleteGroups were written."""

    group: Group
    token: Token

    def resolve(self, shard: Shard, error: ErrorCode, now: Now) -> CoordinatorOutcome:
        out = GroupRemoved(self.group).resolve(shard, error, now)
        self._answer(out, error)
        return out

    def overdue(self, shard: Shard, now: Now) -> tuple[CoordinatorOutcome, Then | None]:
        """The group stays dead until its tombstones are known to be committed or lost."""
        out = CoordinatorOutcome()
        self._answer(out, ErrorCode.REQUEST_TIMED_OUT)
        return out, GroupRemoved(self.group)

    def _answer(self, out: CoordinatorOutcome, error: ErrorCode) -> None:
        group_id = self.group.group_id
        out.reply(self.token, DeletableGroupResult(group_id=group_id, error_code=offset_append_error(error)))
