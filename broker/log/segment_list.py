"""The segments of one log in order: look-ups in them, and dropping the first or the last."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from anabranch.broker.log.cold_reads import ColdError, load_indexes
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.open_segments import OpenSegments
from anabranch.broker.log.paths import LOG_SUFFIX
from anabranch.broker.log.retention import FILES_REMOVED_AT_ONCE, SegmentFacts
from anabranch.broker.log.segment import LogSegment
from anabranch.broker.log.txn_index import AbortedTxn
from anabranch.runtime.env import FileRange, Storage


class SegmentsNotEmptyError(RuntimeError):
    """A log was to begin at another offset while it holds records."""


class SegmentRead(NamedTuple):
    """The batches of a read, and how many offsets they have from the requested one on (``end_of_range``)."""

    records: FileRange | bytes
    offset_count: int


NOTHING = SegmentRead(b"", 0)


class SegmentList:
    """At least one segment, ascending; the last takes appends. ``bases`` are their base offsets."""

    __slots__ = ("_doomed", "_open", "_rng", "_storage", "bases", "items", "jitter_ms")

    def __init__(
        self,
        storage: Storage,
        segments: Sequence[LogSegment],
        open_segments: OpenSegments | None,
        rng: random.Random,
        config: LogConfig,
    ) -> None:
        self._storage = storage
        self._open = OpenSegments() if open_segments is None else open_segments
        self._doomed: list[tuple[int, str]] = []
        self.items = list(segments)
        self.bases = [segment.base_offset for segment in segments]
        self._rng = rng
        self.jitter_ms = self._draw_jitter(config)
        """The active segment is rolled this long before ``segment.ms``, so that many logs are not rolled at once."""

    @property
    def active(self) -> LogSegment:
        """The segment that takes appends."""
        return self.items[-1]

    # ------------------------------------------------------------ change

    def begin(self, directory: str, base_offset: int, config: LogConfig, now_ms: int) -> LogSegment:
        """Begin an empty segment behind the others. Raises ``OSError``; then there is none."""
        self.active.prepare()
        segment = LogSegment(self._storage, directory, base_offset, config, now_ms, create=True)
        self.items.append(segment)
        self.bases.append(base_offset)
        self.jitter_ms = self._draw_jitter(config)
        return segment

    def _draw_jitter(self, config: LogConfig) -> int:
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        return self._rng.randrange(jitter_ms) if jitter_ms > 0 else 0

    def replace(self, first: int, last: int, segment: LogSegment) -> None:
        """Replace the segments [first, last) by ``segment``."""
        for old in self.items[first:last]:
            self._open.forget(old)
        self.items[first:last] = [segment]
        self.bases[first:last] = [segment.base_offset]

    def rename_empty(self, base_offset: int, config: LogConfig, now_ms: int) -> None:
        """Give the only segment, which is empty, another base offset. Raises ``OSError``; then it is as before.

        Raises ``SegmentsNotEmptyError`` when there are records, before anything is renamed.
        """
        empty = self.active
        if len(self.items) != 1 or empty.size_bytes:
            raise SegmentsNotEmptyError(
                f"{empty.directory}: {len(self.items)} segments, the last with {empty.size_bytes} bytes, "
                f"cannot begin again at offset {base_offset}"
            )
        if empty.base_offset == base_offset:
            return
        empty.prepare()
        log = empty.path(LOG_SUFFIX)
        renamed = LogSegment(self._storage, empty.directory, base_offset, config, now_ms, create=True, in_place_of=log)
        empty.close()
        self.replace(0, 1, renamed)

    def drop(self, index: int, due_ms: int) -> LogSegment:
        """Forget the first (0) or the last (-1) segment; its files are removed at ``due_ms``.

        Raises ``OSError``; then the segment is as before.
        """
        segment = self.items[index]
        self._doomed += [(due_ms, path) for path in segment.mark_deleted()]
        del self.items[index], self.bases[index]
        self._open.forget(segment)
        return segment

    def remove_files(self, now_ms: int | None) -> int:
        """Remove some of the files due at ``now_ms``, all if it is None; returns how many. Raises ``OSError``."""
        due = [item for item in self._doomed if now_ms is None or item[0] <= now_ms]
        if now_ms is not None:
            del due[FILES_REMOVED_AT_ONCE:]
        for item in due:
            if self._storage.exists(item[1]):
                self._storage.remove(item[1])
            self._doomed.remove(item)
        return len(due)

    def flushed(self, segments: Iterable[LogSegment]) -> None:
        """Note that segments are on disk. The sealed ones are closed; the next read opens them again."""
        for segment in segments:
            if segment is not self.active:
                segment.is_flushed = True
                segment.release()

    def release_sealed(self) -> None:
        """Release the memory and files that look-ups in sealed segments use."""
        for segment in self.items[:-1]:
            self._open.forget(segment)
            segment.release()

    def close(self) -> None:
        """Close the files as they are; a range that is being sent stays readable."""
        for segment in self.items:
            self._open.forget(segment)
            segment.close()

    # ------------------------------------------------------------ look up

    def _use(self, segment: LogSegment) -> None:
        if segment is not self.items[-1]:
            self._open.use(segment)

    def index_of(self, offset: int) -> int:
        """Index of the last segment that begins at or below ``offset``; -1 when none does."""
        return bisect_right(self.bases, offset) - 1

    def from_offset(self, offset: int) -> list[LogSegment]:
        """The segments from the one that may hold ``offset`` on."""
        return self.items[max(self.index_of(offset), 0) :]

    def read(
        self, offset: int, max_bytes: int, upper_bound: int, log_end_offset: int, at_least_one: bool, waits: bool
    ) -> SegmentRead:
        """The batches from ``offset`` on, see ``PartitionLog.read``. Raises ``OSError``, ``ColdError``."""
        if offset >= upper_bound or (max_bytes <= 0 and not at_least_one):
            return NOTHING
        for index in range(self.index_of(offset), len(self.items)):
            segment = self.items[index]
            self._use(segment)
            start = segment.locate(offset, waits=waits)
            if start is None:
                continue
            limit = segment.size_bytes
            if upper_bound < log_end_offset:
                if segment.base_offset >= upper_bound:
                    return NOTHING
                bound = segment.locate(upper_bound, waits=waits)
                limit = segment.size_bytes if bound is None else bound.position
            if limit <= start.position or (start.length > max_bytes and not at_least_one):
                return NOTHING
            is_last = index + 1 == len(self.items)
            limit_offset = upper_bound if is_last else min(upper_bound, self.bases[index + 1])
            first_offset = max(offset, segment.base_offset)  # compaction may leave a gap before a segment
            end, offset_count = segment.end_of_range(start, first_offset, max_bytes, limit, limit_offset)
            return SegmentRead(segment.file.range(start.position, end - start.position), offset_count)
        return NOTHING

    def aborted(self, offset: int, upper_bound: int, waits: bool) -> list[AbortedTxn]:
        """The aborted transactions that overlap [``offset``, ``upper_bound``). Raises ``OSError``, ``ColdError``."""
        found: list[AbortedTxn] = []
        for segment in self.items[max(self.index_of(offset), 0) :]:
            self._use(segment)
            if not (waits or segment.txn_index.is_loaded) and self._storage.is_cold(segment.txn_index.path):
                later = self.from_offset(segment.base_offset)  # most have no file, which is remembered after a read
                raise ColdError(partial(load_indexes, self._storage, [each.txn_index for each in later]))
            more, complete = segment.txn_index.collect(offset, upper_bound)
            found += more
            if complete:
                break
        return found


def facts_of(segments: Sequence[LogSegment], log_end_offset: int) -> list[SegmentFacts]:
    """The facts about each segment of a log, for retention. Raises ``OSError``."""
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    return [
        SegmentFacts(end, segment.size_bytes, segment.retention_timestamp()) for segment, end in zip(segments, ends)
    ]
