"""Checks the consumed records against the produced ones. Pure: lists in, violations out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.demo.events import Event
from anabranch.demo.states import FileState, fold

MAX_VIOLATIONS = 20


class Acknowledged(NamedTuple):
    """A record that a broker acknowledged."""

    sequence: int
    partition: int
    offset: int


class ObservedRecord(NamedTuple):
    """A record that a consumer processed, at ``time_ns`` of the machine's monotonic clock.

    ``changes_known`` is the number of changes in the consumer's state before the record, or ``states.SKIPPED`` when the
    state was newer already. ``appended_ns`` is the time of the append, on the same clock, to the millisecond.
    """

    time_ns: int
    partition: int
    offset: int
    event: Event
    changes_known: int
    appended_ns: int


@dataclass(slots=True)
class RunVerdict:
    """Counts over the run, and the first violations in the order in which they were found."""

    events: int = 0
    keys: int = 0
    lost: int = 0
    out_of_order: int = 0
    """Records delivered after a newer record of their key."""
    wrong_states: int = 0
    """Records applied to a state that lacks earlier changes, or has too many: it was flushed or loaded too late."""
    wrong_at_the_end: int = 0
    """Keys whose last saved state does not have exactly all their changes."""
    altered: int = 0
    misplaced: int = 0
    """Records that were read at another place than the acknowledgement named."""
    delivered_again: int = 0
    """Repeated deliveries, which are no violation: delivery is at least once."""
    examples: list[str] = field(default_factory=list)

    @property
    def violations(self) -> int:
        broken = self.lost + self.out_of_order + self.wrong_states + self.wrong_at_the_end
        return broken + self.altered + self.misplaced

    @property
    def passed(self) -> bool:
        return self.events > 0 and self.violations == 0

    def note(self, text: str) -> None:
        if len(self.examples) < MAX_VIOLATIONS:
            self.examples.append(text)


def first_deliveries(observed: Iterable[ObservedRecord]) -> list[ObservedRecord]:
    """The first delivery of each event, in the order of time."""
    seen: dict[int, ObservedRecord] = {}
    for record in sorted(observed):
        seen.setdefault(record.event.sequence, record)
    return list(seen.values())


def disordered(observed: Iterable[ObservedRecord]) -> list[tuple[ObservedRecord, ObservedRecord]]:
    """Pairs of a record and a newer record with the same key that was delivered first."""
    found = []
    newest_of_key: dict[str, ObservedRecord] = {}
    for record in first_deliveries(observed):
        newest = newest_of_key.get(record.event.path)
        if newest is not None and newest.event.sequence > record.event.sequence:
            found.append((record, newest))
        else:
            newest_of_key[record.event.path] = record
    return found


def verify(
    written: Iterable[Event],
    acknowledged: Iterable[Acknowledged],
    observed: Iterable[ObservedRecord],
    saved: Mapping[str, FileState],
) -> RunVerdict:
    """Check that every event is delivered unchanged, from its acknowledged place, in order, and to the right state."""
    by_sequence = {event.sequence: event for event in written}
    right = fold(by_sequence.values())
    verdict = RunVerdict(events=len(by_sequence), keys=len(right))
    places = {record.sequence: (record.partition, record.offset) for record in acknowledged}
    everything = sorted(observed)
    first = first_deliveries(everything)
    verdict.delivered_again = len(everything) - len(first)
    _check_records(verdict, by_sequence, places, first)
    for late, newer in disordered(first):
        verdict.out_of_order += 1
        verdict.note(
            f"out of order: key {late.event.path!r}: event {late.event.sequence} ({_place(late)}) was delivered after "
            f"event {newer.event.sequence} ({_place(newer)})"
        )
    delivered = {record.event.sequence for record in first}
    for sequence, event in by_sequence.items():
        if sequence not in delivered:
            verdict.lost += 1
            state = f"acknowledged at {places[sequence]}" if sequence in places else "never acknowledged"
            verdict.note(f"lost: event {sequence} of key {event.path!r}, {state}")
    for path, last in right.items():
        if saved.get(path) != last:
            verdict.wrong_at_the_end += 1
            verdict.note(f"wrong at the end: key {path!r} was saved as {saved.get(path)} instead of {last}")
    return verdict


def _check_records(
    verdict: RunVerdict,
    written: Mapping[int, Event],
    places: Mapping[int, tuple[int, int]],
    first: list[ObservedRecord],
) -> None:
    changes_before: dict[int, int] = {}
    count_of_key: dict[str, int] = {}
    for event in written.values():
        changes_before[event.sequence] = count_of_key.get(event.path, 0)
        count_of_key[event.path] = changes_before[event.sequence] + 1
    for record in first:
        event = record.event
        where = _place(record)
        if written.get(event.sequence) != event:
            verdict.altered += 1
            verdict.note(f"altered: {where} has {event} instead of {written.get(event.sequence)}")
        if places.get(event.sequence) != (record.partition, record.offset):
            verdict.misplaced += 1
            verdict.note(f"misplaced: event {event.sequence} at {where}, acknowledged at {places.get(event.sequence)}")
        if record.changes_known != changes_before.get(event.sequence):
            verdict.wrong_states += 1
            verdict.note(
                f"wrong state: key {event.path!r}: event {event.sequence} ({where}) found a state with "
                f"{record.changes_known} changes instead of {changes_before.get(event.sequence)}"
            )


def _place(record: ObservedRecord) -> str:
    return f"partition {record.partition} offset {record.offset}"
