"""Records that crossed to the reader's thread together, and how many of them should cross at once. No IO, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import length_hint

from anabranch.client import ConsumerRecord
from anabranch.client.subscription.subscription import TakenRecords

TARGET_S = 0.05
"""The time for which the records of one crossing should keep the reader busy."""
LET_GO_S = 0.002
"""After so long a reader lets go of the interpreter's lock, for the other threads of the program."""
LET_GO_FOR_S = 0.00002
"""The time without the lock. The operating system may make it longer."""
MOST_AT_ONCE = 10_000
PIECE = 128
"""The records that are decoded at once. So few new objects at a time start no run of the garbage collector."""
_GROWTH = 8


def next_size(size: int, elapsed_s: float) -> int:
    """The number of records of the next crossing, 1 to ``MOST_AT_ONCE``.

    The reader has read the ``size`` records of the last crossing in ``elapsed_s``. A slow reader gets few records at
    once, so it reacts to rebalances between them.
    """
    grown = min(MOST_AT_ONCE, max(1, size) * _GROWTH)
    return grown if elapsed_s <= 0 else max(1, min(grown, int(size * TARGET_S / elapsed_s)))


class HandOver:
    """The records of one crossing. The reader decodes them piece by piece, and reads each piece before the next.

    Another thread may call ``end`` at any time. Each step that changes a piece is one step for all threads.
    """

    __slots__ = ("_at", "_coming", "_failed", "_failure", "_piece_size", "_pieces", "_read", "began_s", "taken")

    def __init__(self, taken: TakenRecords, piece_size: int, began_s: float) -> None:
        self.taken = taken
        self.began_s = began_s
        self._coming = iter(taken.records)
        self._piece_size = piece_size
        self._pieces: list[tuple[list[ConsumerRecord], Iterator[ConsumerRecord]]] = []
        """The decoded records of each piece, and those that are not read yet.

        Once such an iterator is at its end, it yields nothing that is decoded later.
        """
        for _ in range(0, len(taken.records), piece_size):
            decoded: list[ConsumerRecord] = []
            self._pieces.append((decoded, iter(decoded)))
        self._at = 0
        """The piece to decode next."""
        self._read = 0
        """The number of pieces that were read. Their records are not kept."""
        self._failure: Exception | None = None
        """The error of the first record that could not be decoded. It is raised after the records before."""
        self._failed = 0
        """1 after ``_failure`` was raised: the record counts as read."""

    @property
    def decoded(self) -> int:
        """The number of records that were decoded."""
        return sum(self._counts())

    def _counts(self) -> list[int]:
        counts = [len(decoded) for decoded, _ in self._pieces]
        read = self._read  # after the counts: the records of a piece are dropped after this number grew
        return [self._piece_size] * read + counts[read:]

    def raise_failure(self) -> None:
        """Raise the error of the record after the decoded ones, once. It counts as read then."""
        if self._failure is not None:
            failure, self._failure, self._failed = self._failure, None, 1
            raise failure

    def decode(self) -> Iterator[ConsumerRecord] | None:
        """Decode the next piece. Returns its records as they are read; None after the last piece or a failure."""
        if self._at and length_hint(self._pieces[self._at - 1][1]):
            return self._pieces[self._at - 1][1]  # an interrupt came before the reader had it
        if self._at == len(self._pieces):
            return None
        at, self._at = self._at, len(self._pieces)  # after an interrupt here, ``end`` counts all others as unread
        if at:
            self._read = at
            self._pieces[at - 1][0].clear()
        decoded, rest = self._pieces[at]
        items: list[ConsumerRecord] = []
        try:
            items.extend(islice(self._coming, self._piece_size))
        except Exception as error:
            self._failure = error
        decoded += items
        if self._failure is None:
            self._at = at + 1
        return rest

    def end(self) -> int:
        """Let the reader get no more of these records. Returns how many were read."""
        self._at = len(self._pieces)
        self._failure = None
        counts = self._counts()
        unread = [len(list(rest)) for _, rest in self._pieces]
        return self._failed + sum(max(0, count - left) for count, left in zip(counts, unread, strict=True))
