"""Which of the fetches that wait without a session are answered early, because together they take too much memory.

The connection that keeps the most gives up the fetch that has waited longest on it. So a client with many or large
fetches ends its own, not those of others.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

F = TypeVar("F", bound=Hashable)

FETCH_BYTES = 2_000
PARTITION_BYTES = 1_000
"""What one more partition takes: its key, its state, its result, and the entries in the sets of readers."""


@dataclass(eq=False)
class _Client(Generic[F]):
    """The waiting fetches of one connection, the oldest first, each with its bytes."""

    key: Hashable
    sizes: dict[F, int] = field(default_factory=dict)
    taken_bytes: int = 0


class WaitingFetches(Generic[F]):
    """The fetches without a session that wait, within a limit of memory for all of them; -1: no limit.

    A session keeps its partitions also while no fetch waits, so ``FetchSessionCache`` limits them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._clients: dict[Hashable, _Client[F]] = {}
        self._client_of: dict[F, _Client[F]] = {}
        self._levels: dict[int, dict[_Client[F], None]] = {}
        """The clients by the bit length of their bytes: the largest one is found at once, within a factor of two."""
        self.parked_bytes = 0
        """The memory of all waiting fetches. A single one may exceed the limit if no other waits."""
        self.ended = 0
        """The number of fetches that were answered early."""

    def __len__(self) -> int:
        return len(self._client_of)

    def add(self, fetch: F, partitions: int, client: Hashable) -> list[F]:
        """Count a fetch that waits from now on; returns the fetches to answer, which do not count any more.

        ``client`` stands for its connection. The new fetch may be among those to answer.
        """
        of = self._clients.setdefault(client, _Client[F](client))
        of.sizes[fetch] = FETCH_BYTES + PARTITION_BYTES * partitions
        self._client_of[fetch] = of
        self._change(of, of.sizes[fetch])
        ended: list[F] = []
        while 0 <= self._limit_bytes < self.parked_bytes and len(self) > 1:
            largest = next(iter(self._levels[max(self._levels)]))
            ended.append(next(iter(largest.sizes)))
            self.remove(ended[-1])
        self.ended += len(ended)
        return ended

    def remove(self, fetch: F) -> None:
        """Note that a fetch does not wait any more."""
        of = self._client_of.pop(fetch, None)
        if of is None:
            return
        self._change(of, -of.sizes.pop(fetch))
        if not of.sizes:
            del self._clients[of.key]

    def _change(self, client: _Client[F], delta_bytes: int) -> None:
        self.parked_bytes += delta_bytes
        before = client.taken_bytes.bit_length()
        client.taken_bytes += delta_bytes
        after = client.taken_bytes.bit_length()
        if before == after:
            return
        if before:
            level = self._levels[before]
            del level[client]
            if not level:
                del self._levels[before]
        if after:
            self._levels.setdefault(after, {})[client] = None
