"""Times hand-overs of keys: from the save of the source's last record to the delivery of the target's first. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.demo.verify import ObservedRecord, first_deliveries


class Flush(NamedTuple):
    """A completed flush callback. Times are of the machine's monotonic clock."""

    begun_ns: int
    ended_ns: int
    partitions: tuple[int, ...]


class Resize(NamedTuple):
    """A resize: the time it began, and its moves of keys as (source, target) partitions."""

    began_ns: int
    moves: frozenset[tuple[int, int]]


class KeyHandOver(NamedTuple):
    """One key's move between two partitions by the resize number ``step``; -1 if several resizes made the move.

    The move could be complete from ``ready_ns`` on: the source's last record was delivered, the next flush callback had
    returned, and the key's first record was in the target. ``waited`` is True if the target had this first record
    before it delivered any key of the same move.
    """

    step: int
    key: str
    source: int
    target: int
    ready_ns: int
    delivered_ns: int
    waited: bool

    @property
    def took_ns(self) -> int:
        return self.delivered_ns - self.ready_ns


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of the durations of the ``count`` hand-overs that waited, in milliseconds; None without any."""

    count: int
    p50_ms: float | None
    p99_ms: float | None


def hand_overs(
    observed: Iterable[ObservedRecord], flushes: Iterable[Flush], resizes: Sequence[Resize]
) -> list[KeyHandOver]:
    """The hand-overs of all keys.

    Keys with the same source, target and resize are handed over together: the source is ready after the last record of
    all these keys.
    """
    moved: dict[tuple[int, int, int], list[tuple[ObservedRecord, ObservedRecord]]] = {}
    last_of_key: dict[str, ObservedRecord] = {}
    for record in first_deliveries(observed):
        before = last_of_key.get(record.event.path)
        last_of_key[record.event.path] = record
        if before is not None and before.partition != record.partition:
            way = (before.partition, record.partition)
            moved.setdefault((_resize_of(resizes, way, record.time_ns), *way), []).append((before, record))
    of_partition = _by_partition(flushes)
    found = []
    for (step, source, target), pairs in moved.items():
        opened = min(record.time_ns for _, record in pairs)
        last = max((before.time_ns for before, _ in pairs if before.time_ns < opened), default=opened)
        flushed = _flushed_after(of_partition.get(source, []), last)
        saved = flushed if flushed is not None and flushed <= opened else last
        for _, record in pairs:
            ready, waited = max(saved, record.appended_ns), record.appended_ns <= opened
            found.append(KeyHandOver(step, record.event.path, source, target, ready, record.time_ns, waited))
    return found


def _resize_of(resizes: Sequence[Resize], way: tuple[int, int], time_ns: int) -> int:
    """The number of the last resize before ``time_ns`` with this move; -1 when there is none."""
    for number in range(len(resizes) - 1, -1, -1):
        if resizes[number].began_ns <= time_ns and way in resizes[number].moves:
            return number
    return -1


def _by_partition(flushes: Iterable[Flush]) -> dict[int, list[tuple[int, int]]]:
    """The flushes of each partition as ascending (begun, ended) times."""
    found: dict[int, list[tuple[int, int]]] = {}
    for flush in sorted(flushes):
        for partition in flush.partitions:
            found.setdefault(partition, []).append((flush.begun_ns, flush.ended_ns))
    return found


def _flushed_after(flushes: Sequence[tuple[int, int]], time_ns: int) -> int | None:
    """The end of the first flush that began at ``time_ns`` or later; None when there is none."""
    index = bisect.bisect_left(flushes, (time_ns, 0))
    return flushes[index][1] if index < len(flushes) else None


def percentiles(moves: Iterable[KeyHandOver]) -> Percentiles:
    took = sorted(move.took_ns / 1e6 for move in moves if move.waited)
    if not took:
        return Percentiles(0, None, None)
    return Percentiles(len(took), _at(took, 0.50), _at(took, 0.99))


def _at(ascending: Sequence[float], share: float) -> float:
    return round(ascending[min(len(ascending) - 1, int(share * len(ascending)))], 3)
