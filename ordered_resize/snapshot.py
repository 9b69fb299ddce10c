"""A controller's view of one topic at one moment. The steps of a resize are decided from this view alone."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from anabranch.ordered_resize.layout import Layout, Moves, moves
from anabranch.protocol.sentinels import NO_EPOCH, NO_TIMESTAMP
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import NO_ID


def moves_of(topic: TopicZnode) -> Moves:
    """Losers and gainers of the resize in progress, or else of the last resize."""
    after, before = topic.undeleted_partition_count, topic.previous_undeleted_partition_count
    return moves(topic.initial_partition_count, after if before is None else before, after)


class Phase(enum.Enum):
    """The phase of one partition. ``next_step`` has the phases with a step that is due. The others wait."""

    SETTLED = "has the layout, and its leader has answered"
    UNLED = "was never led since the topic was created"
    BUMP = "lacks the layout, and gains no keys"
    BEHIND = "gains keys; the leader of a loser has not answered"
    GAIN = "gains keys; the leaders of all losers have answered"
    CREATE = "gains keys, but does not exist; the leaders of all losers have answered"
    LEADERLESS = "is to be created, but none of its replicas may lead"
    UNANSWERED = "has the layout; its leader has not answered"
    DRAINING = "is closed, and is kept until it is drained and all higher partitions are removed"
    LEAVING = "is being removed: replicas are being deleted"
    DELETED = "is being removed: every replica is deleted"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The znodes of one topic, and the answers of brokers to this controller.

    ``states`` has each partition whose state znode was read.
    """

    topic: TopicZnode
    states: Mapping[int, PartitionState]
    unreadable: Collection[int] = ()
    """Partitions whose state is not known, because it is malformed or was removed."""
    frozen: str = ""
    """The reason why ``judge_found`` froze the topic; empty if the topic is not frozen."""
    controller_epoch: int = 0
    first_leader_epoch: int = 0
    """New partitions begin with this leader epoch or a later one: it is above all epochs of deleted topics."""
    answered: Collection[int] = ()
    """Partitions whose leader has answered that it leads in the stored leader epoch. So it has the stored layout."""
    electable: Mapping[int, list[int]] = field(default_factory=dict)
    """For partitions that do not exist yet: replicas that may lead, preferred first."""
    drained: Collection[int] = ()
    """Partitions that every group has processed to the end, or that are empty and have no owner (rule 14)."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """For partitions in ``drained``: the log end that the leader reported, if known."""
    deleted: Mapping[int, int] = field(default_factory=dict)
    """Partitions whose replicas are all deleted, with the highest reported log end."""
    now_ms: int = NO_TIMESTAMP
    """The time of the next steps, in ms since 1970; -1 if it is not known."""
    new_topic_id: uuid.UUID = NO_ID
    """The topic id that the next removal sets, so that clients accept the lower count."""

    def leader_epoch(self, partition: int) -> int:
        """The highest leader epoch that the partition ever had; -1: the partition never existed."""
        state = self.states.get(partition)
        removed = self.topic.last_leader_epochs.get(partition, NO_EPOCH)
        return removed if state is None else max(state.leader_epoch, removed)

    def stored(self, partition: int) -> StoredLayout | None:
        """The layout in force at a partition; None: the partition does not exist."""
        state = self.states.get(partition)
        if state is None:
            return None
        return state.layout or StoredLayout(self.topic.initial_partition_count, 0)

    def has_goal(self, partition: int) -> bool:
        """Whether the partition has the layout that is the topic's goal."""
        return self.stored(partition) == Layout.goal(self.topic).stored

    def has_confirmed_goal(self, partition: int) -> bool:
        """Whether the partition has the goal stored, and its leader has answered."""
        return self.has_goal(partition) and partition in self.answered

    @property
    def is_stored(self) -> bool:
        """Whether every counted partition, and every loser that exists, has the layout."""
        losers = self.moves.losers & self.states.keys()
        return all(self.has_goal(p) for p in {*range(self.topic.undeleted_partition_count), *losers})

    @property
    def moves(self) -> Moves:
        """Losers and gainers of the resize in progress, or else of the last resize."""
        return moves_of(self.topic)
