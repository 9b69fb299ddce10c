"""A group's positions in partitions that its members wait for (KIP-253), and the waiting members. All volatile.

All records below a position are processed: they were delivered, and the flush callback has saved the resulting state.
Only the owner of a partition knows which records are processed. While the owner polls, only its own reports count. Its
ordinary commits do not count, because a periodic commit runs ahead of the flush callback. A commit that is marked as a
report counts as a report once it is committed.

If no member can report, the committed offset of the same incarnation counts. It counts only after every member has
polled in this generation: before that, a member may still be revoking partitions. If a member has polled in an earlier
generation, or has announced polls in a heartbeat, the group waits for its poll as long as it is a member: the
application may be busy for up to the rebalance timeout. Any other member may be a stock client, which never polls. For
the poll of such a member the group waits one session timeout. An unknown position is -1, never a guess.

A deposed leader of the offsets partition may still answer, with positions that are out of date. That is safe, because
processed records stay processed. So a position is answered without a confirmation of the leadership, which a committed
offset needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.broker.coordinator.durable import StableGeneration
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.types import TopicPartition


class Known(NamedTuple):
    """The answer for a partition."""

    position: int
    awaits_report: bool
    rewinds: int
    """The number of commits that lowered the group's offset. A position may go down and up between two answers."""


NOTHING_KNOWN = Known(NO_OFFSET, awaits_report=True, rewinds=0)


class OwnerReport(NamedTuple):
    """The owner's report on one incarnation of a partition: everything below ``position`` is processed."""

    incarnation: int
    position: int


class PositionWait(NamedTuple):
    """A member waits for the group to reach offset ``until`` in a partition."""

    until: int
    since_ms: int
    interrupted_ms: int = -1
    """The time when the last generation that had this wait ended; -1 if the present generation has the wait."""


@dataclass(slots=True, eq=False)
class Poller:
    """A member that polled in this generation: its wanted partitions, its last answers, and its waiting poll."""

    wants: dict[TopicPartition, int] = field(default_factory=dict)
    """The partitions whose positions the member waits for, each with the requested incarnation."""
    answered: dict[TopicPartition, Known] = field(default_factory=dict)
    """The last answer for each wanted partition."""
    asked: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions that the member owns, and whose positions were requested from the member."""
    awaited: dict[TopicPartition, PositionWait] = field(default_factory=dict)
    """The wanted partitions in which the group must reach an offset before the member delivers waiting records."""
    token: Token | None = None
    deadline_ms: int = 0
    poll_number: int = -1
    """The number of the poll that named ``wants``; -1 if the member does not number its polls."""


@dataclass(slots=True, eq=False)
class Ownership:
    """The owners of partitions in one stored generation."""

    generation: StableGeneration
    owner_of: dict[TopicPartition, str]
    owned_by: dict[str, list[TopicPartition]]


@dataclass(slots=True, eq=False)
class GroupPositions:
    """The positions of one generation; see the module. Empty unless the group is stable."""

    pollers: dict[str, Poller] = field(default_factory=dict)
    reports: dict[TopicPartition, OwnerReport] = field(default_factory=dict)
    waiting: dict[TopicPartition, dict[str, None]] = field(default_factory=dict)
    """The members that want a partition's position."""
    without_poll: dict[str, int | None] | None = None
    """Members that have not polled, each with the ms that the group waits for its poll (None: without limit).

    The field is None until a member polls, or until positions are requested without a member.
    """
    waited_since_ms: int | None = None
    """The time at which a position was first wanted. From then on the group waits for first polls."""
    ownership: Ownership | None = None
    waits_before: dict[str, dict[TopicPartition, PositionWait]] = field(default_factory=dict)
    """Each member's waits in earlier generations. A member continues its waits when a poll names them again.

    A member's first poll in a generation may name none of its waits. Another member may also continue a wait.
    """
    has_polled: bool = False
    """Whether a member polled in this generation or an earlier one, as far as this coordinator remembers."""

    def clear(self, now_ms: int) -> None:
        """Forget the positions: the generation is over."""
        for member_id, poller in self.pollers.items():
            waits = {tp: wait._replace(interrupted_ms=now_ms) for tp, wait in poller.awaited.items()}
            self.waits_before[member_id] = self.waits_before.get(member_id, {}) | waits
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
        """Whether a member's waits are not known: it has not polled in this generation yet, and is expected to poll."""
        return self.has_polled if self.without_poll is None else bool(self.without_poll)

    def deadlines(self) -> Iterable[int]:
        """The deadlines of the waiting polls, and the time at which the group stops waiting for a first poll."""
        for poller in self.pollers.values():
            if poller.token is not None:
                yield poller.deadline_ms
        if self.first_polls_deadline_ms is not None:
            yield self.first_polls_deadline_ms

    def renamed(self, old_member_id: str, new_member_id: str, session_timeout_ms: int) -> None:
        """Replace a static member by its successor. The successor does not get its predecessor's reports and waits.

        The group waits for the successor from the next poll on.
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
        """Replace a member's wanted partitions; returns those whose newest wanted incarnation is new."""
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
        """Forget that the owner was asked for its position, so that the owner is asked again."""
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

        A report on an earlier incarnation than the last report is ignored.
        """
        known = self.reports.get(tp)
        if known is not None and incarnation < known.incarnation:
            return False
        self.reports[tp] = OwnerReport(incarnation, position)
        return self.reports[tp] != known

    def newest_wanted(self, tp: TopicPartition) -> int:
        """The newest incarnation that a poller waits for. At least one poller must wait for the partition."""
        return max(self.pollers[member_id].wants[tp] for member_id in self.waiting[tp])
