"""A history sorted for the checks: events by kind, logs by partition and broker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from protocol.types import TopicPartition
from tests.history.events import Event, LayoutSet, Replica, Sent, StoredBatch
from tests.history.lives import tell_lives_apart, topic_of

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept: which check, where, what happened, and the events that show it."""

    check: str
    where: str
    what: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}" + "".join(f"\n    {event}" for event in self.events)


@dataclass(slots=True)
class Log:
    """One replica's log. ``values[i]`` is what is at offset ``first + i``, None where there is no data record."""

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
            return  # the order of offsets is a check of its own
        if at > len(self.values):
            self.values.extend([None] * (at - len(self.values)))
        self.values[at : at + len(batch.values)] = batch.values

    def value_at(self, offset: int) -> str | None:
        at = offset - self.first
        return self.values[at] if 0 <= at < len(self.values) else None

    def holds_any(self, start: int, end: int) -> bool:
        """Whether a data record is in ``[start, end)``, at or above the log's start."""
        start = max(start, self.start) - self.first
        return any(value is not None for value in self.values[max(start, 0) : max(end - self.first, 0)])


class History:
    """Built once per history; every check reads it."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events: list[Event] = []
        self.sent: dict[str, Sent] = {}
        self.order: dict[str, int] = {}
        """Value -> its place among all that was sent."""
        self.sent_twice: list[Sent] = []
        self.logs: dict[TopicPartition, dict[int, Log]] = {}
        self._by_kind: dict[type, list[Event]] = {}
        self._layouts: dict[TopicPartition, dict[int, LayoutSet]] = {}
        for event in tell_lives_apart(events):
            if isinstance(event, StoredBatch):
                self.logs[event.tp][event.broker].add(event)
                continue
            self.events.append(event)
            self._by_kind.setdefault(type(event), []).append(event)
            if isinstance(event, Sent):
                if event.value in self.sent:
                    self.sent_twice.append(event)
                self.order[event.value] = len(self.sent)
                self.sent[event.value] = event
            elif isinstance(event, Replica):
                self.logs.setdefault(event.tp, {})[event.broker] = Log(event)
            elif isinstance(event, LayoutSet):
                self._layouts.setdefault(event.tp, {}).setdefault(event.leader_epoch, event)
        self._epochs = {tp: sorted(found) for tp, found in self._layouts.items()}
        self._topics_with_layouts = {topic_of(tp) for tp in self._layouts}

    def has_layouts(self, tp: TopicPartition) -> bool:
        """Whether the history says by which layouts the partitions of its topic take records."""
        return topic_of(tp) in self._topics_with_layouts

    @property
    def tps(self) -> list[TopicPartition]:
        """The partitions of which there is a log or a layout, sorted."""
        return sorted({**self.logs, **self._layouts})

    def layout_epochs(self, tp: TopicPartition) -> list[int]:
        """The leader epochs with which a layout came, ascending."""
        return self._epochs.get(tp, [])

    def layout_at(self, tp: TopicPartition, leader_epoch: int) -> LayoutSet | None:
        """What a leader of this epoch takes records by; None where nobody said."""
        epochs = self._epochs.get(tp, [])
        at = bisect_right(epochs, leader_epoch)
        return self._layouts[tp][epochs[at - 1]] if at else None

    def of(self, kind: type[E]) -> list[E]:
        """All events of a kind, as recorded."""
        return self._by_kind.get(kind, [])  # type: ignore[return-value]

    def in_sync(self, tp: TopicPartition) -> list[Log]:
        """The logs that must hold all that is committed."""
        return [log for log in self.logs.get(tp, {}).values() if log.replica.in_sync]

    def high_watermark(self, tp: TopicPartition) -> int:
        """The highest a replica knew: a follower, and a checkpoint, may be behind."""
        return max((log.replica.high_watermark for log in self.logs.get(tp, {}).values()), default=0)

    def different_logs(self, tp: TopicPartition) -> list[Log]:
        """The in-sync logs of a partition that hold different records: one, where all is well."""
        found: list[Log] = []
        for log in self.in_sync(tp):
            if not any(log.first == other.first and log.values == other.values for other in found):
                found.append(log)
        return found
