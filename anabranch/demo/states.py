"""The state of every key: the demo's consumers keep states in memory, and share them through a database.

The state of a file is the number of its changes, the last change, and a checksum over all changes in order. A change
that is lost, repeated or out of order is therefore visible for ever. The owner of a partition keeps the states of its
keys in memory. It saves the states regularly, and once more before the keys may go to another partition or member.
Because of the regular saves, the last save is small. A new owner reads the saved states.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from anabranch.demo.events import Event

BUSY_TIMEOUT_S = 30.0
SKIPPED = -1


class FileState(NamedTuple):
    """The state of a file. ``digest`` is the CRC-32 over the values of all changes, in the order of application."""

    changes: int = 0
    last_sequence: int = 0
    digest: int = 0

    def after(self, event: Event) -> FileState:
        return FileState(self.changes + 1, event.sequence, zlib.crc32(event.value, self.digest))


def fold(events: Iterable[Event]) -> dict[str, FileState]:
    """The expected states, with every change applied in order."""
    states: dict[str, FileState] = {}
    for event in events:
        states[event.path] = states.get(event.path, FileState()).after(event)
    return states


class StateStore:
    """The shared database. Several processes write it at once, each for its own keys."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")  # the demo kills processes, not the machine
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS states (path TEXT PRIMARY KEY, changes INT, last_sequence INT, digest INT)"
        )

    def close(self) -> None:
        self._database.close()

    def load(self, path: str) -> FileState:
        row = self._database.execute(
            "SELECT changes, last_sequence, digest FROM states WHERE path = ?", (path,)
        ).fetchone()
        return FileState(*row) if row is not None else FileState()

    def save(self, states: Mapping[str, FileState]) -> None:
        """Save all of the states or none."""
        if states:
            self._database.execute("BEGIN IMMEDIATE")
            rows = [(path, *state) for path, state in states.items()]
            self._database.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)", rows)
            self._database.execute("COMMIT")

    def all(self) -> dict[str, FileState]:
        rows = self._database.execute("SELECT path, changes, last_sequence, digest FROM states")
        return {path: FileState(*state) for path, *state in rows}


class KeyStates:
    """The states of one consumer, by partition and key."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._owned: dict[int, dict[str, FileState]] = {}
        self._unsaved: dict[int, set[str]] = {}

    def apply(self, partition: int, event: Event) -> int:
        """Apply a change. Returns the number of earlier changes, or ``SKIPPED`` if the state has the change already.

        Delivery is at least once: a change may be delivered again after the consumer has lost its partition.
        """
        owned = self._owned.setdefault(partition, {})
        state = owned.get(event.path)
        if state is None:
            state = owned[event.path] = self._store.load(event.path)
        if event.sequence <= state.last_sequence:
            return SKIPPED
        owned[event.path] = state.after(event)
        self._unsaved.setdefault(partition, set()).add(event.path)
        return state.changes

    def flush(self, partitions: Iterable[int]) -> None:
        """Save the changed states of these partitions, whose keys may go to other partitions or members."""
        changed: dict[str, FileState] = {}
        for partition in partitions:
            owned = self._owned.get(partition, {})
            changed.update((path, owned[path]) for path in self._unsaved.pop(partition, ()))
        self._store.save(changed)

    def reload(self, partitions: Iterable[int]) -> None:
        """Read the states of these partitions again at the next use: keys of other owners may have moved to them."""
        chosen = list(partitions)
        self.flush(chosen)
        for partition in chosen:
            self._owned.pop(partition, None)

    def flush_all(self) -> None:
        self.flush(list(self._unsaved))
