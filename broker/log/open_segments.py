"""Which sealed segments have their files open and their indexes in memory: the ones read last, of all logs."""

from __future__ import annotations

from anabranch.broker.log.segment import LogSegment

DEFAULT_LIMIT = 128


class OpenSegments:
    """At most ``limit`` segments; one more has the one that was used longest ago released.

    What reads a segment meanwhile, and a range of it that is being sent, keep the file open until they are done.
    """

    __slots__ = ("_limit", "_used")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._used: dict[LogSegment, None] = {}

    def __len__(self) -> int:
        return len(self._used)

    def use(self, segment: LogSegment) -> None:
        """A sealed segment was read. One that is not synced stays open: its file has to tell of failed writes."""
        if not segment.is_flushed:
            return
        self._used.pop(segment, None)
        self._used[segment] = None
        if len(self._used) > self._limit:
            oldest = next(iter(self._used))
            del self._used[oldest]
            oldest.release()

    def forget(self, segment: LogSegment) -> None:
        """The segment is closed, or takes appends again."""
        self._used.pop(segment, None)
