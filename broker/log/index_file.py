"""A file of fixed-size entries that grows at its end: the common part of offset, time and transaction index."""

from __future__ import annotations

import contextlib

from anabranch.broker.log import disk_errors
from anabranch.protocol.batch_layout import HEADER_BYTES
from anabranch.runtime.env import Storage

WRITE_AT_BYTES = 4096
"""New entries are written when they have this many bytes, and on roll, flush and close.
If a crash loses entries, recovery rebuilds them, because it begins in the segment that holds the recovery point."""


class IndexFile:
    """Entries of ``ENTRY_BYTES`` each, all in memory while in use; no descriptor is held.

    A sealed segment's entries are loaded on the first look-up and dropped by ``release``.
    """

    ENTRY_BYTES = 1

    __slots__ = ("_data", "_storage", "_torn", "_written", "path")

    def __init__(self, storage: Storage, path: str, *, create: bool = False) -> None:
        self._storage = storage
        self.path = path
        self._data: bytearray | None = None
        self._written = 0
        self._torn = False
        """Whether the file may hold invalid bytes after its first ``_written`` bytes."""
        if create:
            self._data, self._torn = bytearray(), True
            self.write()

    @property
    def entries(self) -> bytearray:
        """All entries, loaded when they are not in memory."""
        if self._data is None:
            try:
                self._data = bytearray(self._storage.read_bytes(self.path))
            except FileNotFoundError:
                self._data = bytearray()
            self._written = len(self._data)
        return self._data

    def load(self) -> None:
        """Load the entries into memory, so that changes to them raise nothing. Raises ``OSError``."""
        _ = self.entries

    @property
    def is_loaded(self) -> bool:
        """Whether the entries are in memory."""
        return self._data is not None

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.entries) // self.ENTRY_BYTES

    def size_on_disk(self) -> int:
        """Bytes in the file; 0 when there is none."""
        return self._storage.size(self.path) if self._storage.exists(self.path) else 0

    def fits(self, log_bytes: int) -> bool:
        """Whether the file has at most an entry for each batch of a log file, and one more. If not, it is wrong."""
        return self.size_on_disk() <= (log_bytes // HEADER_BYTES + 1) * self.ENTRY_BYTES

    def add(self, entry: bytes) -> None:
        """Append an entry in memory. Several are written together; the next ``write`` repeats a failed write."""
        data = self.entries
        data += entry
        if len(data) - self._written >= WRITE_AT_BYTES:
            try:
                self.write()
            except OSError:
                return

    def write(self) -> None:
        """Write the entries that are only in memory. Raises ``OSError``."""
        data = self._data
        if data is None or (len(data) == self._written and not self._torn):
            return
        file = self._storage.open(self.path, create=True)
        try:
            if self._torn:
                file.truncate(self._written)
            if len(data) > self._written:
                self._torn = True
                file.append(data[self._written :])
        finally:
            file.close()
        self._written, self._torn = len(data), False

    def keep(self, count: int) -> None:
        """Drop all entries but the first ``count``. If the file cannot be cut, the next ``write`` tries again."""
        data = self.entries
        size = count * self.ENTRY_BYTES
        del data[size:]
        if self._written > size:
            self._written, self._torn = size, True
            with contextlib.suppress(OSError):
                self.write()

    def reset(self) -> None:
        """Start again with an empty file, now or by the next ``write``."""
        self._data, self._written, self._torn = bytearray(), 0, True
        with contextlib.suppress(OSError):
            self.write()

    def renamed_to(self, path: str) -> None:
        """Rename the file. If the disk refuses, the entries in memory are written under the new name later."""
        self.load()
        old, self.path = self.path, path
        try:
            self._storage.rename(old, path)
        except OSError:
            self._written, self._torn = 0, True

    def release(self) -> None:
        """Drop the entries from memory when the file has them all."""
        if self._data is not None and len(self._data) == self._written and not self._torn:
            self._data = None

    async def sync(self) -> None:
        """Write, then fdatasync."""
        self.write()
        if self._storage.exists(self.path):
            file = self._storage.open(self.path)
            try:
                await disk_errors.sync(file)
            finally:
                file.close()
