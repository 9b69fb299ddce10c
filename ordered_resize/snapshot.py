"""What the znodes of one topic are at one moment. All that a resize is decided by."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from zk_schemas.partition_state import PartitionState
from zk_schemas.topic import TopicZnode


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One topic; ``states`` has each partition whose state znode was read."""

    topic: TopicZnode
    states: Mapping[int, PartitionState]
    unreadable: Collection[int] = ()
    """Partitions whose state is malformed or was taken away: what it was is not known."""

    def leader_epoch(self, partition: int) -> int:
        """The highest leader epoch that the partition ever had; -1: it never existed."""
        state = self.states.get(partition)
        removed = self.topic.last_leader_epochs.get(partition, -1)
        return removed if state is None else max(state.leader_epoch, removed)
