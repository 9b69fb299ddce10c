"""The file ``.txnindex``: the transactions aborted in a segment (KIP-98), for read_committed fetches."""

from __future__ import annotations

import contextlib
import struct
from typing import NamedTuple

from anabranch.broker.log.index_file import IndexFile
from anabranch.runtime.env import Storage

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTxn(NamedTuple):
    """An aborted transaction: the offsets of its first record and its marker, and the LSO after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex(IndexFile):
    """34-byte entries in the order of the abort markers. There is no file until the first entry."""

    ENTRY_BYTES = 34

    __slots__ = ("_is_empty",)

    def __init__(self, storage: Storage, path: str, *, is_new: bool = False) -> None:
        super().__init__(storage, path)
        self._is_empty = is_new
        """Whether the file is known to be empty, so that it need not be read. Most segments have no entries."""

    @property
    def entries(self) -> bytearray:
        if self._data is None and self._is_empty:
            self._data = bytearray()
        return super().entries

    @property
    def is_loaded(self) -> bool:
        return self._data is not None or self._is_empty

    def append(self, txn: AbortedTxn) -> None:
        """Add a transaction whose marker is in this segment. If writing it fails, the next ``write`` writes it."""
        self.add(_ENTRY.pack(_VERSION, *txn))
        with contextlib.suppress(OSError):
            self.write()

    def transactions(self) -> list[AbortedTxn]:
        """All entries, in the order of their markers."""
        whole = len(self.entries) - len(self.entries) % 34
        return [AbortedTxn(*fields) for _, *fields in _ENTRY.iter_unpack(self.entries[:whole])]

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """The transactions that overlap [``fetch_offset``, ``upper_bound``), and whether no later segment has more."""
        found = []
        for txn in self.transactions():
            if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound:
                found.append(txn)
            if txn.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose marker is at or above ``offset``."""
        self.keep(sum(1 for txn in self.transactions() if txn.last_offset < offset))

    def release(self) -> None:
        if self._data is not None:
            self._is_empty = not self._data
        super().release()

    def is_sane(self) -> bool:
        """Whether all entries are whole and of a known version."""
        return len(self.entries) % 34 == 0 and all(fields[0] == _VERSION for fields in _ENTRY.iter_unpack(self.entries))
