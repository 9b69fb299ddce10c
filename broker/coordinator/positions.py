"""A group's positions in partitions that its members wait for (KIP-253), and the waiting members. All volatile.

A position means processed: the records below it were delivered, and the flush callback has saved its state. Only the
owner of a partition knows that. While the owner polls, only its own reports count. Its commits do not count, because a
periodic commit runs ahead of the flush callback; but a commit may be marked as a report, and is one once it is
committed.

If no member can report, the committed offset of the same incarnation counts, and only after every member has polled in
this generation. Before that, a member may still be revoking partitions. A member that has polled in an earlier
generation, or has announced polls in a heartbeat, is waited for as long as it is a member: its user may be busy for up
to its rebalance timeout. Any other member may be a stock client, which never polls. It is waited for as long as a
session lasts. An unknown position is -1, never a guess.

A leader of the offsets partition may have a successor without knowing it. Its answers were correct once. That is safe:
processed records stay processed, so a position, unlike a committed offset, needs no confirmation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from anabranch.broker.coordinator.durable import StableGeneration
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.outcome import Token
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionResponse,
    ConsumerGroupPositionResponsePartition,
    ConsumerGroupPositionResponseTopic,
)
from anabranch.protocol.subscriptions import assigned_partitions
from anabranch.protocol.types import TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.coordinator.group import Group, Member
    from anabranch.broker.coordinator.shard import Shard, Turn

UNKNOWN_POSITION = -1


class Known(NamedTuple):
    """The answer for a partition."""

    position: int
    awaits_report: bool
    rewinds: int
    """How often a commit lowered the group's offset: between two answers the position may go down and up again."""


_NOTHING_KNOWN = Known(UNKNOWN_POSITION, awaits_report=True, rewinds=0)


class Report(NamedTuple):
    """The owner's report on one incarnation of a partition: everything below ``position`` is processed."""

    incarnation: int
    position: int


@dataclass(slots=True, eq=False)
class Poller:
    """A member that polled in this generation: its wanted partitions, its last answers, and its waiting poll."""

    wants: dict[TopicPartition, int] = field(default_factory=dict)
    """The partitions whose position it waits for, with the incarnation it means."""
    answered: dict[TopicPartition, Known] = field(default_factory=dict)
    """The last answer for each wanted partition."""
    asked: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions that it owns and whose positions were requested from it."""
    since_ms: dict[TopicPartition, int] = field(default_factory=dict)
    """Since when it has waited for each partition."""
    token: Token | None = None
    deadline_ms: int = 0


@dataclass(slots=True, eq=False)
class _Ownership:
    """The owners of partitions in one stored generation."""

    generation: StableGeneration
    owner_of: dict[TopicPartition, str]
    owned_by: dict[str, list[TopicPartition]]


@dataclass(slots=True, eq=False)
class GroupPositions:
    """One generation's positions; see the module. Empty unless the group is stable."""

    pollers: dict[str, Poller] = field(default_factory=dict)
    reports: dict[TopicPartition, Report] = field(default_factory=dict)
    waiting: dict[TopicPartition, dict[str, None]] = field(default_factory=dict)
    """The members that want a partition's position."""
    without_poll: dict[str, int | None] | None = None
    """Members that have not polled, each with the ms that the group waits for it; None: for as long as it is a member.

    The field is None until a member polls, or until a question comes.
    """
    waited_since_ms: int | None = None
    """The time at which a member first wanted a position: the group waits for first polls from then on."""
    ownership: _Ownership | None = None
    has_polled: bool = False
    """Whether a member polled in this generation or an earlier one, as far as this coordinator remembers."""

    def clear(self) -> None:
        """Forget the positions: the generation is over."""
        self.pollers = {}
        self.reports = {}
        self.waiting = {}
        self.without_poll = None
        self.waited_since_ms = None
        self.ownership = None

    @property
    def first_polls_deadline_ms(self) -> int | None:
        """The time at which the group stops waiting for the next member without a poll."""
        limits_ms = [length_ms for length_ms in (self.without_poll or {}).values() if length_ms is not None]
        if self.waited_since_ms is None or not limits_ms:
            return None
        return self.waited_since_ms + min(limits_ms)

    @property
    def may_be_asked_for(self) -> bool:
        """Whether a member that will poll has not polled yet in this generation: its waits are not known yet."""
        return self.has_polled if self.without_poll is None else bool(self.without_poll)

    def deadlines(self) -> Iterable[int]:
        """The deadlines of the waiting polls, and the time at which the group stops waiting for a first poll."""
        for poller in self.pollers.values():
            if poller.token is not None:
                yield poller.deadline_ms
        if self.first_polls_deadline_ms is not None:
            yield self.first_polls_deadline_ms

    def renamed(self, old_member_id: str, new_member_id: str, session_timeout_ms: int) -> None:
        """Replace a static member by its successor, which has none of its predecessor's reports and waits.

        The successor is waited for from the next poll on.
        """
        poller = self.pollers.pop(old_member_id, None)
        if poller is not None:
            self.want(old_member_id, poller, {})
        if self.ownership is not None:
            for tp in self.ownership.owned_by.get(old_member_id, ()):
                self.reports.pop(tp, None)
            self.ownership = None
        if self.without_poll is not None:
            self.without_poll.pop(old_member_id, None)
            self.without_poll[new_member_id] = session_timeout_ms
            self.waited_since_ms = None

    def want(self, member_id: str, poller: Poller, wants: dict[TopicPartition, int]) -> list[TopicPartition]:
        """Replace a member's wanted partitions; returns those that no member wanted before in that incarnation."""
        for tp in poller.wants:
            if tp not in wants:
                poller.answered.pop(tp, None)
                self._unwant(tp, member_id)
        before = {tp: self.newest_wanted(tp) if tp in self.waiting else None for tp in wants}
        for tp, incarnation in wants.items():
            self.waiting.setdefault(tp, {})[member_id] = None
            if poller.wants.get(tp, incarnation) != incarnation:
                poller.answered.pop(tp, None)
        poller.wants = wants
        new = [tp for tp in wants if self.newest_wanted(tp) != before[tp]]
        for tp in new:
            self._ask_again(tp)
        return new

    def _ask_again(self, tp: TopicPartition) -> None:
        """Have the owner's position requested again, as if no member had waited for the partition before."""
        owner = None if self.ownership is None else self.ownership.owner_of.get(tp)
        if owner is not None and owner in self.pollers:
            self.pollers[owner].asked.pop(tp, None)

    def _unwant(self, tp: TopicPartition, member_id: str) -> None:
        waiting = self.waiting[tp]
        del waiting[member_id]
        if waiting:
            return
        del self.waiting[tp]
        self._ask_again(tp)

    def report(self, tp: TopicPartition, incarnation: int, position: int) -> bool:
        """Store the owner's report, even of a lower position after a rewind; returns whether that changed anything.

        A report on an incarnation before the last reported one is ignored.
        """
        known = self.reports.get(tp)
        if known is not None and incarnation < known.incarnation:
            return False
        self.reports[tp] = Report(incarnation, position)
        return self.reports[tp] != known

    def newest_wanted(self, tp: TopicPartition) -> int:
        """The newest incarnation that a poller waits for. The partition must be waited for."""
        return max(self.pollers[member_id].wants[tp] for member_id in self.waiting[tp])


def _ownership(shard: Shard, group: Group) -> _Ownership:
    """The owners of partitions, read once for each stored generation. One assigned twice is its first owner's."""
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
    group.positions.ownership = _Ownership(generation, owner_of, owned_by)
    return group.positions.ownership


def owner_of(shard: Shard, group: Group, tp: TopicPartition) -> str | None:
    """The member that the stable generation assigns a partition to."""
    return _ownership(shard, group).owner_of.get(tp)


def awaits_report(shard: Shard, group: Group, tp: TopicPartition) -> bool:
    """Whether only a live member knows the position: it owns the partition and polls, or may be about to poll.

    Then neither a commit nor the start of the log shows which records it has processed.
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
        return report.position if report is not None and is_of_incarnation else UNKNOWN_POSITION
    committed = shard.durable.offsets_of(group.group_id).get(tp)
    if committed is None or committed.incarnation != incarnation:
        return UNKNOWN_POSITION
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
    named = {**{tp: positions.newest_wanted(tp) for tp in to_report}, **poller.wants}
    found = [
        (
            tp,
            ConsumerGroupPositionResponsePartition(
                partition_index=tp.partition,
                incarnation=incarnation,
                need_position=tp in poller.asked,
                **known_of(shard, group, tp, incarnation)._asdict(),
            ),
        )
        for tp, incarnation in named.items()
    ]
    turn.out.reply(poller.token, response_of(found))
    poller.token = None


def answer_if_news(turn: Turn, group: Group, member_ids: Iterable[str]) -> None:
    """Answer the waiting polls for which there is something new."""
    for member_id in member_ids:
        poller = group.positions.pollers.get(member_id)
        if poller is not None and poller.token is not None and _has_news(turn.shard, group, member_id, poller):
            answer(turn, group, member_id)


def _has_news(shard: Shard, group: Group, member_id: str, poller: Poller) -> bool:
    moved = (
        known_of(shard, group, tp, incarnation) != poller.answered.get(tp, _NOTHING_KNOWN)
        for tp, incarnation in poller.wants.items()
    )
    return any(moved) or any(tp not in poller.asked for tp in _to_report(shard, group, member_id))


def known_of(shard: Shard, group: Group, tp: TopicPartition, incarnation: int) -> Known:
    """The answer for one incarnation of a partition."""
    committed = shard.durable.offsets_of(group.group_id).get(tp)
    rewinds = 0 if committed is None else committed.rewinds
    return Known(position_of(shard, group, tp, incarnation), awaits_report(shard, group, tp), rewinds)


def _to_report(shard: Shard, group: Group, member_id: str) -> list[TopicPartition]:
    """The partitions that a member owns and another waits for."""
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
    group.positions.clear()


# ---------------------------------------------------------------- what else moves a position


def will_poll(group: Group, member: Member) -> None:
    """Note that the member polls for positions: a coordinator that took over does not know its earlier polls."""
    member.polls_positions = True
    without_poll = group.positions.without_poll
    if without_poll is not None and member.member_id in without_poll:
        without_poll[member.member_id] = None


class Processed(NamedTuple):
    """The part of a member's commit that is a report as well."""

    generation_id: int
    member_id: str
    reports: dict[TopicPartition, Report]


def take_processed(shard: Shard, group: Group, processed: Processed) -> set[TopicPartition]:
    """Store a member's commit as its report; returns the partitions for which it counts.

    It counts for none in a later generation, or before the member's first poll. Until then its reports have no effect,
    and that poll has to carry them, so that waiting members are answered.
    """
    has_polled = processed.member_id in group.positions.pollers
    if group.state is not GroupState.STABLE or group.generation_id != processed.generation_id or not has_polled:
        return set()
    own = {tp for tp in processed.reports if owner_of(shard, group, tp) == processed.member_id}
    for tp in own:
        group.positions.report(tp, *processed.reports[tp])
    return own


def on_committed(turn: Turn, group: Group, partitions: Iterable[TopicPartition]) -> None:
    """Answer polls after offsets were committed: where no member reports, that moves the position."""
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
