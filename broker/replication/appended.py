"""Waits for the replicas or the disk after records were appended to a partition that is led here."""

from __future__ import annotations

from anabranch.broker.replication.partition import Partition
from anabranch.protocol.errors import ErrorCode


class Appended:
    """Records that a leader appended in its present term, below ``end_offset``."""

    __slots__ = ("_all_in_sync", "_awaits_isr", "_term", "end_offset", "partition")

    def __init__(self, partition: Partition, end_offset: int, *, all_in_sync: bool, awaits_isr: bool = True) -> None:
        self.partition = partition
        self.end_offset = end_offset
        self._all_in_sync = all_in_sync
        self._awaits_isr = awaits_isr
        self._term = partition.term

    def outcome(self) -> ErrorCode | None:
        """NONE once the high watermark (``all_in_sync``) or the disk has reached the end, or an error. None before.

        Records may be committed on fewer replicas than ``min.insync.replicas``. Then the outcome is still None, because
        a producer that gets an error does not know whether its records are written. Unless it ``awaits_isr``, it is
        NOT_ENOUGH_REPLICAS_AFTER_APPEND. If another broker led in between, the outcome is an error, because other
        records may be at these offsets.
        """
        partition = self.partition
        if not partition.leads_in(self._term):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.keeps(self.end_offset, all_in_sync=self._all_in_sync):
            return ErrorCode.NONE
        if self._all_in_sync and not self._awaits_isr and partition.log.high_watermark >= self.end_offset:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.KAFKA_STORAGE_ERROR if partition.failed else None
