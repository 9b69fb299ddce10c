"""The file ``.timeindex``: offsets at which the search for a timestamp may begin."""

from __future__ import annotations

import struct
from collections.abc import Callable

from anabranch.broker.log.index_file import IndexFile
from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.runtime.env import Storage

_ENTRY = struct.Struct(">qi")


class TimeIndex(IndexFile):
    """Entries (largest timestamp so far, last offset of its batch - base offset): timestamps strictly increase."""

    ENTRY_BYTES = 12

    __slots__ = ("base_offset", "last_timestamp")

    def __init__(self, storage: Storage, path: str, base_offset: int, *, create: bool = False) -> None:
        super().__init__(storage, path, create=create)
        self.base_offset = base_offset
        self.last_timestamp: int | None = NO_TIMESTAMP if create else None

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if ``timestamp`` is above the last entry's timestamp."""
        if self.last_timestamp is None:
            self.last_timestamp = self.last()[0]
        if timestamp > self.last_timestamp:
            self.add(_ENTRY.pack(timestamp, offset - self.base_offset))
            self.last_timestamp = timestamp

    def entry(self, index: int) -> tuple[int, int]:
        """(timestamp, offset) of an entry."""
        timestamp, relative = _ENTRY.unpack_from(self.entries, index * 12)
        return timestamp, self.base_offset + relative

    def last(self) -> tuple[int, int]:
        """The last entry; (-1, base offset) when there is none."""
        count = self.count
        return self.entry(count - 1) if count else (NO_TIMESTAMP, self.base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The entry with the largest timestamp not above ``timestamp``; (-1, base offset) when there is none."""
        found = self._first(lambda entry: entry[0] > timestamp)
        return self.entry(found - 1) if found else (NO_TIMESTAMP, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``."""
        self.keep(self._first(lambda entry: entry[1] >= offset))
        self.last_timestamp = self.last()[0]

    def reset(self) -> None:
        """Start again with an empty file."""
        super().reset()
        self.last_timestamp = NO_TIMESTAMP

    def is_sane(self) -> bool:
        """Whether all entries are whole, and the last entry is not before the first entry."""
        if len(self.entries) % 12:
            return False
        count = self.count
        return count == 0 or (self.entry(count - 1)[0] >= self.entry(0)[0] and self.entry(0)[1] >= self.base_offset)

    def _first(self, above: Callable[[tuple[int, int]], bool]) -> int:
        """The index of the first entry that is ``above``; the number of entries if there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) >> 1
            if above(self.entry(middle)):
                high = middle
            else:
                low = middle + 1
        return low
