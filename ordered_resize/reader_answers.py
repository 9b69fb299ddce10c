"""Coordinators' answers about groups (TopicReaders), as the decisions that wait for groups read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from anabranch.ordered_resize.progress import Reader
from anabranch.protocol.generated.topic_readers import TopicReadersResponseGroup, TopicReadersResponsePartition


def readers_in(groups: Iterable[TopicReadersResponseGroup]) -> Iterable[Reader]:
    """The groups of an answer to a leader. A position in it is the owner's report or else the commit."""
    for group in groups:
        positions = {p.partition_index: p.position for p in group.partitions if p.position >= 0}
        reporting = frozenset(p.partition_index for p in group.partitions if p.is_reported)
        yield Reader(group.group_id, group.life, positions, reporting)


# ---------------------------------------------------------------- answers to a controller


@dataclass(frozen=True)
class ReadingGroup:
    """A group that may read a topic, as ``coordinator`` answered."""

    coordinator: int
    answer: TopicReadersResponseGroup

    @cached_property
    def partitions(self) -> Mapping[int, TopicReadersResponsePartition]:
        return {partition.partition_index: partition for partition in self.answer.partitions}


Reports: TypeAlias = Callable[[TopicReadersResponsePartition], bool]
"""Whether the report of a partition's owner counts, not the commit."""


def commits_count(_partition: TopicReadersResponsePartition) -> bool:
    return False


def wanted_reports_count(partition: TopicReadersResponsePartition) -> bool:
    """A report counts if a member waits for the position, or may wait for it. Else the members keep no order."""
    return partition.need_position or partition.position >= 0


def live_reports_count(partition: TopicReadersResponsePartition) -> bool:
    """A report counts if a live member subscribes to the topic and may report."""
    return partition.is_reported


def reader_of(group: ReadingGroup, is_reported: Reports, only: int | None = None) -> Reader:
    """The group as ``ordered_resize`` judges it; with ``only``, what it has read of this partition."""
    answer, partitions = group.answer, group.partitions
    if only is not None:
        partitions = {only: partitions[only]} if only in partitions else {}
    reported = {p: found.position for p, found in partitions.items() if answer.is_settled and is_reported(found)}
    commits = {p: found.committed_offset for p, found in partitions.items() if found.committed_offset >= 0}
    known = {p: position for p, position in reported.items() if position >= 0}
    unreadable = answer.unreadable_member
    return Reader(
        answer.group_id,
        positions={p: at for p, at in commits.items() if p not in reported} | known,
        reporting=frozenset(reported),
        commits=commits,
        is_reading=answer.is_reading,
        has_committed=answer.has_committed,
        is_settled=answer.is_settled,
        missing=f"a subscription of member {unreadable} that can be read" if unreadable else "",
    )
