"""Keeps files open and indexes in memory for the most recently read sealed segments of all logs."""

from __future__ import annotations

from anabranch.broker.log.segment import LogSegment

DEFAULT_LIMIT = 128


class OpenSegments:
    """At most ``limit`` segments; a further segment releases the least recently used one.

    While a segment is read, or a range of it is being sent, its file stays open.
    """

    __slots__ = ("_limit", "_used")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._used: dict[LogSegment, None] = {}

    def __len__(self) -> int:
        return len(self._used)

    def use(self, segment: LogSegment) -> None:
        """Note that a sealed segment was read. It stays open until synced: only an open file reports failed writes."""
        if not segment.is_flushed:
            return
        self._used.pop(segment, None)
        self._used[segment] = None
        if len(self._used) > self._limit:
            oldest = next(iter(self._used))
            del self._used[oldest]
            oldest.release()

    def forget(self, segment: LogSegment) -> None:
        """Forget a segment that is closed, or takes appends again."""
        self._used.pop(segment, None)
