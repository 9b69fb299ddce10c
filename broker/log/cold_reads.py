"""Lets a thread wait for the disk before a read of a log that would have to wait.

A look-up is a plain call in the event loop. If it must not wait, it raises ``ColdError`` instead of waiting for the
disk; the caller awaits ``warm`` and tries again. Work in steps yields the ``ColdError`` instead of raising it. When
such work is resumed, it reads in any case, even if it has to wait for the disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from anabranch.broker.log.index_file import IndexFile
from anabranch.runtime.env import File, Storage

TRIES = 8
"""A look-up that failed this many times waits for the disk itself. It reads an index, and headers in a few places."""


class ColdError(Exception):
    """The data to read next is not in memory, or only in compressed form."""

    def __init__(self, read: Callable[[], Awaitable[object]]) -> None:
        super().__init__("the read would wait for the disk")
        self._read = read

    async def warm(self) -> None:
        """Wait for the disk in a thread. Errors are ignored: the same error occurs again when the data is read."""
        with suppress(OSError):
            await self._read()


def check_warm(file: File, offset: int, length: int) -> None:
    """Raise ``ColdError`` when a read of these bytes would wait."""
    if file.is_cold(offset, length):
        raise ColdError(partial(file.read_through, offset, length))


async def warm(file: File, offset: int, length: int) -> None:
    """Return when a read of these bytes does not wait."""
    if file.is_cold(offset, length):
        await file.read_through(offset, length)


async def load_indexes(storage: Storage, indexes: Sequence[IndexFile]) -> None:
    """Return when these indexes are in memory. Raises ``OSError``."""
    await storage.read_through([index.path for index in indexes if not index.is_loaded])
    for index in indexes:
        index.load()
