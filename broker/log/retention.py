"""Decides which segments retention deletes: too old, above the size limit, or wholly below the log's start. Pure.

With ``ordered.delivery.retention.waits``, records that a group has not read yet are retained: they stay longer than
``retention.ms``, by ``ordered.delivery.retention.waits.max.ms`` at most. Retention by size does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.broker.log.log_config import MAX_LONG, LogConfig

FILES_REMOVED_AT_ONCE = 64
SEGMENTS_DELETED_AT_ONCE = 32
"""These two limits bound the work on one log before other tasks run."""


NOTHING_RETAINED = MAX_LONG
"""The value of ``retained_from`` if nothing is retained."""


class SegmentFacts(NamedTuple):
    """The facts about a segment that retention needs. ``end_offset`` is the next segment's base, or the log's end."""

    end_offset: int
    size_bytes: int
    timestamp: int


class RetainLease(NamedTuple):
    """Retention by time keeps all records from ``offset`` on, ``until`` a time in monotonic seconds."""

    offset: int
    until: float
    group: str | None = None
    """The group that has not read the records; "" if not known; None if the controller has not named any yet."""


class RetainedSegments(NamedTuple):
    """Records that are older than ``retention.ms`` and stay because a group has not read all of them; times in ms."""

    start_offset: int
    end_offset: int
    """The offset after the last such record."""
    size_bytes: int
    since_ms: int
    """The time when retention would have removed the oldest of these records."""
    until_ms: int
    """The time when retention removes these records, read or not."""


def count_deletable(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    retained_from: int = NOTHING_RETAINED,
) -> int:
    """The number of the oldest segments that may be deleted. A segment with records above the high watermark stays.

    With ``cleanup.policy=delete`` a segment may be deleted if the log without it still has at least
    ``retention.bytes``, or if it is older than ``retention.ms``. If the segment has an offset at or above
    ``retained_from``, it has to be older than ``retention.ms`` plus the longest wait. Under any policy a segment may be
    deleted if it ends at or below the log's start. An empty last segment stays.
    """
    total = sum(segment.size_bytes for segment in segments)
    for count, segment in enumerate(segments):
        is_last = count == len(segments) - 1
        if segment.end_offset > high_watermark or (is_last and segment.size_bytes == 0):
            return count
        # The last segment is deleted by age alone: a record must not vanish because its batch is as large as the limit.
        below_start = not is_last and segment.end_offset <= log_start_offset
        waits_ms = config.ordered_delivery_retention_waits_max_ms if segment.end_offset > retained_from else 0
        too_old = config.deletes and 0 <= config.retention_ms < now_ms - segment.timestamp - waits_ms
        too_much = (
            config.deletes and config.retention_bytes >= 0 and total - segment.size_bytes >= config.retention_bytes
        )
        if not (below_start or too_old or too_much):
            return count
        total -= segment.size_bytes
    return len(segments)


def retained(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    retained_from: int,
) -> RetainedSegments | None:
    """The records that would be deleted if nothing were retained; None if there are none."""
    first = count_deletable(segments, config, now_ms, high_watermark, log_start_offset, retained_from)
    last = count_deletable(segments, config, now_ms, high_watermark, log_start_offset)
    if first >= last:
        return None
    retained = segments[first:last]
    start = max(log_start_offset, segments[first - 1].end_offset if first else log_start_offset)
    since_ms = retained[0].timestamp + config.retention_ms
    return RetainedSegments(
        start,
        retained[-1].end_offset,
        sum(segment.size_bytes for segment in retained),
        since_ms,
        since_ms + config.ordered_delivery_retention_waits_max_ms,
    )
