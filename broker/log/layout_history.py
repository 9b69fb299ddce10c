"""Stores the layouts of a partition by leader epoch (KIP-253) in ``partition-count-checkpoint``.

The history does not decide which batches the broker accepts: the layout in LeaderAndIsr decides that. The file is for
the audit. The audit merges the files of all replicas, because a replica that was down lacks entries.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import structlog

from anabranch.broker.log.checkpoint_files import (
    MalformedFileError,
    decode_numbers,
    encode_numbers,
    read_checkpoint,
    write_replace,
)
from anabranch.runtime.env import Storage

logger = structlog.get_logger(__name__)


class LayoutEntry(NamedTuple):
    """One line of the file: the layout in force from ``leader_epoch`` on."""

    leader_epoch: int
    initial_partition_count: int
    undeleted_partition_count: int
    layout_version: int


class LayoutHistory:
    """Entries with strictly increasing leader epochs.

    The file is replaced at every change: a process that crashes leaves the old or the new file. The log's next flush
    syncs it. A change whose write fails (disk full) stays in memory and is written by the next ``save``. The first
    layout of a log without records ``is_pending``: it is written with the first record.
    """

    __slots__ = ("_dirty", "_path", "_storage", "entries", "is_pending", "unsynced")

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._dirty = False
        self.entries: list[LayoutEntry] = []
        self.is_pending = False
        """Whether the first entry is not written yet, because the log has no records."""
        self.unsynced = False
        """Whether the present file may not be on disk."""

    @property
    def stored(self) -> list[LayoutEntry]:
        """The entries of the file."""
        return [] if self.is_pending else self.entries

    def moved_to(self, path: str) -> None:
        """Note that the file has another name now."""
        self._path = path

    def load(self) -> None:
        """Read the file, if it exists. A damaged file counts as missing, until the next change replaces it."""
        if not self._storage.exists(self._path):
            return
        try:
            self.entries = _ascending(self._path, read_checkpoint(self._storage, self._path))
        except MalformedFileError as error:
            logger.warning("log.layouts_malformed", error=str(error))

    def assign(self, entry: LayoutEntry, *, has_records: bool = True) -> None:
        """Note a layout that is in force from its leader epoch on. If the epoch is known or older, nothing changes.

        The first layout of a topic that was never resized waits for the first record, if ``has_records`` is false.
        """
        last = self.entries[-1] if self.entries else None
        if last is not None and (entry.leader_epoch <= last.leader_epoch or entry[1:] == last[1:]):
            return
        self.entries.append(entry)
        if last is None and not has_records and entry.layout_version <= 0:
            self.is_pending = True
        else:
            self._changed()

    def write_pending(self) -> None:
        """Write the first entry, because the log gets records."""
        if self.is_pending:
            self._changed()

    def take_over(self, other: LayoutHistory) -> None:
        """Copy the entries of ``other``: this log is a copy of its log."""
        if other.entries:
            self.entries = list(other.entries)
            self._changed()

    def save(self) -> None:
        """Write the file if an earlier write failed. Raises ``OSError``."""
        if self._dirty:
            write_replace(self._storage, self._path, encode_numbers(self.entries))
            self._dirty = False

    async def sync(self) -> None:
        """Return when the present file is on disk. Raises ``OSError``."""
        self.save()
        file = self._storage.open(self._path)
        self.unsynced = False
        try:
            await file.sync()
        except OSError:
            self.unsynced = True
            raise
        finally:
            file.close()

    async def try_sync(self) -> None:
        """Like ``sync``, but an error is only logged: no record depends on the file, and the next flush tries again."""
        try:
            await self.sync()
        except OSError as error:
            logger.warning("log.layouts_not_synced", path=self._path, error=str(error))

    def _changed(self) -> None:
        self._dirty, self.unsynced, self.is_pending = True, True, False
        try:
            self.save()
        except OSError as error:
            logger.warning("log.layouts_not_written", path=self._path, error=str(error))


def _ascending(path: str, data: bytes) -> list[LayoutEntry]:
    entries = [LayoutEntry(*numbers) for numbers in decode_numbers(path, data, len(LayoutEntry._fields))]
    for before, after in pairwise(entries):
        if after.leader_epoch <= before.leader_epoch:
            raise MalformedFileError(path, f"leader epoch {after.leader_epoch} follows {before.leader_epoch}")
    return entries
