"""The steps of a rebalance: members are asked to rejoin, the others are removed, and the next generation starts.

JoinGroup, LeaveGroup, session expiry and timers all use this module. Functions change the volatile group and add
replies and writes to ``turn.out``; none of them touches durable state.
"""

from __future__ import annotations

from anabranch.broker.coordinator.durable import GroupRecord, StableGeneration, StoredMember
from anabranch.broker.coordinator.group import Group, Member, ParkedJoin
from anabranch.broker.coordinator.group_state import VALID_PREVIOUS_STATES, GroupState
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.coordinator.position_owners import end_generation, refuse_poll
from anabranch.broker.coordinator.responses import join_error, sync_error
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.join_group import JoinGroupResponse, JoinGroupResponseMember


def maybe_prepare_rebalance(turn: Turn, group: Group) -> None:
    """Start a rebalance unless one is being prepared or the group is dead."""
    if group.state in VALID_PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]:
        prepare_rebalance(turn, group)


def prepare_rebalance(turn: Turn, group: Group) -> None:
    """Ask all members to rejoin. An empty group waits ``group.initial.rebalance.delay.ms`` for more members."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        for member in group.members.values():
            refuse_sync(turn, group, member, ErrorCode.REBALANCE_IN_PROGRESS)
    end_generation(turn, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.sync_deadline_ms = None
    group.assignment_in_flight = False
    delay_ms = group.rebalance_timeout_ms
    if group.state is GroupState.EMPTY:
        delay_ms = turn.config.initial_rebalance_delay_ms
        group.initial_delay_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
    group.rebalance_deadline_ms = group.wake_by(turn.now.monotonic_ms + delay_ms)
    group.transition_to(GroupState.PREPARING_REBALANCE, turn.now.wall_ms)


def maybe_complete_join(turn: Turn, group: Group) -> None:
    """Start the generation early if all members rejoined, except while an empty group waits for its first members."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.initial_delay_remaining_ms is None
        and group.has_all_members_joined
    ):
        complete_join(turn, group)


def on_rebalance_deadline(turn: Turn, group: Group) -> None:
    """End the wait. While new members join, prolong the initial delay instead, up to the rebalance timeout."""
    remaining_ms = group.initial_delay_remaining_ms
    if remaining_ms and group.new_member_added:
        group.new_member_added = False
        delay_ms = min(turn.config.initial_rebalance_delay_ms, remaining_ms)
        group.initial_delay_remaining_ms = remaining_ms - delay_ms
        group.rebalance_deadline_ms = group.wake_by(turn.now.monotonic_ms + delay_ms)
        return
    complete_join(turn, group)


def complete_join(turn: Turn, group: Group) -> None:
    """Remove dynamic members that did not rejoin, and start the next generation with all other members."""
    group.rebalance_deadline_ms = None
    group.initial_delay_remaining_ms = None
    for member in [m for m in group.members.values() if m.join is None and m.group_instance_id is None]:
        group.remove(member.member_id)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left and none rejoined: wait until one rejoins or their sessions end.
        group.rebalance_deadline_ms = group.wake_by(turn.now.monotonic_ms + group.rebalance_timeout_ms)
        return
    group.generation_id += 1
    group.new_member_added = False
    group.pending_sync.clear()
    if group.members:
        _start_generation(turn, group)
    else:
        _become_empty(turn, group)


def _elect_joined_leader(group: Group) -> bool:
    """Make sure that the leader is a member that rejoined; False if no member rejoined."""
    if group.leader_id is not None and group.members[group.leader_id].join is not None:
        return True
    joined = next((m.member_id for m in group.members.values() if m.join is not None), None)
    if joined is None:
        return False
    group.leader_id = joined
    return True


def _start_generation(turn: Turn, group: Group) -> None:
    group.protocol_name = group.select_protocol()
    group.refresh_subscribed_topics()
    group.transition_to(GroupState.COMPLETING_REBALANCE, turn.now.wall_ms)
    for member in group.members.values():
        answer_join(turn, group, member)
        group.keep_alive(member, turn.now.monotonic_ms)
        member.is_new = False
        group.pending_sync[member.member_id] = None
    group.sync_deadline_ms = group.wake_by(turn.now.monotonic_ms + group.rebalance_timeout_ms)


def _become_empty(turn: Turn, group: Group) -> None:
    group.protocol_name = None
    group.refresh_subscribed_topics()
    group.transition_to(GroupState.EMPTY, turn.now.wall_ms)
    # If the write is lost, the stored generation still has members. The next coordinator ends their sessions.
    turn.out.write(group.group_id, [GroupRecord(group.group_id, stored_generation(group, {}))])


def on_sync_deadline(turn: Turn, group: Group) -> None:
    """Remove members that joined the generation but never requested their assignment (KAFKA-12890)."""
    group.sync_deadline_ms = None
    missing = list(group.pending_sync)
    if not missing or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        return
    for member_id in missing:
        group.remove(member_id)
    prepare_rebalance(turn, group)
    maybe_complete_join(turn, group)


def synced(group: Group, member_id: str) -> None:
    """Note that the member requested its assignment. Once all members have, there is no deadline any more."""
    group.pending_sync.pop(member_id, None)
    if not group.pending_sync:
        group.sync_deadline_ms = None


def remove_member(turn: Turn, group: Group, member: Member) -> None:
    """Remove a member that left or whose session ended. Its waiting requests are answered; other members rebalance."""
    join = group.take_join(member)
    if join is not None:
        turn.out.reply(join.token, join_error(join.api_version, "", ErrorCode.UNKNOWN_MEMBER_ID))
    refuse_sync(turn, group, member, ErrorCode.UNKNOWN_MEMBER_ID)
    refuse_poll(turn, group, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
    group.remove(member.member_id)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare_rebalance(turn, group)
    maybe_complete_join(turn, group)


def remove_pending_member(turn: Turn, group: Group, member_id: str) -> None:
    """Forget a member id that was sent with MEMBER_ID_REQUIRED; a rebalance may have been waiting for it."""
    group.forget_pending(member_id)
    maybe_complete_join(turn, group)


# ---------------------------------------------------------------- answers


def answer_join(turn: Turn, group: Group, member: Member) -> None:
    """Answer a member's waiting join with the generation; the leader gets every member's metadata."""
    join = group.take_join(member)
    if join is not None:
        turn.out.reply(join.token, generation_response(group, member, join))


def generation_response(
    group: Group, member: Member, join: ParkedJoin, leader_id: str | None = None
) -> JoinGroupResponse:
    """The answer to ``member`` with the group's current generation; ``leader_id`` overrides the group's leader."""
    leader = leader_id if leader_id is not None else group.leader_id
    protocol_name = group.protocol_name or ""
    members = []
    if leader == member.member_id:
        members = [
            JoinGroupResponseMember(
                member_id=m.member_id, group_instance_id=m.group_instance_id, metadata=m.metadata(protocol_name)
            )
            for m in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=protocol_name,
        leader=leader or "",
        member_id=member.member_id,
        members=members,
    )


def refuse_sync(turn: Turn, group: Group, member: Member, error: ErrorCode) -> None:
    """Refuse the member's waiting SyncGroup, if there is one; its session starts again."""
    if member.sync is not None:
        turn.out.reply(member.sync, sync_error(error))
        member.sync = None
        group.keep_alive(member, turn.now.monotonic_ms)


def stored_generation(group: Group, assignments: dict[str, bytes]) -> StableGeneration:
    """The group's current generation as it is written to the log; a member without assignment has an empty one."""
    members = {
        member.member_id: StoredMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name or ""),
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    }
    return StableGeneration(
        protocol_type=group.protocol_type,
        generation_id=group.generation_id,
        protocol_name=group.protocol_name,
        leader_id=group.leader_id,
        state_timestamp_ms=group.state_timestamp_ms,
        members=members,
    )
