"""Which segments are too old, too many, or wholly below the log's start. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.log.log_config import LogConfig

FILES_REMOVED_AT_ONCE = 64
SEGMENTS_DELETED_AT_ONCE = 32
"""Both of one log, between two moments at which other tasks run."""


class SegmentFacts(NamedTuple):
    """What retention needs to know of a segment. ``end_offset`` is the next segment's base, or the log's end."""

    end_offset: int
    size_bytes: int
    timestamp: int


def count_deletable(
    segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int, high_watermark: int, log_start_offset: int
) -> int:
    """How many segments, from the oldest on, may go. Nothing above the high watermark goes.

    With ``cleanup.policy=delete``: while the log is larger than ``retention.bytes`` without the segment, or the segment
    is older than ``retention.ms``. Under any policy: when it ends at or below the log's start. An empty last segment
    stays.
    """
    total = sum(segment.size_bytes for segment in segments)
    for count, segment in enumerate(segments):
        is_last = count == len(segments) - 1
        if segment.end_offset > high_watermark or (is_last and segment.size_bytes == 0):
            return count
        # The last segment goes by age alone: a record must not vanish because its batch is as large as the limit.
        below_start = not is_last and segment.end_offset <= log_start_offset
        too_old = config.deletes and 0 <= config.retention_ms < now_ms - segment.timestamp
        too_much = (
            config.deletes and config.retention_bytes >= 0 and total - segment.size_bytes >= config.retention_bytes
        )
        if not (below_start or too_old or too_much):
            return count
        total -= segment.size_bytes
    return len(segments)
