"""Decides which positions are known, which are requested from their owners, and which polls are answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from anabranch.broker.coordinator.awaited_positions import NOTHING_KNOWN, Known, OwnerReport, Ownership, Poller
from anabranch.broker.coordinator.group import Group, Member
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.coordinator.shard import Shard
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionResponse,
    ConsumerGroupPositionResponsePartition,
    ConsumerGroupPositionResponseTopic,
)
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.subscriptions import assigned_partitions
from anabranch.protocol.types import TopicPartition


def _ownership(shard: Shard, group: Group) -> Ownership:
    """The owners of partitions, read once per stored generation. If a partition has two owners, the first counts."""
    known, generation = group.positions.ownership, shard.durable.generations[group.group_id]
    if known is not None and known.generation is generation:
        return known
    owner_of: dict[TopicPartition, str] = {}
    owned_by: dict[str, list[TopicPartition]] = {}
    for member in group.members.values():
        assignment = generation.assignment_of(member.member_id, member.group_instance_id)
        owned = [tp for tp in assigned_partitions(assignment) if tp not in owner_of]
        owner_of.update(dict.fromkeys(owned, member.member_id))
        owned_by[member.member_id] = owned
    group.positions.ownership = Ownership(generation, owner_of, owned_by)
    return group.positions.ownership


def owner_of(shard: Shard, group: Group, tp: TopicPartition) -> str | None:
    """The member to which the stable generation assigns a partition."""
    return _ownership(shard, group).owner_of.get(tp)


def awaits_report(shard: Shard, group: Group, tp: TopicPartition) -> bool:
    """Whether only the owner knows the position, because the owner is a live member that polls, or may poll soon.

    Then neither a commit nor the start of the log shows which records the owner has processed.
    """
    if group.state is not GroupState.STABLE:
        return group.state is not GroupState.EMPTY
    positions = group.positions
    return (
        owner_of(shard, group, tp) in positions.pollers
        or positions.without_poll is None
        or bool(positions.without_poll)
    )


def position_of(shard: Shard, group: Group, tp: TopicPartition, incarnation: int) -> int:
    """The group's position in one incarnation of a partition, -1 if it is not known."""
    if awaits_report(shard, group, tp):
        report = group.positions.reports.get(tp)
        is_of_incarnation = report is not None and report.incarnation == incarnation
        return report.position if report is not None and is_of_incarnation else NO_OFFSET
    committed = shard.durable.offsets_of(group.group_id).get(tp)
    if committed is None or committed.incarnation != incarnation:
        return NO_OFFSET
    return committed.offset


# ---------------------------------------------------------------- answers


def response_of(
    found: Iterable[tuple[TopicPartition, ConsumerGroupPositionResponsePartition]],
) -> ConsumerGroupPositionResponse:
    """The partitions by topic, in the order they are first named."""
    topics: dict[str, list[ConsumerGroupPositionResponsePartition]] = {}
    for tp, partition in found:
        topics.setdefault(tp.topic, []).append(partition)
    return ConsumerGroupPositionResponse(
        topics=[ConsumerGroupPositionResponseTopic(name=name, partitions=parts) for name, parts in topics.items()]
    )


def answer(turn: Turn, group: Group, member_id: str) -> None:
    """Answer a member's waiting poll with its wanted positions and the partitions that it has to report."""
    positions, shard = group.positions, turn.shard
    poller = positions.pollers[member_id]
    to_report = _to_report(shard, group, member_id)
    poller.asked = dict.fromkeys(to_report)
    poller.answered = {tp: known_of(shard, group, tp, meant) for tp, meant in poller.wants.items()}
    for tp in [tp for tp, wait in poller.awaited.items() if poller.answered[tp].position >= wait.until]:
        end_wait(turn, poller, tp)
    named = {**{tp: positions.newest_wanted(tp) for tp in to_report}, **poller.wants}
    found = [
        (
            tp,
            ConsumerGroupPositionResponsePartition(
                partition_index=tp.partition,
                incarnation=incarnation,
                need_position=tp in poller.asked,
                **(poller.answered.get(tp) or known_of(shard, group, tp, incarnation))._asdict(),
            ),
        )
        for tp, incarnation in named.items()
    ]
    shard.position_answers += 1
    response = response_of(found)
    response.coordinator_epoch, response.answer_number = shard.leader_epoch, shard.position_answers
    turn.out.reply(poller.token, response)
    poller.token = None


def end_wait(turn: Turn, poller: Poller, tp: TopicPartition) -> None:
    """Record the length of a wait that is over."""
    wait = poller.awaited.pop(tp)
    turn.shard.on_waited((turn.now.monotonic_ms - wait.since_ms) / 1000)


def answer_if_news(turn: Turn, group: Group, member_ids: Iterable[str]) -> None:
    """Answer each waiting poll for which there is something new."""
    for member_id in member_ids:
        poller = group.positions.pollers.get(member_id)
        if poller is not None and poller.token is not None and _has_news(turn.shard, group, member_id, poller):
            answer(turn, group, member_id)


def _has_news(shard: Shard, group: Group, member_id: str, poller: Poller) -> bool:
    moved = (
        known_of(shard, group, tp, incarnation) != poller.answered.get(tp, NOTHING_KNOWN)
        for tp, incarnation in poller.wants.items()
    )
    return any(moved) or any(tp not in poller.asked for tp in _to_report(shard, group, member_id))


def known_of(shard: Shard, group: Group, tp: TopicPartition, incarnation: int) -> Known:
    """The answer for one incarnation of a partition."""
    committed = shard.durable.offsets_of(group.group_id).get(tp)
    rewinds = 0 if committed is None else committed.rewinds
    return Known(position_of(shard, group, tp, incarnation), awaits_report(shard, group, tp), rewinds)


def _to_report(shard: Shard, group: Group, member_id: str) -> list[TopicPartition]:
    """The partitions that this member owns and another member waits for."""
    waiting = group.positions.waiting
    return [tp for tp in _ownership(shard, group).owned_by.get(member_id, ()) if tp in waiting]


def refuse_poll(turn: Turn, group: Group, member_id: str, error: ErrorCode) -> None:
    """Refuse the member's waiting poll, if there is one."""
    poller = group.positions.pollers.get(member_id)
    if poller is not None and poller.token is not None:
        turn.out.reply(poller.token, ConsumerGroupPositionResponse(error_code=error))
        poller.token = None


def end_generation(turn: Turn, group: Group, error: ErrorCode) -> None:
    """Refuse every waiting poll and forget the positions."""
    for member_id in group.positions.pollers:
        refuse_poll(turn, group, member_id, error)
    positions = group.positions
    positions.clear(turn.now.monotonic_ms)
    positions.waits_before = {m: waits for m, waits in positions.waits_before.items() if waits and m in group.members}


# ---------------------------------------------------------------- other changes of positions


def note_polling(group: Group, member: Member) -> None:
    """Note that the member polls for positions. A coordinator that took over does not know its earlier polls."""
    member.polls_positions = True
    without_poll = group.positions.without_poll
    if without_poll is not None and member.member_id in without_poll:
        without_poll[member.member_id] = None


class Processed(NamedTuple):
    """The offsets of a member's commit that are marked as reports of its positions."""

    generation_id: int
    member_id: str
    reports: dict[TopicPartition, OwnerReport]


def take_processed(shard: Shard, group: Group, processed: Processed) -> set[TopicPartition]:
    """Store a member's commit as its report; returns the partitions for which the commit counts as a report.

    The commit counts only in its own generation, and only after the member's first poll. The first poll repeats the
    positions, so that waiting members are answered.
    """
    has_polled = processed.member_id in group.positions.pollers
    if group.state is not GroupState.STABLE or group.generation_id != processed.generation_id or not has_polled:
        return set()
    own = {tp for tp in processed.reports if owner_of(shard, group, tp) == processed.member_id}
    for tp in own:
        group.positions.report(tp, *processed.reports[tp])
    return own


def on_committed(turn: Turn, group: Group, partitions: Iterable[TopicPartition]) -> None:
    """Answer polls after offsets were committed: if no member reports, a commit moves the position."""
    waiting = group.positions.waiting
    if waiting:
        answer_if_news(turn, group, dict.fromkeys(member for tp in partitions for member in waiting.get(tp, ())))


def on_poll_deadlines(turn: Turn, group: Group) -> None:
    """Answer the polls that waited long enough; stop waiting for members that never polled."""
    positions, now_ms = group.positions, turn.now.monotonic_ms
    if positions.without_poll and positions.waited_since_ms is not None:
        waited_ms = now_ms - positions.waited_since_ms
        positions.without_poll = {
            m: length_ms
            for m, length_ms in positions.without_poll.items()
            if length_ms is None or length_ms > waited_ms
        }
        if not positions.without_poll:
            answer_if_news(turn, group, list(positions.pollers))
    for member_id, poller in positions.pollers.items():
        if poller.token is not None and poller.deadline_ms <= now_ms:
            answer(turn, group, member_id)
