"""Decides when a member reports a position that other members wait for (KIP-253, Proposed Changes 7).

Each report costs the user's flush callback and a commit. So a position is reported only if it may end another member's
wait. The first position is reported. After that a higher position is reported if it is the partition's end, or is in a
newer leader epoch. Members wait for the end of a past leader epoch, or for the end of a partition that is marked for
deletion. Once a position in the present leader epoch was reported, no further report is needed. So a partition that was
split long ago costs nothing. A position that went back is always reported. No IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anabranch.protocol.types import TopicPartition


class ProcessedUpTo(NamedTuple):
    """The user's progress in a partition: all records below ``position`` are processed."""

    incarnation: int
    position: int
    leader_epoch: int
    """All records of older leader epochs are below ``position``; -1: not known."""
    at_end: bool
    """Whether ``position`` is the end for readers: the high watermark, or last stable offset (read_committed)."""
    is_marked: bool
    """Whether the partition is marked for deletion."""
    current_leader_epoch: int
    """The partition's leader epoch in the metadata."""


class _Report(NamedTuple):
    progress: ProcessedUpTo
    number: int


class Reports:
    """The positions that other members need from this member, and those it has reported, in one generation."""

    def __init__(self) -> None:
        self.asked: dict[TopicPartition, None] = {}
        """Partitions of this member that other members wait for."""
        self._reported: dict[TopicPartition, _Report] = {}
        self.number = 0
        """Number of reports so far."""

    def clear(self) -> None:
        """Begin another generation, in which nothing was reported yet."""
        self.asked = {}
        self._reported = {}

    def on_asked(self, known: Mapping[TopicPartition, tuple[int, int]], number: int) -> None:
        """Note the partitions that other members wait for: (incarnation, the coordinator's position or -1) of each.

        ``number`` was the value of ``self.number`` when the poll was sent. Later reports stay, because the coordinator
        did not have them when it made the answer.
        """
        self.asked = dict.fromkeys(known)
        for tp, (incarnation, position) in known.items():
            reported = self._reported.get(tp)
            if reported is None or reported.progress.incarnation != incarnation:
                continue  # a report of another incarnation does not count here
            if position != reported.progress.position and reported.number <= number:
                del self._reported[tp]  # the coordinator lost the report, or an older one arrived after it

    def is_due(self, tp: TopicPartition, now: ProcessedUpTo) -> bool:
        """Whether this position may end the wait of a member that does not know it yet."""
        if tp not in self.asked:
            return False
        reported = self._reported.get(tp)
        if reported is None or reported.progress.incarnation != now.incarnation:
            return True
        before = reported.progress
        if now.position <= before.position:
            return now.position < before.position
        if now.leader_epoch > before.leader_epoch:
            return True
        return now.at_end and (now.is_marked or before.leader_epoch < now.current_leader_epoch)

    def forget(self, tp: TopicPartition) -> None:
        """Forget the report of a partition, so that its position is reported again."""
        self._reported.pop(tp, None)

    def reported(self, tp: TopicPartition, progress: ProcessedUpTo) -> None:
        """Note that the position was sent."""
        self.number += 1
        self._reported[tp] = _Report(progress, self.number)
