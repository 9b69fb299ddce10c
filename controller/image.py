"""The active controller's image of the cluster: a copy of the znodes. A znode is written before its copy changes."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from anabranch.controller.append_window import AppendWindow
from anabranch.controller.states import PartitionStatus, ReplicaStatus
from anabranch.controller.stored_config import NO_CONFIG, StoredConfig
from anabranch.ordered_resize.layout import Moves
from anabranch.ordered_resize.snapshot import moves_of
from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION, NO_OFFSET
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.broker_registration import BrokerRegistration
from anabranch.zk_schemas.features import Features, FeaturesStatus
from anabranch.zk_schemas.first_leader_epoch import FirstLeaderEpoch
from anabranch.zk_schemas.partition_state import PartitionLayout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker; ``epoch`` is the czxid of its registration."""

    id: int
    epoch: int
    registration: BrokerRegistration


@dataclass(slots=True)
class PartitionImage:
    """One partition. ``epoch`` is the zkVersion of its state znode, ``incarnation`` the czxid; -1 without a state.

    ``mzxid`` is the zxid of the state's last write when the state was read; 0 if that write may be a manual edit; -1
    once this controller has written the state.
    """

    status: PartitionStatus
    state: PartitionState | None = None
    epoch: int = NO_EPOCH
    incarnation: int = NO_INCARNATION
    mzxid: int = -1
    acknowledged_epoch: int = NO_EPOCH
    """The leader epoch that the partition's leader has acknowledged to this controller."""
    ending: Ending | None = None
    """The leader's reports, if the partition is marked for deletion."""

    def ending_of_leader(self) -> Ending:
        """The reports of the present leader, blank after a leader change. The partition has a state."""
        assert self.state is not None
        if self.ending is None or self.ending.leader_epoch != self.state.leader_epoch:
            self.ending = Ending(self.state.leader_epoch)
        return self.ending


@dataclass(slots=True)
class Ending:
    """Reports of the leader of one epoch about a partition marked for deletion. An offset of -1 is not reported yet."""

    leader_epoch: int
    asked: set[OffsetQuestion] = field(default_factory=set)
    end_offset: int = NO_OFFSET
    """The log end offset after the leader stopped taking records. Transaction markers may still be appended."""
    log_start_offset: int = NO_OFFSET
    is_processed: bool = False
    """Whether every live member of every group has processed the whole partition."""
    behind: tuple[int, ...] = ()
    """Brokers that had not deleted the records in time when the leader was asked to: their replicas are not in sync."""
    stop_sent: dict[int, int] = field(default_factory=dict)
    """The registrations to which StopReplica was sent: ``{broker: broker epoch}``."""
    stopped: set[int] = field(default_factory=set)
    """Brokers that deleted their replica."""
    deleted_end_offset: int = NO_OFFSET
    """The highest log end of the deleted replicas."""


class Leftover(NamedTuple):
    """A marked partition with records, or without records but perhaps not processed by all groups.

    A leader of a later epoch must not delete the records: in the later epoch, a grow may already count the partition
    again. An answer about another ``end_offset``, leader epoch or incarnation does not count.
    """

    tp: TopicPartition
    leader: int
    leader_epoch: int
    incarnation: int
    end_offset: int


class RetainOrder(NamedTuple):
    """A partition's records from ``offset`` on are retained for ``group``; ``group`` is empty if unknown."""

    tp: TopicPartition
    leader_epoch: int
    offset: int
    group: str = ""


class StockReport(NamedTuple):
    """A broker's report of a topic's producers that name no layout, in this controller's monotonic seconds."""

    written_at: float
    misplaced_at: float | None
    """The time of the last batch that the announced count places in another partition; None if there is none."""


@dataclass(slots=True)
class Announcement:
    """A split that is announced to producers that name no layout; times in monotonic seconds."""

    count: int
    begun_at: float
    asked_at: float
    refreshes: bool = False
    """Whether every broker knows the count and makes such producers refresh their metadata."""


class OffsetQuestion(enum.Enum):
    """A question to the leader of a partition marked for deletion."""

    END = "log end offset"
    START = "log start offset"


@dataclass(slots=True)
class TopicImage:
    """One topic. ``czxid`` distinguishes it from another topic of the same name.

    ``flush`` is the number of the last batch of requests about the topic.
    """

    name: str
    znode: TopicZnode
    version: int
    czxid: int
    partitions: dict[int, PartitionImage] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    """Partitions whose state znode is malformed or was removed. They are ignored until the topic is read again."""
    frozen: str = ""
    """The contradiction in the topic's znodes; empty if there is none. The topic is served, but not resized."""
    wait_logged: str = ""
    """The last logged reason why the resize cannot go on; empty after the next step of the resize."""
    flush: int = 0
    deletion_zxid: int = -1
    """The czxid of the deletion request.

    It is higher than the topic's incarnations, and lower than the incarnations of a later topic of the same name.
    """
    announcement: Announcement | None = None
    stock_reports: dict[int, StockReport] = field(default_factory=dict)
    """The reports of the brokers to which a stock producer wrote, by broker."""
    stock_unreported: set[int] = field(default_factory=set)
    """Brokers that were asked for a report and have not answered."""
    append_window: AppendWindow | None = None
    """The measurement of the bytes appended to the topic; None if the topic is not measured."""

    def adopt(self, znode: TopicZnode, version: int) -> None:
        """Take another znode. Add or remove partitions to match the znode's assignment."""
        self.znode, self.version = znode, version
        for p in sorted(znode.partitions.keys() - self.partitions.keys() - self.unreadable):
            self.partitions[p] = PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
        for p in self.partitions.keys() - znode.partitions.keys():
            del self.partitions[p]

    def replicas(self, partition: int) -> list[int]:
        return self.znode.partitions[partition]

    def reassigning(self, partition: int) -> bool:
        return partition in self.znode.adding_replicas or partition in self.znode.removing_replicas

    @property
    def moving(self) -> list[int]:
        """Partitions that are being reassigned."""
        return sorted(self.znode.adding_replicas.keys() | self.znode.removing_replicas.keys())

    def state(self, partition: int) -> PartitionState | None:
        """The stored state; None while there is none."""
        found = self.partitions.get(partition)
        return found.state if found is not None else None

    def states(self) -> list[PartitionState]:
        """The existing states, in order of partition."""
        return [state for index in sorted(self.partitions) if (state := self.partitions[index].state) is not None]

    def has_layouts(self) -> bool:
        """Whether some state has a layout, which means that the topic was resized."""
        return any(state.layout is not None for state in self.states())

    @property
    def moves(self) -> Moves:
        """Losers and gainers of the resize in progress, or of the last one."""
        return moves_of(self.znode)

    def layout(self, partition: int) -> PartitionLayout:
        """The layout in force at a partition: the stored layout, or without one the topic's first layout."""
        state = self.state(partition)
        if state is not None and state.layout is not None:
            return state.layout
        return PartitionLayout(self.znode.initial_partition_count, 0)

    def has_acknowledged(self, partition: int) -> bool:
        """Whether the partition's leader has acknowledged the present leader epoch, and so also the layout."""
        found = self.partitions.get(partition)
        state = found.state if found is not None else None
        return (
            found is not None
            and state is not None
            and state.leader >= 0
            and found.acknowledged_epoch == state.leader_epoch
        )


Led: TypeAlias = tuple[TopicPartition, TopicImage, PartitionImage, PartitionState]
"""A partition that has had a leader, with its topic and state.

Neither it nor its topic is being removed, and no log is known to be newer than its state."""


@dataclass(slots=True)
class ClusterImage:
    """The whole cluster, as this controller knows it."""

    controller_id: int
    controller_epoch: int
    number: int = 0
    """How often this controller has read the cluster in its term of office."""
    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    shutting_down: set[int] = field(default_factory=set)
    failed: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Replicas whose disk failed, by broker, until the broker serves them again or registers again."""
    topics: dict[str, TopicImage] = field(default_factory=dict)
    refused: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions for which a broker refused a request, if the reason may be temporary."""
    deletions: dict[str, dict[tuple[int, int], ReplicaStatus]] = field(default_factory=dict)
    """Topics being deleted: ``{(partition, broker): status}``."""
    config_changes_seen: str = ""
    """The last config change notification that was read; empty if there was none yet."""
    configs: dict[str, StoredConfig] = field(default_factory=dict)
    """Config znodes of topics and brokers, by path."""
    suspects: set[str] = field(default_factory=set)
    """Paths of the states that this controller could not read, or set aside, at some time of its term of office."""
    awaiting_first_leaders: dict[str, None] = field(default_factory=dict)
    """Topics with new partitions that get their first leaders next."""
    features: Features = field(default_factory=lambda: Features(FeaturesStatus.DISABLED))
    """The finalized features."""
    features_epoch: int = NO_EPOCH
    """The zkVersion of ``/features``; -1 if there is none."""
    features_problem: str = ""
    """The reason why ``/features`` cannot be read; empty if ``/features`` can be read."""
    first_leader_epoch: FirstLeaderEpoch = field(default_factory=lambda: FirstLeaderEpoch(0))
    """New partitions begin with this leader epoch or a later one: it is above all epochs of deleted topics."""
    first_leader_epoch_version: int = NO_EPOCH
    """The zkVersion of ``/first_leader_epoch``; -1 if it does not exist."""
    refused_brokers: dict[int, int] = field(default_factory=dict)
    """Registered brokers that do not support a finalized feature level, with their broker epochs."""
    malformed: dict[str, int] = field(default_factory=dict)
    """Topics whose znode cannot be read, with the znode's mzxid. The partitions of these topics are not known."""
    created: dict[str, int] = field(default_factory=dict)
    """Partition counts of topics that were created by request and are not read yet."""

    @property
    def partition_count(self) -> int:
        """Number of partitions of all topics, without regard to replicas."""
        return sum(len(topic.znode.partitions) for topic in self.topics.values()) + sum(self.created.values())

    def exists(self, topic: str) -> bool:
        """Whether the topic has a znode, readable or not."""
        return topic in self.topics or topic in self.malformed or topic in self.created

    def config(self, path: str) -> StoredConfig:
        """The config znode; if it is missing, an empty one."""
        return self.configs.get(path, NO_CONFIG)

    def live_ids(self) -> set[int]:
        """Brokers that may lead: registered and not shutting down."""
        return self.brokers.keys() - self.shutting_down

    def serving(self, tp: TopicPartition) -> dict[int, LiveBroker]:
        """Live brokers, except those whose replica of the partition is on a failed disk."""
        if not self.failed:
            return self.brokers
        return {id: broker for id, broker in self.brokers.items() if tp not in self.failed.get(id, ())}

    def electable(self, tp: TopicPartition) -> dict[int, LiveBroker]:
        """Brokers of ``serving`` that are not shutting down. They may lead the partition and join its ISR."""
        if not self.failed and not self.shutting_down:
            return self.brokers
        return {id: broker for id, broker in self.serving(tp).items() if id not in self.shutting_down}

    @property
    def complete(self) -> bool:
        """Whether every partition in ZooKeeper is known."""
        return not self.malformed and not any(topic.unreadable or topic.frozen for topic in self.topics.values())

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic is not None else None

    def all_partitions(self) -> Iterator[tuple[TopicPartition, TopicImage, PartitionImage]]:
        """Every known partition in order of topic name and number."""
        for name in sorted(self.topics):
            topic = self.topics[name]
            for index in sorted(topic.partitions):
                yield TopicPartition(name, index), topic, topic.partitions[index]

    def led_partitions(self) -> Iterator[Led]:
        """Partitions that have had a leader and may get another: they are not being removed, and no log is newer."""
        for tp, topic, partition in self.all_partitions():
            if (led := self._led(tp, topic, partition)) is not None:
                yield led

    def led(self, tp: TopicPartition) -> Led | None:
        """The partition if it is among ``led_partitions``."""
        topic = self.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        return None if topic is None or partition is None else self._led(tp, topic, partition)

    def _led(self, tp: TopicPartition, topic: TopicImage, partition: PartitionImage) -> Led | None:
        state = partition.state
        if state is None or state.never_led or state.being_removed or state.newer_log or tp.topic in self.deletions:
            return None
        return tp, topic, partition, state

    def online(self, topic: str) -> bool:
        """Whether every partition of the topic that takes records has a leader."""
        found = self.topics.get(topic)
        if found is None:
            return False
        counted = map(found.partitions.get, range(found.znode.undeleted_partition_count - 1, -1, -1))
        return all(partition is not None and partition.status is PartitionStatus.ONLINE for partition in counted)
