"""Checks of the promise of ordered resize: a group's deliveries of one producer and key, and its callbacks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from anabranch.protocol.types import TopicPartition
from tests.history.events import (
    Assigned,
    Committed,
    Event,
    Fault,
    KeysFlushed,
    KeysLoaded,
    OffsetFetched,
    OrderedGroup,
    Polled,
    PositionAnswered,
    Positioned,
    PositionReported,
    Removed,
    Revoked,
    SessionExtended,
)
from tests.history.index import History, Violation

ProducerKey = tuple[str, str]
Holding = tuple[str, TopicPartition]
"""A member and one of its partitions."""


@dataclass(slots=True)
class _Chain:
    """The records of a producer and key in one partition, in the order of sending, with their offsets."""

    orders: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def last_before(self, value: str, history: History, start: int, delivered: Container[str]) -> str | None:
        """Return the last earlier record that was delivered, or had to be: its offset is at or above ``start``."""
        for at in reversed(range(bisect_left(self.orders, history.order[value]))):
            found = self.values[at]
            if (self.offsets[at] >= start or found in delivered) and history.precedes(found, value):
                return found
        return None


def _chains(history: History) -> dict[ProducerKey, dict[TopicPartition, _Chain]]:
    """Find the places of each key's records, both stored records and records that were delivered and then removed."""
    placed: dict[ProducerKey, dict[TopicPartition, dict[int, tuple[str, int]]]] = {}

    def put(tp: TopicPartition, value: str | None, offset: int) -> None:
        sent = history.sent.get(value) if value is not None else None
        if sent is not None and sent.idempotent:
            chain = placed.setdefault((sent.producer, sent.key), {}).setdefault(tp, {})
            chain[history.order[sent.value]] = sent.value, offset

    for event in history.of(Polled):
        put(event.tp, event.value, event.offset)
    for tp in history.logs:
        for log in history.different_logs(tp):
            for offset, value in enumerate(log.values, log.first):
                put(tp, value, offset)
    return {
        key: {
            tp: _Chain(*map(list, zip(*((order, *chain[order]) for order in sorted(chain)))))  # type: ignore[arg-type]
            for tp, chain in chains.items()
        }
        for key, chains in placed.items()
    }


class _Owners:
    """The assignments of a group's partitions in all generations."""

    def __init__(self, history: History, group: str) -> None:
        self._taken: dict[TopicPartition, list[tuple[int, str]]] = {}
        for event in history.of(Assigned):
            for tp in event.partitions if event.group == group else ():
                self._taken.setdefault(tp, []).append((event.generation, event.member))

    def taken_over(self, tp: TopicPartition, member: str, generation: int, until: int) -> bool:
        """Whether another member got the partition in a generation after ``generation``, up to ``until``.

        From then on the old member is an evicted process, and nothing is required of it.
        """
        return any(owner != member and generation < later <= until for later, owner in self._taken.get(tp, ()))


@dataclass(slots=True)
class _Delivered:
    at: int
    event: Polled


class _Promise:
    """Checks one group's deliveries and callbacks in the order of events; ``at`` is the number of an event."""

    def __init__(self, history: History, group: str, chains: dict[ProducerKey, dict[TopicPartition, _Chain]]) -> None:
        self._history = history
        self._group = group
        self._chains = chains
        self._owners = _Owners(history, group)
        positioned = [event for event in history.of(Positioned) if event.group == group]
        self._jumps = bool(positioned)
        self._chosen = {(event.member, event.tp) for event in positioned}
        """The members and partitions with a new position from a ``Positioned`` event."""
        self._delivered: dict[str, _Delivered] = {}
        self._newest: dict[ProducerKey, dict[TopicPartition, Polled]] = {}
        self._last: dict[tuple[ProducerKey, TopicPartition], Polled] = {}
        """The last delivery of a key in a partition. A delivery before it may be of a newer record."""
        self._flushed: dict[Holding, list[int]] = {}
        self._lost: dict[Holding, int] = {}
        self._crashed: dict[str, int] = {}
        self._session_ends: dict[str, float] = {}
        self._removed: dict[TopicPartition, list[tuple[int, frozenset[str]]]] = {}
        """The removals of each partition number, each with the members whose sessions had not ended at the removal."""
        self._unflushed: dict[Holding, dict[ProducerKey, Polled]] = {}
        """By member and partition: each key's last delivery since the partition's flush, loss or assignment."""
        self._loaded: dict[Holding, int] = {}
        self._shown: dict[tuple[Holding, ProducerKey, TopicPartition], tuple[int, str]] = {}
        """The chains that are checked already: the load, and the last record that the load covers."""

    def take(self, at: int, event: Event) -> Iterator[Violation]:
        """Check the next event, of this group or of the cluster."""
        if isinstance(event, Assigned | Revoked | KeysFlushed):
            for tp in event.partitions:  # the member has flushed these partitions, or no longer has them
                self._unflushed.pop((event.member, tp), None)
        match event:
            case Polled():
                yield from self._polled(at, event)
            case KeysLoaded() | Assigned():
                self._loaded.update(((event.member, tp), at) for tp in event.partitions)
            case Revoked(lost=True):
                self._lost.update(((event.member, tp), at) for tp in event.partitions)
            case KeysFlushed() | Revoked():
                for tp in event.partitions:
                    self._flushed.setdefault((event.member, tp), []).append(at)
            case SessionExtended():
                self._session_ends[event.member] = event.until_ms
            case Fault(kind="member crash"):
                self._crashed[event.what] = at
            case Removed():
                alive = [member for member, end_ms in self._session_ends.items() if end_ms > event.at_ms]
                self._removed.setdefault(event.tp, []).append((at, frozenset(alive)))

    def _need_not_flush(self, member: str, tp: TopicPartition, since: int) -> bool:
        """Whether the partition was removed after ``since``, and its owner's session had ended before the removal.

        The owner has lost the partition, or crashed. So no member could be asked to flush, and all records of the
        partition were committed.
        """
        alive = next((alive for removed, alive in self._removed.get(tp, ()) if removed > since), None)
        is_gone = max(self._lost.get((member, tp), -1), self._crashed.get(member, -1)) > since
        return is_gone and alive is not None and member not in alive

    def _polled(self, at: int, event: Polled) -> Iterator[Violation]:
        sent = self._history.sent.get(event.value)
        if sent is None or not sent.idempotent:
            return
        key, order = (sent.producer, sent.key), self._history.order[event.value]
        if event.value in self._delivered and (event.member, event.tp) in self._chosen:
            self._again(event.tp, key)
        else:
            yield from self._behind_newer(event, key)
        for tp, chain in self._chains.get(key, {}).items():
            if tp == event.tp:
                continue
            before = chain.last_before(event.value, self._history, self._history.expired_below(tp, at), self._delivered)
            if before is not None:
                yield from self._after(at, event, key, tp, before)
                yield from self._own(event, key, tp, order)
        if event.state is not None:
            yield from self._state(at, event, key, order)
        newest = self._newest.setdefault(key, {})
        if event.tp not in newest or self._history.order[newest[event.tp].value] < order:
            newest[event.tp] = event
        self._last[key, event.tp] = event
        self._delivered[event.value] = _Delivered(at, event)
        self._unflushed.setdefault((event.member, event.tp), {})[key] = event

    def _again(self, tp: TopicPartition, key: ProducerKey) -> None:
        """Note that a member went back in a partition: check later deliveries of the key in other partitions again."""
        self._shown = {shown: how for shown, how in self._shown.items() if shown[1:] != (key, tp)}

    def _violation(self, what: str, *events: Polled) -> Violation:
        where = f"{events[-1].tp} in {self._group}"
        return Violation("promise", where, what, (*(self._history.sent[event.value] for event in events), *events))

    def _behind_newer(self, event: Polled, key: ProducerKey) -> Iterator[Violation]:
        for tp, newer in self._newest.get(key, {}).items():
            if tp == event.tp or not self._history.precedes(event.value, newer.value):
                continue
            if not self._owners.taken_over(event.tp, event.member, event.generation, newer.generation):
                yield self._violation(
                    f"{event.value} is delivered after {newer.value}, which was sent later", newer, event
                )

    def _after(self, at: int, event: Polled, key: ProducerKey, tp: TopicPartition, before: str) -> Iterator[Violation]:
        holding = event.member, event.tp
        loaded = self._loaded.get(holding, -1)
        if self._shown.get((holding, key, tp)) == (loaded, before):
            return
        earlier = self._delivered.get(before)
        if earlier is None:
            if not self._jumps:
                yield self._violation(
                    f"{before} in {tp} was sent before {event.value}, and was not delivered before it", event
                )
            return
        owner = earlier.event.member
        flushes = self._flushed.get((owner, tp), [])
        first = bisect_right(flushes, earlier.at)
        flushed = flushes[first] if first < len(flushes) else None
        if self._owners.taken_over(tp, owner, earlier.event.generation, event.generation):
            pass
        elif flushed is None:
            if not self._need_not_flush(owner, tp, earlier.at):
                yield self._violation(f"{owner} did not flush its changes for {before}", earlier.event, event)
        elif loaded < flushed:
            what = f"{event.member} loaded before {owner} had flushed its changes for {before}"
            yield self._violation(what, earlier.event, event)
        self._shown[holding, key, tp] = loaded, before

    def _own(self, event: Polled, key: ProducerKey, tp: TopicPartition, order: int) -> Iterator[Violation]:
        """Check that a member has flushed its deliveries of the key in ``tp``, even if other members got them too."""
        own = self._unflushed.get((event.member, tp), {}).get(key)
        if own is None or own.generation != event.generation or self._history.order[own.value] > order:
            return
        if self._delivered[own.value].event.member != event.member:
            yield self._violation(f"{event.member} did not flush its own changes for {own.value}", own, event)

    def _state(self, at: int, event: Polled, key: ProducerKey, order: int) -> Iterator[Violation]:
        """Check that the state has the newest earlier record that any member delivered in another partition.

        An expired record cannot be delivered again. So a member that took over the partition may have read only to an
        earlier record, or may lack the unflushed state of the previous owner.
        """
        has = self._history.order.get(event.state or "", -1)
        for tp, newest in self._newest.get(key, {}).items():
            if newest.offset < self._history.expired_below(tp, at):
                newest = self._last[key, tp]
                if self._owners.taken_over(tp, newest.member, newest.generation, event.generation):
                    continue
            found = self._history.order[newest.value]
            if tp != event.tp and has < found < order and self._history.precedes(newest.value, event.value):
                what = f"the state of {event.member} has {event.state or 'nothing'}, not {newest.value}"
                yield self._violation(what, newest, event)


def promise(history: History) -> Iterator[Violation]:
    """A record comes after all earlier records of its producer and key in other partitions, a flush and a load.

    A record A is produced before B. Then the order is: A is delivered, ``on_partition_key_maybe_revoked`` of A's owner
    returns, ``on_partition_key_assigned`` of B's owner returns, B is delivered. Then A is delivered again only to a
    member that itself went back. Later deliveries of the key in other partitions must follow that delivery of A in the
    same way.

    A rebalance's callbacks also count as flush and load, because they flush and load whole partitions.

    In two cases a member need not flush a partition. In the first, another member got the partition in a later
    generation: uncommitted records are delivered again. In the second, the member lost the partition or crashed, and
    its session had ended before the partition was removed. A member that does not know of its loss still flushes its
    own deliveries before it continues with the key in another partition.

    A record A that expired before B's delivery may be missing. But a delivered A must be flushed.

    A producer that names no layouts may write A after B, by an old count of partitions. So its A has to come first only
    if it was also acknowledged first.
    """
    groups = {event.group: None for event in history.of(OrderedGroup)}
    if not groups:
        return
    chains = _chains(history)
    states = {group: _Promise(history, group, chains) for group in groups}
    for at, event in enumerate(history.events):
        group = getattr(event, "group", None)
        for name, state in states.items():
            if group is None or group == name:
                yield from state.take(at, event)


def callbacks(history: History) -> Iterator[Violation]:
    """Flush and load are called only for partitions that the member has."""
    held: dict[tuple[str, str], set[TopicPartition]] = {}
    for event in history.events:
        if isinstance(event, Assigned):
            held.setdefault((event.group, event.member), set()).update(event.partitions)
        elif isinstance(event, Revoked):
            held.setdefault((event.group, event.member), set()).difference_update(event.partitions)
        elif isinstance(event, KeysLoaded | KeysFlushed):
            mine = held.get((event.group, event.member), set())
            for tp in event.partitions:
                if tp not in mine:
                    what = f"a callback for a partition that {event.member} does not have"
                    yield Violation("callbacks", f"{tp} in {event.group}", what, (event,))


@dataclass(slots=True)
class _Read:
    """A member's deliveries from a partition since its assignment."""

    offsets: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    flushed: int = -1

    def last_below(self, position: int) -> int:
        """The event number of the last delivery below a position; -1 when there is none."""
        found = bisect_left(self.offsets, position)
        return self.at[found - 1] if found else -1


def positions(history: History) -> Iterator[Violation]:
    """All records below a reported position are delivered, flushed and committed.

    A position in a response was reported or committed before.
    """
    read: dict[tuple[str, str, TopicPartition], _Read] = {}
    committed: dict[tuple[str, TopicPartition], int] = {}
    allowed: dict[tuple[str, TopicPartition], int] = {}
    begun: dict[tuple[str, TopicPartition], int] = {}
    for at, event in enumerate(history.events):
        if isinstance(event, Assigned | Revoked | KeysFlushed):
            for tp in event.partitions:
                holding = event.group, event.member, tp
                if isinstance(event, KeysFlushed):
                    read.setdefault(holding, _Read()).flushed = at
                else:
                    read[holding] = _Read()
        elif isinstance(event, Polled):
            mine = read.setdefault((event.group, event.member, event.tp), _Read())
            while mine.offsets and mine.offsets[-1] >= event.offset:  # its position was moved back
                mine.offsets.pop()
                mine.at.pop()
            mine.offsets.append(event.offset)
            mine.at.append(at)
        elif isinstance(event, Committed) and event.outcome != "refused":
            place = event.group, event.tp
            allowed[place] = max(allowed.get(place, 0), event.offset)
            if event.outcome == "ok":
                committed[place] = max(committed.get(place, 0), event.offset)
        elif isinstance(event, OffsetFetched):
            # A commit whose response was lost is visible only here.
            begun[event.group, event.tp] = max(begun.get((event.group, event.tp), 0), event.offset)
        elif isinstance(event, PositionReported):
            place = event.group, event.tp
            allowed[place] = max(allowed.get(place, 0), event.position)
            mine = read.get((event.group, event.member, event.tp), _Read())
            yield from _report(history, event, at, mine, committed.get(place, 0), begun.get(place, 0))
        elif isinstance(event, PositionAnswered):
            most = allowed.get((event.group, event.tp), 0)
            if event.position > most and history.has_records(event.tp, most, event.position, at):
                what = (
                    f"the response has the position {event.position}; no member reported or committed more than {most}"
                )
                yield Violation("positions", f"{event.tp} in {event.group}", what, (event,))


def _report(
    history: History, event: PositionReported, at: int, mine: _Read, committed: int, begun: int
) -> Iterator[Violation]:
    where = f"{event.tp} in {event.group}"
    last = mine.last_below(event.position)
    if last >= 0 and mine.flushed < last:
        yield Violation(
            "positions",
            where,
            f"position {event.position} is reported, and the records below it are not flushed",
            (event,),
        )
    missing = last >= 0 and event.commits and history.has_records(event.tp, committed, event.position, at)
    if missing:
        yield Violation(
            "positions",
            where,
            f"position {event.position} is reported, and the highest commit is {committed}",
            (event,),
        )
    reached = mine.offsets[-1] + 1 if mine.offsets else max(committed, begun)
    if event.position > reached and history.has_records(event.tp, reached, event.position, at):
        yield Violation(
            "positions",
            where,
            f"position {event.position} is reported, and the member has read up to {reached}",
            (event,),
        )
