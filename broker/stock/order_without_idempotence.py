"""Keeps the order when a producer without idempotence repeats batches after retriable errors. Pure.

Such a producer gives its batches no numbers, and may have several requests in flight. If a later request were accepted,
the records of the repeated earlier requests would come after its records. Some libraries repeat requests in the reverse
order; some build other batches of the same records. So this module remembers the refused records in the order in which
they first arrived. Only a batch that begins with the next such record is accepted. All other batches are refused with a
retriable error, until every record has arrived or a time limit is over.

If a batch is repeated before its turn, it is not refused but parked for a moment. Java's producer and kafka-python put
a refused batch before all other batches of its partition, and send no other batch of the partition before the refused
batch is repeated. So if several batches were in flight, the last batch arrives first. If this batch were refused again,
the producer would send only this batch for seconds. A batch is parked for at most
``ordered.delivery.stock.producers.max.park.ms``, because the limit of requests in flight may keep the producer from
sending the batches before the parked batch.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from anabranch.protocol.records import Record, RecordBatch

GIVE_UP_S = 5.0
"""If a producer has not repeated the next record for this long, it will not repeat the record any more."""
MAX_RECORDS = 100_000
"""If so many records are remembered, further batches of a producer are refused but not awaited."""
MAX_BATCH_RECORDS = 20_000
"""A batch of more records is not awaited if it arrived before this broker led: to read its records takes too long."""

Mark: TypeAlias = int
"""A hash that stands for a record."""


def can_be_awaited(batch: RecordBatch) -> bool:
    """Whether a batch that arrived before this broker led its partition may be awaited."""
    return not batch.has_producer_id and batch.count <= MAX_BATCH_RECORDS


class BatchTurn(enum.Enum):
    """The decision on a batch."""

    NOW = "it is next"
    LATER = "others come before it: it is to be repeated"
    EARLY = "it is repeated, and others come before it: they may be on their way"
    NEVER = "later records than its own were accepted already, or its records are refused permanently"


class Parked(Protocol):
    """A batch that is parked."""

    def take_turn(self) -> None:
        """Append the batch, because it is its turn."""


class RetryOrder:
    """The records awaited on one connection for one partition."""

    __slots__ = ("_awaited", "_lost", "_marks", "_moved_at", "_parked")

    def __init__(self, now: float) -> None:
        self._parked: dict[Mark, Parked] = {}
        """The parked batches, by the first record of each."""
        self._awaited: deque[Mark] = deque()
        self._marks: set[Mark] = set()
        """The records in ``_awaited``."""
        self._lost: set[Mark] = set()
        """The records that are not accepted any more, in any batch."""
        self._moved_at = now

    @property
    def is_empty(self) -> bool:
        return not self._awaited

    @property
    def is_over(self) -> bool:
        """Whether nothing has to be remembered any more."""
        return not self._awaited and not self._lost

    def refused(self, records: Sequence[Record]) -> None:
        """Await the records of a batch that is refused with a retriable error."""
        if len(self._awaited) >= MAX_RECORDS:
            return
        for record in records:
            mark = _mark(record)
            if mark not in self._marks:
                self._marks.add(mark)
                self._awaited.append(mark)

    def refused_before_leading(self, records: Sequence[Record]) -> None:
        """Like ``refused``, before this broker leads: the time limit begins with the first batch once it leads."""
        self._moved_at = math.inf
        self.refused(records)

    def refused_for_good(self, records: Sequence[Record]) -> None:
        """Note a batch that is refused with a retriable error but must not be written when it is repeated."""
        self._lost.update(map(_mark, records))
        self.forget(records)

    def forget(self, records: Sequence[Record]) -> None:
        """Stop awaiting the records of a batch that is refused with a final error."""
        marks = set(map(_mark, records))
        if not self._marks.isdisjoint(marks):
            self._marks -= marks
            self._awaited = deque(mark for mark in self._awaited if mark not in marks)

    def stop_waiting(self) -> None:
        """Await no record any more, because a batch was refused for its content, and its records may be awaited."""
        self._marks.clear()
        self._awaited.clear()

    def turn(self, records: Sequence[Record], now: float) -> BatchTurn:
        """Decide whether a batch is written now. A batch that must be repeated is awaited until it is written."""
        first = _mark(records[0])
        self._moved_at = min(self._moved_at, now)
        if self._lost and not self._lost.isdisjoint(map(_mark, records)):
            return BatchTurn.NEVER
        if now - self._moved_at > GIVE_UP_S:
            self._give_up_until(first)
        if self._awaited and first != self._awaited[0]:
            is_repeated = first in self._marks
            self.refused(records)
            return BatchTurn.EARLY if is_repeated else BatchTurn.LATER
        self._moved_at = now
        for record in records:
            mark = _mark(record)
            if self._awaited and self._awaited[0] == mark:
                self._awaited.popleft()
                self._marks.discard(mark)
        return BatchTurn.NOW

    def park(self, records: Sequence[Record], parked: Parked) -> None:
        """Park a batch that arrived before its turn."""
        self._parked[_mark(records[0])] = parked

    def pop_next(self) -> Parked | None:
        """Return the parked batch whose turn it is, if there is one, which is not parked any more."""
        return self._parked.pop(self._awaited[0], None) if self._awaited and self._parked else None

    def let_go(self, parked: Parked) -> None:
        """Forget a parked batch: its wait is over."""
        self._parked = {mark: other for mark, other in self._parked.items() if other is not parked}

    def _give_up_until(self, first: Mark) -> None:
        """Stop awaiting the records before ``first``, and refuse them from now on: ``first`` is written now."""
        while self._awaited and self._awaited[0] != first:
            mark = self._awaited.popleft()
            self._marks.discard(mark)
            self._lost.add(mark)


def _mark(record: Record) -> int:
    return hash((record.timestamp, record.key, record.value))
