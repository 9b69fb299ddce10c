"""The file ``.index``: positions in the log file at which the search for an offset may begin."""

from __future__ import annotations

import struct

from anabranch.broker.log.index_file import IndexFile
from anabranch.runtime.env import Storage

_ENTRY = struct.Struct(">ii")
_FEW, _NEAR = 16, 2


class OffsetIndex(IndexFile):
    """Entries (last offset of a batch - base offset, position of that batch), both strictly increasing; big-endian."""

    ENTRY_BYTES = 8

    __slots__ = ("base_offset",)

    def __init__(self, storage: Storage, path: str, base_offset: int, *, create: bool = False) -> None:
        super().__init__(storage, path, create=create)
        self.base_offset = base_offset

    def append(self, last_offset: int, position: int) -> None:
        """Add an entry for the batch at ``position``, which ends with ``last_offset``."""
        self.add(_ENTRY.pack(last_offset - self.base_offset, position))

    def entry(self, index: int) -> tuple[int, int]:
        """(offset, position) of an entry."""
        relative, position = _ENTRY.unpack_from(self.entries, index * 8)
        return self.base_offset + relative, position

    def lookup(self, offset: int) -> tuple[int, int]:
        """The entry with the largest offset not above ``offset``; (base offset, 0) when there is none."""
        found = self._floor(0, offset - self.base_offset)
        return self.entry(found) if found >= 0 else (self.base_offset, 0)

    def position_floor(self, position: int) -> tuple[int, int]:
        """The entry with the largest position not above ``position``; (base offset, 0) when there is none."""
        found = self._floor(1, position)
        return self.entry(found) if found >= 0 else (self.base_offset, 0)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``."""
        self.keep(self._floor(0, offset - self.base_offset - 1) + 1)

    def is_sane(self, log_size: int) -> bool:
        """Whether all entries are whole, and the last entry is within the log file."""
        data = self.entries
        if len(data) % 8:
            return False
        return not data or (0 <= self.entry(-1 + len(data) // 8)[1] < log_size and self.entry(0)[0] >= self.base_offset)

    def _floor(self, column: int, value: int) -> int:
        """The index of the last entry whose ``column`` is at most ``value``; -1 if there is no such entry."""
        data = self.entries
        unpack = _ENTRY.unpack_from
        low, high = 0, len(data) // 8
        if high > _FEW:  # the batches of a log are often alike, so the place is near the one for equal batches
            most = unpack(data, high * 8 - 8)[column]
            guess = value * high // most if 0 < value < most else 0
            if guess > _NEAR and unpack(data, (guess - _NEAR) * 8)[column] <= value:
                low = guess - _NEAR + 1
            if guess < high - _NEAR and unpack(data, (guess + _NEAR) * 8)[column] > value:
                high = guess + _NEAR
        while low < high:
            middle = (low + high) >> 1
            if unpack(data, middle * 8)[column] <= value:
                low = middle + 1
            else:
                high = middle
        return low - 1
