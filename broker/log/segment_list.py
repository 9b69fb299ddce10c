"""The segments of one log in order: rolls, look-ups, and drops of the first or the last segment."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from anabranch.broker.log.cold_reads import ColdError, load_indexes
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_state import LogState
from anabranch.broker.log.open_segments import OpenSegments
from anabranch.broker.log.paths import LOG_SUFFIX
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.log.retention import FILES_REMOVED_AT_ONCE, SegmentFacts
from anabranch.broker.log.segment import MAX_RELATIVE_OFFSET, LogSegment
from anabranch.broker.log.txn_index import AbortedTxn
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import FileRange, Storage

logger = structlog.get_logger(__name__)


class SegmentsNotEmptyError(RuntimeError):
    """A log cannot begin at another offset, because it holds records."""


class SegmentRead(NamedTuple):
    """The batches of a read, and the number of offsets in them from the requested offset on (``end_of_range``)."""

    records: FileRange | bytes
    offset_count: int


NOTHING = SegmentRead(b"", 0)


class SegmentList:
    """A list of at least one segment, ascending; the last segment takes appends. ``bases`` has the base offsets.

    When a segment begins, a producer snapshot is taken at its base offset. It is dropped with the segment.
    """

    __slots__ = (
        "_config",
        "_directory",
        "_doomed",
        "_jitter_ms",
        "_open",
        "_partition",
        "_rng",
        "_snapshots",
        "_storage",
        "bases",
        "items",
    )

    def __init__(
        self,
        storage: Storage,
        rng: random.Random,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        state: LogState,
        open_segments: OpenSegments | None,
    ) -> None:
        self._storage = storage
        self._rng = rng
        self._directory = directory
        self._partition = partition
        self._config = config
        self._snapshots = state.snapshots
        self._open = OpenSegments() if open_segments is None else open_segments
        self._doomed: list[tuple[int, str]] = []
        self.items = list(state.segments)
        self.bases = [segment.base_offset for segment in self.items]
        self._jitter_ms = self._draw_jitter()
        """The active segment is rolled this much before ``segment.ms``, so that many logs are not rolled at once."""

    @property
    def active(self) -> LogSegment:
        """The segment that takes appends."""
        return self.items[-1]

    @property
    def have_records(self) -> bool:
        """Whether a segment has bytes."""
        return any(segment.size_bytes for segment in self.items)

    def moved_to(self, directory: str) -> None:
        """Note that the directory of the segments' files has another name now."""
        self._directory = directory
        for segment in self.items:
            segment.moved_to(directory)

    def configure(self, config: LogConfig) -> None:
        """Use a changed configuration from the next call on. The jitter is drawn again at the next roll."""
        self._config = config
        for segment in self.items:
            segment.configure(config)

    # ------------------------------------------------------------ roll

    def must_roll(self, length: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a new segment is needed for a batch of ``length`` bytes, by Kafka's rules.

        A new segment is needed if the active segment or an index is full, if the segment is older than ``segment.ms``,
        or if the offset is too far from the base offset for an index entry. The age is measured by the records'
        timestamps; without timestamps, by the creation of the segment.
        """
        segment, config = self.items[-1], self._config
        size = segment.size_bytes
        if size > config.segment_bytes - length:
            return True
        if size and segment.age_ms(now_ms, max_timestamp) > config.segment_ms - self._jitter_ms:
            return True
        return last_offset - segment.base_offset > MAX_RELATIVE_OFFSET or segment.indexes_full

    def roll(self, base_offset: int, now_ms: int, producers: ProducerState | None) -> bool:
        """Begin an empty segment at the end; False if the active segment begins at ``base_offset`` already.

        A snapshot of ``producers`` is taken at ``base_offset``; ``producers`` is None if they are behind the log.
        Raises ``OSError`` with the segments as they were. If only an index or the snapshot cannot be written, that is
        logged: recovery rebuilds both, and the next flush writes the indexes.
        """
        sealed = self.active
        if sealed.base_offset == base_offset:
            return False
        sealed.prepare()
        self.items.append(LogSegment(self._storage, self._directory, base_offset, self._config, now_ms, create=True))
        self.bases.append(base_offset)
        self._jitter_ms = self._draw_jitter()
        try:
            sealed.seal()
            if producers is not None:
                producers.map_end_offset = base_offset
                self._snapshots.take(producers)
        except OSError as error:
            logger.warning("log.roll_incomplete", partition=str(self._partition), error=str(error))
        return True

    def _draw_jitter(self) -> int:
        jitter_ms = min(self._config.segment_jitter_ms, self._config.segment_ms)
        return self._rng.randrange(jitter_ms) if jitter_ms > 0 else 0

    # ------------------------------------------------------------ change

    def replace(self, first: int, last: int, segment: LogSegment) -> None:
        """Replace the segments [first, last) by ``segment``."""
        replaced = self.items[first:last]
        for old in replaced:
            self._open.forget(old)
        self.items[first:last] = [segment]
        self.bases[first:last] = [segment.base_offset]
        for old in replaced[1:]:
            self._snapshots.remove_at(old.base_offset)

    def rename_empty(self, base_offset: int, now_ms: int) -> None:
        """Give the only segment, which is empty, another base offset. After an ``OSError`` the segment is as before.

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
        renamed = LogSegment(
            self._storage, empty.directory, base_offset, self._config, now_ms, create=True, in_place_of=log
        )
        empty.close()
        self.replace(0, 1, renamed)

    def drop(self, index: int, now_ms: int) -> None:
        """Forget the first (0) or the last (-1) segment; its files are removed after a delay.

        Raises ``OSError``; then the segment is as before.
        """
        segment = self.items[index]
        due_ms = now_ms + self._config.file_delete_delay_ms
        self._doomed += [(due_ms, path) for path in segment.mark_deleted()]
        del self.items[index], self.bases[index]
        self._open.forget(segment)
        self._snapshots.remove_at(segment.base_offset)

    @property
    def has_deleted_files(self) -> bool:
        """Whether files of dropped segments wait for their removal."""
        return bool(self._doomed)

    def remove_files(self, now_ms: int | None) -> int:
        """Remove some of the files due at ``now_ms`` (None: all files); returns how many. Raises ``OSError``."""
        due = [item for item in self._doomed if now_ms is None or item[0] <= now_ms]
        if now_ms is not None:
            del due[FILES_REMOVED_AT_ONCE:]
        for item in due:
            if self._storage.exists(item[1]):
                self._storage.remove(item[1])
            self._doomed.remove(item)
        return len(due)

    def flushed(self, segments: Iterable[LogSegment]) -> None:
        """Note that segments are on disk. Sealed segments are closed; the next read opens them again."""
        for segment in segments:
            if segment is not self.active:
                segment.is_flushed = True
                segment.release()

    def release_sealed(self) -> None:
        """Release the memory and files that look-ups in sealed segments use."""
        for segment in self.items[:-1]:
            self._open.forget(segment)
            segment.release()

    def release_active(self) -> None:
        """Release the memory and the file of the active segment, which is on disk. The next append opens it again."""
        segment = self.active
        if not segment.awaits_cut:
            segment.is_flushed = True
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
        """The index of the last segment that begins at or below ``offset``; -1 if there is no such segment."""
        return bisect_right(self.bases, offset) - 1

    def from_offset(self, offset: int) -> list[LogSegment]:
        """The segments, beginning with the segment that may hold ``offset``."""
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
                later = self.from_offset(segment.base_offset)  # cheap: most segments have no index file
                raise ColdError(partial(load_indexes, self._storage, [each.txn_index for each in later]))
            more, complete = segment.txn_index.collect(offset, upper_bound)
            found += more
            if complete:
                break
        return found


def base_of_next(log_end_offset: int, base_offset: int, last_offset: int) -> int:
    """The base offset of a new segment for a batch: the log end, unless the batch is too far above the log end."""
    return log_end_offset if last_offset - log_end_offset <= MAX_RELATIVE_OFFSET else base_offset


def facts_of(segments: Sequence[LogSegment], log_end_offset: int) -> list[SegmentFacts]:
    """The facts about each segment of a log, for retention. Raises ``OSError``."""
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    return [
        SegmentFacts(end, segment.size_bytes, segment.retention_timestamp()) for segment, end in zip(segments, ends)
    ]
