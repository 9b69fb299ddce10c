"""Which partitions of a group wait for which others across a resize, from what brokers tell. Pure (KIP-253).

The consumer's own gate decides; this explains it from outside, for ``anabranch groups describe``. A position is the
next offset that the group has not processed; None where the coordinator does not know it, which blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from client.admin_types import PartitionEpochs
from protocol.key_placement import ancestors, descendants


class Wait(NamedTuple):
    """``partition`` delivers what comes after the resize once the group's position in ``waits_for`` is ``until``.

    ``is_blocked``: it has nothing else left to deliver. ``until`` None: that offset is not known yet.
    """

    partition: int
    waits_for: int
    because: str
    position: int | None
    until: int | None
    is_blocked: bool


@dataclass(frozen=True, slots=True)
class GroupOnTopic:
    """One group and one topic. Everything is by partition; ``epoch_ends`` by partition and leader epoch, exclusive."""

    initial_partition_count: int
    undeleted_partition_count: int
    partitions: list[int]
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    epochs: Mapping[int, PartitionEpochs] = field(default_factory=dict)
    epoch_ends: Mapping[tuple[int, int], int] = field(default_factory=dict)
    log_start_offsets: Mapping[int, int] = field(default_factory=dict)
    positions: Mapping[int, int] = field(default_factory=dict)

    def position(self, partition: int) -> int | None:
        known = self.positions.get(partition, -1)
        return known if known >= 0 else None

    def has_reached(self, partition: int, until: int | None) -> bool:
        """Whether nothing below ``until`` is left to process: what retention removed is not waited for."""
        if until is None:
            return False
        position = self.position(partition)
        return (position is not None and position >= until) or self.log_start_offsets.get(partition, -1) >= until

    def end_of(self, partition: int, epoch: int) -> int | None:
        """Where a leader epoch ended; None while it is the current one, whose end still moves."""
        if epoch < 0 or self.leader_epochs.get(partition, -1) <= epoch:
            return None
        end = self.epoch_ends.get((partition, epoch), -1)
        return end if end >= 0 else None


def questions(topic: GroupOnTopic) -> set[tuple[int, int]]:
    """The leader epochs, as (partition, epoch), whose ends ``waits`` needs."""
    asked = set()
    for epochs in topic.epochs.values():
        asked.add((epochs.created_from, epochs.leader_epoch_after_creation))
        asked.add((epochs.merged_into, epochs.leader_epoch_before_deletion))
    return {(partition, epoch) for partition, epoch in asked if partition in topic.partitions and epoch >= 0}


def waits(topic: GroupOnTopic) -> list[Wait]:
    """All of a group's waits in a topic, by partition."""
    return [wait for p in topic.partitions for wait in (*_creation_waits(topic, p), *_deletion_waits(topic, p))]


def _creation_waits(topic: GroupOnTopic, partition: int) -> Iterator[Wait]:
    """A partition waits for the old records of its keys in every ancestor, also where its parent is empty (hole 5)."""
    for split in [partition, *ancestors(partition, topic.initial_partition_count)]:
        if split < topic.initial_partition_count:
            return
        epochs = topic.epochs.get(split)
        source = epochs.created_from if epochs is not None else -1
        if source < 0:
            yield Wait(partition, ancestors(split, topic.initial_partition_count)[0], "split", None, None, True)
            continue
        assert epochs is not None
        until = topic.end_of(source, epochs.leader_epoch_after_creation)
        if not topic.has_reached(source, until):
            yield Wait(partition, source, "split", topic.position(source), until, True)


def _deletion_waits(topic: GroupOnTopic, partition: int) -> Iterator[Wait]:
    """A survivor waits, from the end of its lowest recorded epoch on, for every marked descendant's end."""
    initial = topic.initial_partition_count
    total = max(topic.partitions) + 1
    marked = [d for d in descendants(partition, initial, total) if d >= topic.undeleted_partition_count]
    recorded = [
        topic.epochs[d].leader_epoch_before_deletion
        for d in marked
        if d in topic.epochs and topic.epochs[d].merged_into == partition
    ]
    if not recorded:
        return
    barrier = topic.end_of(partition, min(recorded))
    position = topic.position(partition)
    is_there = barrier is not None and position is not None and position >= barrier
    for descendant in marked:
        epochs = topic.epochs.get(descendant)
        sealed = epochs.sealed_offset if epochs is not None and epochs.sealed_offset >= 0 else None
        if not topic.has_reached(descendant, sealed):
            yield Wait(partition, descendant, "merge", topic.position(descendant), sealed, is_there)
