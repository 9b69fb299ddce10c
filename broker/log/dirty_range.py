"""The part of a log that compaction reads: from the first dirty offset up to the first offset that is too new."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from anabranch.broker.log.log_config import MAX_LONG
from anabranch.broker.log.partition_log import PartitionLog


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """The part of a log that may be compacted. Keys are read from the offsets [first_dirty, first_uncleanable)."""

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Whether the oldest dirty record has waited for ``max.compaction.lag.ms``."""

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def dirty_range(log: PartitionLog, cleaned_until: int, now_ms: int) -> DirtyRange:
    """The part of ``log`` that is dirty at ``now_ms``, if it is cleaned below ``cleaned_until``.

    It consists of whole segments that are below the active segment and the last stable offset, and older than
    ``min.compaction.lag.ms``.
    """
    segments = log.segments
    first_dirty = max(cleaned_until, log.log_start_offset, segments[0].base_offset)
    if first_dirty > log.log_end_offset:
        first_dirty = max(log.log_start_offset, segments[0].base_offset)
    settled_ms = now_ms - log.config.min_compaction_lag_ms
    limit = first_dirty
    clean_bytes = dirty_bytes = 0
    oldest: int | None = None
    for segment, following in pairwise(segments):
        if following.base_offset <= first_dirty:
            clean_bytes += segment.size_bytes
            continue
        if following.base_offset > log.last_stable_offset:
            break
        if log.config.min_compaction_lag_ms > 0 and segment.largest_timestamp() > settled_ms:
            break
        limit = following.base_offset
        dirty_bytes += segment.size_bytes
        if oldest is None and segment.size_bytes and log.config.max_compaction_lag_ms < MAX_LONG:
            oldest = segment.first_timestamp()
            segment.release()
    overdue = oldest is not None and now_ms - oldest > log.config.max_compaction_lag_ms
    return DirtyRange(first_dirty, limit, clean_bytes, dirty_bytes, overdue)
