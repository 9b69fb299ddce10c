"""Whether what the consumers saw is what the producers wrote. Pure: lists in, violations out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.demo.events import Event

MAX_VIOLATIONS = 20


class Acknowledged(NamedTuple):
    """A record a broker acknowledged."""

    sequence: int
    partition: int
    offset: int


class Observed(NamedTuple):
    """A record a consumer processed, at ``time_ns`` of the machine's monotonic clock."""

    time_ns: int
    partition: int
    offset: int
    event: Event


@dataclass(slots=True)
class Verdict:
    """Counts over the run and the first violations, in the order they were found."""

    events: int = 0
    keys: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    altered: int = 0
    misplaced: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.events > 0 and not (
            self.lost or self.duplicated or self.out_of_order or self.altered or self.misplaced
        )

    def _note(self, text: str) -> None:
        if len(self.examples) < MAX_VIOLATIONS:
            self.examples.append(text)


def verify(written: Iterable[Event], acknowledged: Iterable[Acknowledged], observed: Iterable[Observed]) -> Verdict:
    """Every written event acknowledged and observed once, unchanged, where it was acknowledged, in order per key."""
    by_sequence = {event.sequence: event for event in written}
    verdict = Verdict(events=len(by_sequence), keys=len({event.path for event in by_sequence.values()}))
    places = {record.sequence: (record.partition, record.offset) for record in acknowledged}
    seen: dict[int, Observed] = {}
    last_of_key: dict[str, Observed] = {}
    for record in sorted(observed):
        event = record.event
        where = f"partition {record.partition} offset {record.offset}"
        if event.sequence in seen:
            verdict.duplicated += 1
            first = seen[event.sequence]
            verdict._note(
                f"twice: event {event.sequence} at {where} and partition {first.partition} offset {first.offset}"
            )
            continue
        seen[event.sequence] = record
        if by_sequence.get(event.sequence) != event:
            verdict.altered += 1
            verdict._note(f"altered: {where} holds {event}, written was {by_sequence.get(event.sequence)}")
        if places.get(event.sequence) != (record.partition, record.offset):
            verdict.misplaced += 1
            verdict._note(f"misplaced: event {event.sequence} at {where}, acknowledged at {places.get(event.sequence)}")
        before = last_of_key.get(event.path)
        if before is not None and before.event.sequence > event.sequence:
            verdict.out_of_order += 1
            verdict._note(
                f"out of order: key {event.path!r}: event {event.sequence} ({where}) came after event "
                f"{before.event.sequence} (partition {before.partition} offset {before.offset})"
            )
        last_of_key[event.path] = record
    for sequence, event in by_sequence.items():
        if sequence not in seen:
            verdict.lost += 1
            state = f"acknowledged at {places[sequence]}" if sequence in places else "never acknowledged"
            verdict._note(f"lost: event {sequence} of key {event.path!r}, {state}")
    return verdict
