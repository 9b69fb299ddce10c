"""ConsumerGroupPosition 0 (KIP-253): a member reports its positions and waits for positions of other members.

The request is a long poll. It is fenced like a heartbeat, and counts as a heartbeat when it arrives. Unlike a
heartbeat, it is refused until the generation is stable, because before that no member owns a partition. A member's
first poll in a generation means that it has revoked all partitions that it no longer owns. A request without member id
and generation (-1) is answered at once with the known positions. If such a request has ``need_position``, the
coordinator asks the owners that poll for the missing positions from then on. In this way the owner also
learns that its partition is closed, before the controller removes the records that the group has read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anabranch.broker.coordinator.awaited_positions import Poller, PositionWait
from anabranch.broker.coordinator.broker_services import IncarnationOf
from anabranch.broker.coordinator.fencing import present_member
from anabranch.broker.coordinator.group import Group, Member
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.join import UNKNOWN_MEMBER_ID
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.coordinator.position_owners import (
    answer,
    answer_if_news,
    end_wait,
    known_of,
    owner_of,
    position_of,
    response_of,
)
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionRequest,
    ConsumerGroupPositionResponse,
    ConsumerGroupPositionResponsePartition,
)
from anabranch.protocol.sentinels import NO_GENERATION, NO_INCARNATION, NO_OFFSET
from anabranch.protocol.types import TopicPartition


def poll_positions(
    turn: Turn, token: Token, request: ConsumerGroupPositionRequest, incarnation_of: IncarnationOf
) -> None:
    """Store the member's reports and its wanted partitions, and answer when there is something new."""
    if (
        request.member_id == UNKNOWN_MEMBER_ID
        and request.generation_id == NO_GENERATION
        and request.group_instance_id is None
    ):
        turn.out.reply(token, _positions(turn, request, incarnation_of))
        return
    found = _fence(turn.shard, request)
    if isinstance(found, ErrorCode):
        turn.out.reply(token, ConsumerGroupPositionResponse(error_code=found))
        return
    group, member = found
    group.keep_alive(member, turn.now.monotonic_ms)
    _poll(turn, group, token, request, incarnation_of)


def _fence(shard: Shard, request: ConsumerGroupPositionRequest) -> tuple[Group, Member] | ErrorCode:
    found = present_member(shard, request)
    if isinstance(found, ErrorCode) or found[0].state is GroupState.STABLE:
        return found
    return ErrorCode.REBALANCE_IN_PROGRESS


def _poll(
    turn: Turn,
    group: Group,
    token: Token,
    request: ConsumerGroupPositionRequest,
    incarnation_of: IncarnationOf,
) -> None:
    positions, member_id = group.positions, request.member_id
    may_change_all = _note_poll(group, member_id)
    poller = positions.pollers[member_id]
    is_repeated = poller.token is not None
    if is_repeated:
        answer(turn, group, member_id)  # the connection of the earlier poll broke, or the member would not poll again
    asked = partitions_of(request, incarnation_of)
    moved = [
        one.tp
        for one in asked
        if one.position > NO_OFFSET
        and owner_of(turn.shard, group, one.tp) == member_id
        and positions.report(one.tp, one.incarnation, one.position)
    ]
    is_late = 0 <= request.poll_number < poller.poll_number
    new = [] if is_late else _replace_wants(turn, group, member_id, request.poll_number, asked)
    poller.token = token
    poller.deadline_ms = group.wake_by(turn.now.monotonic_ms + max(request.max_wait_ms, 0))
    _wait_for_first_polls(turn, group, is_wanted=bool(poller.wants))
    if is_repeated or request.max_wait_ms <= 0:
        answer(turn, group, member_id)
    affected: dict[str, None] = {member_id: None}
    for tp in moved:
        affected.update(positions.waiting.get(tp, {}))
    for tp in new:
        owner = owner_of(turn.shard, group, tp)
        if owner is not None:
            affected[owner] = None
    answer_if_news(turn, group, list(positions.pollers) if may_change_all else affected)


def _replace_wants(
    turn: Turn, group: Group, member_id: str, poll_number: int, asked: Sequence[AskedPosition]
) -> list[TopicPartition]:
    """Replace the partitions whose positions a member wants, and its waits. Returns the newly wanted partitions."""
    poller = group.positions.pollers[member_id]
    poller.poll_number = poll_number
    new = group.positions.want(member_id, poller, {one.tp: one.incarnation for one in asked if one.is_wanted})
    awaited_until = {one.tp: one.awaited_until for one in asked if one.is_wanted}
    _continue_waits(turn, group, member_id, awaited_until)
    _note_waits(turn, group, poller, awaited_until)
    return new


def _continue_waits(turn: Turn, group: Group, member_id: str, awaited_until: Mapping[TopicPartition, int]) -> None:
    """Continue a member's earlier waits if it still awaits their offsets; record the lengths of waits that are over.

    A member's first polls in a generation may leave out some of its waits. The waiting records are in a partition that
    the member owns. If that partition has another owner now, the new owner records the rest of the wait.
    """
    poller, earlier = group.positions.pollers[member_id], group.positions.waits_before.get(member_id, {})
    for tp in [tp for tp in earlier if tp in awaited_until]:
        wait, until = earlier[tp], awaited_until[tp]
        if position_of(turn.shard, group, tp, poller.wants[tp]) >= wait.until:
            turn.shard.on_waited((wait.interrupted_ms - wait.since_ms) / 1000)
        elif until == wait.until:
            poller.awaited[tp] = wait._replace(interrupted_ms=-1)
        elif until == NO_OFFSET:
            continue
        del earlier[tp]


def _note_waits(turn: Turn, group: Group, poller: Poller, awaited_until: Mapping[TopicPartition, int]) -> None:
    """Record the lengths of the waits that are over, and note when the other waits began."""
    waits = {
        tp: until for tp, until in awaited_until.items() if position_of(turn.shard, group, tp, poller.wants[tp]) < until
    }
    for tp in [tp for tp in poller.awaited if tp not in waits]:
        end_wait(turn, poller, tp)
    for tp, until in waits.items():
        known = poller.awaited.get(tp)
        poller.awaited[tp] = PositionWait(until, turn.now.monotonic_ms if known is None else known.since_ms)


def _note_poll(group: Group, member_id: str) -> bool:
    """Note a member's poll; returns whether the poll may change which of the wanted positions are known.

    Only a member's first poll in this generation may change that: the last first poll for which the group waits, or a
    poll after the group stopped waiting for it. The result is also True if the group would have waited for this poll
    without limit.
    """
    positions = group.positions
    if member_id in positions.pollers:
        return False
    positions.pollers[member_id] = Poller()
    positions.has_polled = True
    group.members[member_id].polls_positions = True
    if positions.without_poll is None:
        positions.without_poll = _members_without_poll(group)
    was_waited_for = positions.without_poll.pop(member_id, None) is not None
    return not positions.without_poll or not was_waited_for


def _members_without_poll(group: Group) -> dict[str, int | None]:
    """All members; for each, the time that the group waits for its first poll (None: without limit)."""
    return {m.member_id: None if m.polls_positions else m.session_timeout_ms for m in group.members.values()}


class AskedPosition(NamedTuple):
    """A partition of a request, with the requested incarnation and the reported position."""

    tp: TopicPartition
    incarnation: int
    is_wanted: bool
    position: int
    awaited_until: int


def partitions_of(request: ConsumerGroupPositionRequest, incarnation_of: IncarnationOf) -> list[AskedPosition]:
    """The partitions of a request, without negative indexes."""
    return [
        AskedPosition(
            TopicPartition(topic.name, partition.partition_index),
            _meant(partition.incarnation, topic.name, partition.partition_index, incarnation_of),
            partition.need_position,
            partition.position,
            partition.awaited_until,
        )
        for topic in request.topics
        for partition in topic.partitions
        if partition.partition_index >= 0
    ]


def _meant(incarnation: int, topic: str, index: int, incarnation_of: IncarnationOf) -> int:
    return incarnation if incarnation > NO_INCARNATION else incarnation_of(topic, index)


# ---------------------------------------------------------------- questions without a member


def _positions(
    turn: Turn, request: ConsumerGroupPositionRequest, incarnation_of: IncarnationOf
) -> ConsumerGroupPositionResponse:
    """The positions of the named partitions; if none is named, of each partition that a member waits for or reported.

    ``need_position`` means that a member waits for the partition, or may wait for it after its next poll.
    """
    group = turn.shard.groups.get(request.group_id) or Group(request.group_id)
    positions = group.positions
    if request.topics:
        partitions = partitions_of(request, incarnation_of)
        named = {one.tp: one.incarnation for one in partitions}
        ask_owners(turn, group, {one.tp: one.incarnation for one in partitions if one.is_wanted})
    else:
        named = {tp: report.incarnation for tp, report in positions.reports.items()}
        named.update({tp: positions.newest_wanted(tp) for tp in positions.waiting})
    return response_of(
        (
            tp,
            ConsumerGroupPositionResponsePartition(
                partition_index=tp.partition,
                incarnation=incarnation,
                need_position=may_be_wanted(group, tp),
                owner_reports=_owner_reports(turn.shard, group, tp),
                **known_of(turn.shard, group, tp, incarnation)._asdict(),
            ),
        )
        for tp, incarnation in named.items()
    )


def _owner_reports(shard: Shard, group: Group, tp: TopicPartition) -> int:
    """Whether the partition's owner polls for positions: 1 or 0; -1 if the partition has no owner now."""
    owner = owner_of(shard, group, tp) if group.state is GroupState.STABLE else None
    return -1 if owner is None else int(group.members[owner].polls_positions)


def may_be_wanted(group: Group, tp: TopicPartition) -> bool:
    """Whether a member waits for the partition, or a member whose waits are not known yet may wait for it."""
    if tp in group.positions.waiting:
        return True
    return bool(group.members) and (group.state is not GroupState.STABLE or group.positions.may_be_asked_for)


def ask_owners(turn: Turn, group: Group, wanted: dict[TopicPartition, int]) -> None:
    """Ask the owners of the wanted partitions, if they poll, to report their positions until the generation ends.

    A member that has not polled may still poll, because the generation or this coordinator may be new.
    """
    positions = group.positions
    if group.state is not GroupState.STABLE or not wanted:
        return
    if positions.without_poll is None:
        positions.without_poll = _members_without_poll(group)
    owners = {tp: owner_of(turn.shard, group, tp) for tp in wanted}
    reported = {tp: meant for tp, meant in wanted.items() if owners[tp] in positions.pollers}
    if reported:
        unnamed = positions.pollers.setdefault(UNKNOWN_MEMBER_ID, Poller())
        positions.want(UNKNOWN_MEMBER_ID, unnamed, {**unnamed.wants, **reported})
        answer_if_news(turn, group, dict.fromkeys(owner for tp in reported if (owner := owners[tp]) is not None))
    _wait_for_first_polls(turn, group, is_wanted=True)


def _wait_for_first_polls(turn: Turn, group: Group, *, is_wanted: bool) -> None:
    """Wait for the members that have not polled. The wait begins when a position is wanted for the first time."""
    positions = group.positions
    if is_wanted and positions.waited_since_ms is None:
        positions.waited_since_ms = turn.now.monotonic_ms
    if positions.first_polls_deadline_ms is not None:
        group.wake_by(positions.first_polls_deadline_ms)
