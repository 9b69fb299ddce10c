"""A history sorted for the checks: events by kind, logs by partition and broker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from anabranch.protocol.types import TopicPartition
from tests.history.events import EXPIRED, Acked, Event, Expired, LayoutSet, Replica, Sent, StoredBatch
from tests.history.incarnations import name_incarnations, topic_of

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: the check, the place, the description, and the events that show it."""

    check: str
    where: str
    what: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}" + "".join(f"\n    {event}" for event in self.events)


@dataclass(slots=True)
class Log:
    """One replica's log. ``values[i]`` is the value at offset ``first + i``, None without a data record."""

    replica: Replica
    batches: list[StoredBatch] = field(default_factory=list)
    first: int = 0
    values: list[str | None] = field(default_factory=list)

    @property
    def start(self) -> int:
        return self.replica.log_start_offset

    def add(self, batch: StoredBatch) -> None:
        if not self.batches:
            self.first = batch.base_offset
        self.batches.append(batch)
        at = batch.base_offset - self.first
        if at < 0:
            return  # ``leader_epochs`` reports offsets that go back
        if at > len(self.values):
            self.values.extend([None] * (at - len(self.values)))
        self.values[at : at + len(batch.values)] = batch.values

    def value_at(self, offset: int) -> str | None:
        at = offset - self.first
        return self.values[at] if 0 <= at < len(self.values) else None

    def holds_any(self, start: int, end: int) -> bool:
        """Whether a data record is in ``[start, end)``."""
        start, end = max(start - self.first, 0), max(end - self.first, 0)
        return any(value is not None for value in self.values[start:end])

    def with_expired(self, expired: Iterable[StoredBatch]) -> Log:
        """Return this log, preceded by its expired batches."""
        whole = Log(self.replica)
        first = self.batches[0].base_offset if self.batches else self.replica.log_end_offset
        for batch in expired:
            if batch.base_offset < first:
                whole.add(batch)
        for batch in self.batches:
            whole.add(batch)
        return whole


@dataclass(slots=True)
class _Starts:
    """The moves of a partition's log start: the ascending numbers of the events, and the log start after each."""

    at: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, at: int, offset: int) -> None:
        self.at.append(at)
        self.offsets.append(max(offset, self.offsets[-1] if self.offsets else 0))

    def up_to(self, at: int) -> int:
        found = bisect_right(self.at, at)
        return self.offsets[found - 1] if found else 0


class History:
    """The sorted history. It is built once, and every check reads it."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events: list[Event] = []
        self.sent: dict[str, Sent] = {}
        self.order: dict[str, int] = {}
        """By value: its number in the order of sending."""
        self.sent_twice: list[Sent] = []
        self._acked_at: dict[str, int] = {}
        self.logs: dict[TopicPartition, dict[int, Log]] = {}
        self._by_kind: dict[type, list[Event]] = {}
        self._layouts: dict[TopicPartition, dict[int, LayoutSet]] = {}
        self._starts: dict[TopicPartition, _Starts] = {}
        expired: dict[TopicPartition, list[StoredBatch]] = {}
        for event in name_incarnations(events):
            if isinstance(event, StoredBatch):
                if event.broker == EXPIRED:
                    expired.setdefault(event.tp, []).append(event)
                else:
                    self.logs[event.tp][event.broker].add(event)
                continue
            if isinstance(event, Expired):
                self._starts.setdefault(event.tp, _Starts()).add(len(self.events), event.log_start_offset)
            self.events.append(event)
            self._by_kind.setdefault(type(event), []).append(event)
            if isinstance(event, Sent):
                if event.value in self.sent:
                    self.sent_twice.append(event)
                self.order[event.value] = len(self.sent)
                self.sent[event.value] = event
            elif isinstance(event, Acked):
                self._acked_at.setdefault(event.value, len(self.events))
            elif isinstance(event, Replica):
                self.logs.setdefault(event.tp, {})[event.broker] = Log(event)
            elif isinstance(event, LayoutSet):
                self._layouts.setdefault(event.tp, {}).setdefault(event.leader_epoch, event)
        for tp, batches in expired.items():
            self.logs[tp] = {broker: log.with_expired(batches) for broker, log in self.logs.get(tp, {}).items()}
        self._last_starts = {tp: max((log.start for log in self.in_sync(tp)), default=0) for tp in self.logs}
        self._epochs = {tp: sorted(found) for tp, found in self._layouts.items()}
        self._topics_with_layouts = {topic_of(tp) for tp in self._layouts}

    def precedes(self, earlier: str, later: str) -> bool:
        """Whether ``earlier`` has to be delivered before ``later``, a record of the same key in another partition.

        If their producer names no layouts, ``earlier`` must also be the first of the two that was acknowledged.
        """
        if self.order[earlier] >= self.order[later]:
            return False
        if self.sent[earlier].names_layouts:
            return True
        acked, next_acked = self._acked_at.get(earlier), self._acked_at.get(later)
        return acked is not None and next_acked is not None and acked < next_acked

    def has_layouts(self, tp: TopicPartition) -> bool:
        """Whether the history has the layouts of the topic's partitions."""
        return topic_of(tp) in self._topics_with_layouts

    @property
    def tps(self) -> list[TopicPartition]:
        """The partitions with a log or a layout, sorted."""
        return sorted({**self.logs, **self._layouts})

    def layout_epochs(self, tp: TopicPartition) -> list[int]:
        """The leader epochs in which layouts began, ascending."""
        return self._epochs.get(tp, [])

    def layout_at(self, tp: TopicPartition, leader_epoch: int) -> LayoutSet | None:
        """Return the layout by which a leader of this epoch accepts records; None when the layout is not known."""
        epochs = self._epochs.get(tp, [])
        at = bisect_right(epochs, leader_epoch)
        return self._layouts[tp][epochs[at - 1]] if at else None

    def of(self, kind: type[E]) -> list[E]:
        """All events of a kind, in the order of recording."""
        return self._by_kind.get(kind, [])  # type: ignore[return-value]

    def known_from(self, log: Log) -> int:
        """The offset from which on the history has all records of a log, including expired ones."""
        return 0 if log.replica.tp in self._starts else log.start

    def expired_below(self, tp: TopicPartition, at: int) -> int:
        """The offset below which retention or a deletion may have removed records before event number ``at``.

        Records that one replica deleted count as expired, although the leader may have them a little longer.
        """
        starts = self._starts.get(tp)
        return self._last_starts.get(tp, 0) if starts is None else starts.up_to(at)

    def has_records(self, tp: TopicPartition, start: int, end: int, at: int) -> bool:
        """Whether ``[start, end)`` had unexpired data records at event number ``at``."""
        start = max(start, self.expired_below(tp, at))
        return any(log.holds_any(start, end) for log in self.in_sync(tp))

    def in_sync(self, tp: TopicPartition) -> list[Log]:
        """The logs that must have all committed records."""
        return [log for log in self.logs.get(tp, {}).values() if log.replica.in_sync]

    def high_watermark(self, tp: TopicPartition) -> int:
        """The highest high watermark of the replicas. A follower or a checkpoint may have a lower one."""
        return max((log.replica.high_watermark for log in self.logs.get(tp, {}).values()), default=0)

    def different_logs(self, tp: TopicPartition) -> list[Log]:
        """The in-sync logs of a partition, without equal ones: a single log if the replicas agree."""
        found: list[Log] = []
        for log in self.in_sync(tp):
            if not any(log.first == other.first and log.values == other.values for other in found):
                found.append(log)
        return found
