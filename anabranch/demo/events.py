"""The events of the demo, their shares by producer, and their form as records."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

from anabranch.protocol.key_placement import positive_hash

DATA_FILE = "file-changes.tsv.gz"


class Event(NamedTuple):
    """One change to one file. ``sequence`` counts from 1 over all files; ``path`` is the record's key."""

    sequence: int
    unix_time: int
    path: str
    change: str

    @property
    def key(self) -> bytes:
        return self.path.encode()

    @property
    def value(self) -> bytes:
        return f"{self.sequence}\t{self.unix_time}\t{self.change}".encode()


def event_of(key: bytes, value: bytes) -> Event:
    """The event in a record. Raises ``ValueError`` when the record has none."""
    sequence, unix_time, change = value.decode().split("\t")
    return Event(int(sequence), int(unix_time), key.decode(), change)


def load_events(limit: int | None = None) -> Iterator[Event]:
    """The first ``limit`` events in the order in which they happened; all events by default."""
    with files("anabranch.demo").joinpath(DATA_FILE).open("rb") as raw, gzip.open(raw, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if limit is not None and number >= limit:
                return
            sequence, unix_time, path, change = line.rstrip("\n").split("\t")
            yield Event(int(sequence), int(unix_time), path, change)


def share_of(producer: int, producers: int, limit: int | None = None) -> Iterator[Event]:
    """The events of one of several producers. All events of a key have the same producer."""
    return (event for event in load_events(limit) if positive_hash(event.key) % producers == producer)
