"""Limits the memory that the requests of all connections take together."""

from __future__ import annotations

from anabranch.runtime.wake_ups import WakeUps


class MemoryBudget:
    """The bytes in use. The limit is soft: what is taken while there is room may exceed it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.limited = limit_bytes > 0
        """Whether there is a limit."""
        self._taken_bytes = 0
        self._room = WakeUps()

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @property
    def free_bytes(self) -> int:
        """The bytes left below the limit; -1: there is no limit."""
        return max(0, self._limit_bytes - self._taken_bytes) if self.limited else -1

    def take(self, delta_bytes: int) -> None:
        """Take bytes; a negative number gives bytes back."""
        self._taken_bytes += delta_bytes
        if delta_bytes < 0:
            self._room.wake()

    async def wait_for_room(self, already_taken_bytes: int) -> None:
        """Return when there is room.

        If part of a request is taken already, return at once: otherwise no request could finish.
        """
        while self._taken_bytes >= self._limit_bytes and not already_taken_bytes:
            await self._room.wait()
