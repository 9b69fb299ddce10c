"""Checks of the reads and commits of groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from anabranch.protocol.types import TopicPartition
from tests.history.events import (
    Assigned,
    Committed,
    Drained,
    Event,
    OffsetFetched,
    Polled,
    Positioned,
    Removed,
    Revoked,
)
from tests.history.index import History, Violation

GroupPartition = tuple[str, TopicPartition]


def unseen(history: History) -> Iterator[Violation]:
    """A group that was drained after the faults got every unexpired record at least once."""
    read: dict[GroupPartition, set[int]] = {}
    for event in history.of(Polled):
        read.setdefault((event.group, event.tp), set()).add(event.offset)
    for drained in history.of(Drained):
        seen = read.get((drained.group, drained.tp), set())
        start = history.expired_below(drained.tp, len(history.events))
        for log in history.different_logs(drained.tp):
            missing = [
                offset
                for offset, value in enumerate(log.values, log.first)
                if value is not None and start <= offset < drained.end_offset and offset not in seen
            ]
            if missing:
                where = f"{drained.tp} in {drained.group}"
                what = f"{len(missing)} records were never delivered, from {missing[0]} to {missing[-1]}"
                yield Violation("unseen", where, what, (drained, log.replica))


@dataclass(slots=True)
class _Commits:
    """The commits of a group for a partition, in the order of their responses."""

    last: Committed | None = None
    unknown: list[Committed] = field(default_factory=list)

    def add(self, event: Committed) -> None:
        if event.outcome == "unknown":
            self.unknown.append(event)
        elif event.outcome == "ok":
            self.last = event
            # A delayed request of an older generation will be refused.
            self.unknown = [other for other in self.unknown if other.generation >= event.generation]

    def floor(self) -> int:
        """Return a new owner's lowest start: the last acknowledged commit, or a lower commit without a response."""
        committed = [self.last.offset] if self.last is not None else [0]
        return min(committed + [event.offset for event in self.unknown])


@dataclass(slots=True)
class _Cursor:
    """A member's position in a partition: before its first poll the lowest allowed start, then the next offset."""

    since: Event
    next_offset: int = -1
    floor: int = 0
    last: Event | None = None


def polls(history: History) -> Iterator[Violation]:
    """Within an assignment records come in order and without gaps; a new owner continues at a committed offset.

    A new owner may repeat records above the last commit that was acknowledged before its assignment. It does not start
    above all commits. A group without a commit starts at the log's start, or at the offset of a ``Positioned`` event.
    A record may be missing if it had expired when a later record was polled.
    """
    commits: dict[GroupPartition, _Commits] = {}
    cursors: dict[tuple[str, str], dict[TopicPartition, _Cursor]] = {}
    ceilings = _ceilings(history)
    for at, event in enumerate(history.events):
        if isinstance(event, Committed):
            commits.setdefault((event.group, event.tp), _Commits()).add(event)
        elif isinstance(event, Assigned):
            mine = cursors.setdefault((event.group, event.member), {})
            for tp in event.partitions:
                mine[tp] = _Cursor(event, floor=commits.get((event.group, tp), _Commits()).floor())
        elif isinstance(event, Revoked):
            for tp in event.partitions:
                cursors.get((event.group, event.member), {}).pop(tp, None)
        elif isinstance(event, Positioned):
            cursors.setdefault((event.group, event.member), {})[event.tp] = _Cursor(event, next_offset=event.offset)
        elif isinstance(event, Polled):
            cursor = cursors.get((event.group, event.member), {}).get(event.tp)
            if cursor is None:
                yield Violation(
                    "polls",
                    f"{event.tp} in {event.group}",
                    f"offset {event.offset} is delivered to {event.member}, which does not have the partition",
                    (event,),
                )
                continue
            if cursor.next_offset < 0:
                yield from _first_poll(history, cursor, event, at, ceilings)
            else:
                yield from _next_poll(history, cursor, event, at)
            cursor.next_offset = event.offset + 1
            cursor.last = event


def _ceilings(history: History) -> dict[GroupPartition, tuple[list[float], list[int]]]:
    """For each group and partition: the times of commit requests, and the highest offset requested up to each time."""
    asked: dict[GroupPartition, list[Committed]] = {}
    for event in history.of(Committed):
        if event.outcome != "refused":
            asked.setdefault((event.group, event.tp), []).append(event)
    result = {}
    for place, events in asked.items():
        events.sort(key=lambda event: event.asked_ms)
        result[place] = [e.asked_ms for e in events], list(accumulate((e.offset for e in events), max))
    return result


def _first_poll(
    history: History,
    cursor: _Cursor,
    event: Polled,
    at: int,
    ceilings: dict[GroupPartition, tuple[list[float], list[int]]],
) -> Iterator[Violation]:
    where = f"{event.tp} in {event.group}"
    times, offsets = ceilings.get((event.group, event.tp), ([], []))
    asked = bisect_right(times, event.at_ms)
    ceiling = offsets[asked - 1] if asked else 0
    if event.offset < cursor.floor:
        what = f"delivered again from {event.offset}, though {cursor.floor} was committed"
        yield Violation("polls", where, what, (cursor.since, event))
    if event.offset > ceiling and history.has_records(event.tp, ceiling, event.offset, at):
        what = f"starts at {event.offset}; no commit is above {ceiling}"
        yield Violation("polls", where, what, (cursor.since, event))


def _next_poll(history: History, cursor: _Cursor, event: Polled, at: int) -> Iterator[Violation]:
    where = f"{event.tp} in {event.group}"
    shown = (cursor.last or cursor.since, event)
    if event.offset < cursor.next_offset:
        yield Violation("polls", where, f"goes back from {cursor.next_offset} to {event.offset}", shown)
    elif event.offset > cursor.next_offset and history.has_records(event.tp, cursor.next_offset, event.offset, at):
        yield Violation("polls", where, f"skips from {cursor.next_offset} to {event.offset}", shown)


def commits(history: History) -> Iterator[Violation]:
    """Within a generation a committed offset does not go back, and a fetch returns the last committed offset.

    The committed offset may go back when a member itself went back (``Positioned``).

    Two requests are compared only when one got its response before the other began: overlapping requests have no order.
    A commit whose response was lost may take effect late, so a fetch may return that commit too.
    """
    answered = sorted(
        (event for event in history.of(Committed) if event.outcome != "refused"), key=lambda event: event.at_ms
    )
    asked = sorted(
        [
            *(event for event in answered if event.outcome == "ok"),
            *(event for event in history.of(OffsetFetched) if event.current),
        ],
        key=lambda event: event.asked_ms,
    )
    gone = {event.tp: event.at_ms for event in history.of(Removed)}
    sought = list(history.of(Positioned))
    last: dict[GroupPartition, Committed] = {}
    unknown: dict[GroupPartition, list[Committed]] = {}
    done = 0
    for event in asked:
        while done < len(answered) and answered[done].at_ms <= event.asked_ms and answered[done] is not event:
            past, done = answered[done], done + 1
            place = past.group, past.tp
            if past.outcome == "unknown":
                unknown.setdefault(place, []).append(past)
                continue
            unknown[place] = [other for other in unknown.get(place, []) if other.generation >= past.generation]
            if place not in last or past.generation > last[place].generation or past.offset > last[place].offset:
                last[place] = past
        before = last.get((event.group, event.tp))
        if before is None or event.offset >= before.offset or _went_back(sought, before, event):
            continue
        if isinstance(event, Committed):
            if event.generation == before.generation:
                what = f"the committed offset goes back from {before.offset} to {event.offset}"
                yield Violation("commits", f"{event.tp} in {event.group}", what, (before, event))
        elif event.at_ms >= gone.get(event.tp, event.at_ms + 1):
            continue  # a partition's removal deletes its commits
        elif event.offset not in {other.offset for other in unknown.get((event.group, event.tp), [])}:
            what = f"{before.offset} was committed, and {event.offset} is fetched"
            yield Violation("commits", f"{event.tp} in {event.group}", what, (before, event))


def _went_back(sought: Iterable[Positioned], before: Committed, event: Committed | OffsetFetched) -> bool:
    """Whether a member's position was set below the commit ``before``, between that commit and ``event``."""
    return any(
        (one.group, one.tp) == (event.group, event.tp)
        and one.offset < before.offset
        and before.asked_ms <= one.at_ms <= event.at_ms
        for one in sought
    )


def owners(history: History) -> Iterator[Violation]:
    """A partition has one owner in a group's generation."""
    owner: dict[tuple[str, int, TopicPartition], Assigned] = {}
    for event in history.of(Assigned):
        if event.generation < 0:
            continue
        for tp in event.partitions:
            before = owner.setdefault((event.group, event.generation, tp), event)
            if before.member != event.member:
                what = f"{before.member} and {event.member} own it in generation {event.generation}"
                yield Violation("owners", f"{tp} in {event.group}", what, (before, event))
