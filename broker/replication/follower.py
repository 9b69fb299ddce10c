"""The follower's half of replication: applies fetch responses to the local log (KIP-101, 279, 320, 595).

Nothing here suspends, so no other task runs between the check of the role and the change of the log. A large answer is
applied as several small answers, and the role is checked again for each.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator

import structlog

from anabranch.broker.log.pieces import pieces_of
from anabranch.broker.log.producer_files import NO_FILES, ProducerFiles
from anabranch.broker.replication.partition import Partition
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.fetch import EpochEndOffset, PartitionData
from anabranch.protocol.sentinels import NO_OFFSET

logger = structlog.get_logger(__name__)

_FIRST_BACKOFF_S = 0.02
WHOLE_ANSWER_BYTES = 4096
"""An answer of up to this many bytes is applied in one piece. It has some 60 batches at most."""


class FetchOutcome(enum.Enum):
    """The result of applying an answer for a partition."""

    NOTHING_NEW = enum.auto()
    MOVED = enum.auto()
    """The offset to fetch from, or the log start to report to the leader, has changed."""
    APPENDED = enum.auto()
    """Like MOVED, and records were appended that have to be synced."""
    RETRY_LATER = enum.auto()
    OUT_OF_RANGE = enum.auto()
    """The leader has to be asked for the start and end of its log."""
    FENCED = enum.auto()
    """The leader has a later epoch: wait for the controller's request."""


class FollowedPartition:
    """A partition that a fetcher follows in one leader epoch. In another epoch there is another object."""

    __slots__ = ("failures", "is_caught_up", "leader_epoch", "partition", "retry_at")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.failures = 0
        self.is_caught_up = False
        """Whether the log reaches the high watermark of the leader's last answer, as an in-sync replica's log does."""
        self.retry_at = -math.inf
        """The time of ``env.clock.monotonic()`` before which the partition is not fetched."""

    @property
    def is_current(self) -> bool:
        """Whether the partition still follows in this epoch."""
        return not self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    def retry(self, now: float, longest_s: float) -> None:
        """Pause the partition for a while, longer after each failure."""
        self.retry_at = now + min(longest_s, _FIRST_BACKOFF_S * 2**self.failures)
        self.failures = min(self.failures + 1, 16)

    def take(self, fetch_offset: int, data: PartitionData) -> FetchOutcome:
        """Apply the leader's answer to a fetch from ``fetch_offset`` on."""
        if data.error_code:
            return self._take_error(ErrorCode.of(data.error_code))
        log = self.partition.log
        if log.awaits_cut:
            return FetchOutcome.RETRY_LATER
        self.failures = 0
        if data.diverging_epoch is not None and data.diverging_epoch.epoch >= 0:
            self.is_caught_up = False
            self._truncate(data.diverging_epoch)
            return FetchOutcome.MOVED
        if log.log_end_offset != fetch_offset:
            return FetchOutcome.MOVED  # the log was truncated since the request
        records = data.records if isinstance(data.records, bytes | bytearray | memoryview) else b""
        has_records = len(records) > 0
        if has_records:
            log.append_as_follower(records)
        log.advance_high_watermark(data.high_watermark)
        self.is_caught_up = log.log_end_offset >= data.high_watermark
        starts_later = data.log_start_offset > log.log_start_offset
        if starts_later:
            self.raise_log_start(data.log_start_offset)
        if has_records and log.log_end_offset > fetch_offset:
            return FetchOutcome.APPENDED
        return FetchOutcome.MOVED if starts_later else FetchOutcome.NOTHING_NEW

    def _take_error(self, code: ErrorCode) -> FetchOutcome:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.is_caught_up = False
            return FetchOutcome.OUT_OF_RANGE
        if code is ErrorCode.FENCED_LEADER_EPOCH:
            logger.info("replica.fenced", partition=str(self.partition.key), leader_epoch=self.leader_epoch)
            return FetchOutcome.FENCED
        if code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH):
            logger.warning("replica.fetch_refused", partition=str(self.partition.key), error=code.name)
        return FetchOutcome.RETRY_LATER

    def _truncate(self, diverging: EpochEndOffset) -> None:
        """Truncate the log to the offset up to which it equals the leader's log.

        The leader names its largest epoch that is not above the follower's last epoch, and the end of the named epoch.
        If the follower has the named epoch, the log is truncated to the earlier of the two ends of this epoch. If not,
        the log is truncated to the end of the follower's largest epoch below the named epoch, and the next fetch asks
        again (KIP-279).
        """
        log = self.partition.log
        _, own_end = log.end_offset_for_epoch(diverging.epoch)
        if own_end < 0:
            own_end = log.log_end_offset
        self._truncate_to(min(own_end, diverging.end_offset, log.log_end_offset))

    def _truncate_to(self, offset: int) -> None:
        log = self.partition.log
        if offset < log.high_watermark:
            logger.warning(
                "replica.truncates_below_high_watermark",
                partition=str(self.partition.key),
                offset=offset,
                high_watermark=log.high_watermark,
            )
        logger.info("replica.truncates", partition=str(self.partition.key), offset=offset, end=log.log_end_offset)
        log.truncate_to(offset)

    def starts_again(self, leader_start: int, leader_end: int) -> bool:
        """Whether the log has no offset in the range of the leader's log."""
        log = self.partition.log
        return leader_end < log.log_start_offset or leader_start > log.log_end_offset

    def reset_to_range(self, leader_start: int, leader_end: int, producers: ProducerFiles = NO_FILES) -> None:
        """After a fetch out of range, bring the log into the leader's range: forward to its start, or back to its end.

        ``producers``: those whose records the leader has deleted. Without them, a batch that such a producer repeats
        would be written a second time once this replica leads.
        """
        log = self.partition.log
        has_nothing_of_it = leader_end < log.log_start_offset
        if leader_end < log.log_end_offset and not has_nothing_of_it:
            self._truncate_to(leader_end)
        if has_nothing_of_it or leader_start > log.log_end_offset:
            logger.warning("replica.starts_again", partition=str(self.partition.key), offset=leader_start)
            log.truncate_fully_and_start_at(leader_start, producers)
        elif leader_start > log.log_start_offset:
            self.raise_log_start(leader_start)

    def raise_log_start(self, offset: int) -> None:
        """Delete records that the leader has deleted. If its log starts above our log end, the next fetch fails."""
        log = self.partition.log
        offset = min(offset, log.log_end_offset)
        log.advance_high_watermark(offset)
        log.advance_log_start(offset)


def in_pieces(data: PartitionData) -> Iterator[PartitionData]:
    """Cut an answer into several smaller answers with the same content. Only the last has the leader's log start."""
    records = data.records
    if not isinstance(records, bytes | bytearray | memoryview) or len(records) <= WHOLE_ANSWER_BYTES:
        yield data
        return
    last: memoryview | None = None
    for piece in pieces_of(records):
        if last is not None:
            yield _with_records(data, last, log_start_offset=NO_OFFSET)
        last = piece
    yield _with_records(data, last, data.log_start_offset)


def _with_records(data: PartitionData, records: memoryview | None, log_start_offset: int) -> PartitionData:
    return PartitionData(
        partition_index=data.partition_index,
        error_code=data.error_code,
        high_watermark=data.high_watermark,
        log_start_offset=log_start_offset,
        diverging_epoch=data.diverging_epoch,
        records=records,
    )


def storage_failure(followed: FollowedPartition, error: Exception) -> None:
    """Log that the leader's answer could not be stored; a broken log fails the replica."""
    logger.error("replica.not_appended", partition=str(followed.partition.key), error=str(error))
    if followed.partition.log.is_broken:
        followed.partition.fail()
