"""What the active controller knows of the cluster: a copy of the znodes, changed only after they were."""

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
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.broker_registration import BrokerRegistration
from anabranch.zk_schemas.features import Features, FeaturesStatus
from anabranch.zk_schemas.partition_state import Layout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker; ``epoch`` is the czxid of its registration."""

    id: int
    epoch: int
    registration: BrokerRegistration


@dataclass(slots=True)
class PartitionImage:
    """One partition. ``epoch``: zkVersion of the state znode, ``incarnation``: its czxid; -1 while there is none.

    ``mzxid``: when the state was last written before this controller took office; -1 once it wrote the state itself.
    """

    status: PartitionStatus
    state: PartitionState | None = None
    epoch: int = -1
    incarnation: int = -1
    mzxid: int = -1
    acknowledged_epoch: int = -1
    """The leader epoch that its leader has acknowledged to this controller."""
    ending: Ending | None = None
    """Of a partition marked for deletion: what its leader has said."""

    def ending_of_leader(self) -> Ending:
        """What the present leader said; blank after a leader change. The partition has a state."""
        assert self.state is not None
        if self.ending is None or self.ending.leader_epoch != self.state.leader_epoch:
            self.ending = Ending(self.state.leader_epoch)
        return self.ending


@dataclass(slots=True)
class Ending:
    """What the leader of one epoch said of a partition marked for deletion; -1: not yet."""

    leader_epoch: int
    asked: set[OffsetQuestion] = field(default_factory=set)
    end_offset: int = -1
    """The log end once the leader took no records any more. Markers of transactions may follow it."""
    log_start_offset: int = -1
    is_processed: bool = False
    """No group has a live member that did not process all of it."""
    stop_sent: dict[int, int] = field(default_factory=dict)
    """``{broker: broker epoch}`` to whom StopReplica was sent."""
    stopped: set[int] = field(default_factory=set)
    """Brokers that deleted their replica."""
    deleted_end_offset: int = -1
    """The highest log end of the deleted replicas."""


class Hold(NamedTuple):
    """From which offset on a partition's records are held, and for whom; "" where that could not be learnt."""

    tp: TopicPartition
    leader_epoch: int
    offset: int
    group: str = ""


class StockReport(NamedTuple):
    """What a broker said of a topic's producers that name no layout, in this controller's monotonic seconds."""

    written_at: float
    misplaced_at: float | None
    """When a batch came last that the announced count places elsewhere."""


@dataclass(slots=True)
class Announcement:
    """A split that is announced to producers that name no layout; times in monotonic seconds."""

    count: int
    begun_at: float
    asked_at: float
    refreshes: bool = False
    """Every broker knows the count, and sends such producers for it."""


class OffsetQuestion(enum.Enum):
    """What the controller asks the leader of a partition marked for deletion."""

    END = "log end offset"
    START = "log start offset"


@dataclass(slots=True)
class TopicImage:
    """One topic. ``czxid`` tells it from another of the same name; ``flush``: number of the last batch of requests that
    told brokers about it.
    """

    name: str
    znode: TopicZnode
    version: int
    czxid: int
    partitions: dict[int, PartitionImage] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    """Partitions whose state znode is malformed, or was taken away: left alone until the topic is read again."""
    frozen: str = ""
    """What contradicts what in its znodes: it serves on, and nothing of it is resized. Empty: nothing does."""
    end_unsaid: bool = False
    """A step of its last resize was logged, the end of it was not."""
    wait_logged: str = ""
    """Why nothing of its resize can be done at the moment, as the log says; empty: something was done since."""
    flush: int = 0
    deletion_zxid: int = -1
    """The czxid of the request to delete the topic: later than its incarnations, earlier than those of a successor."""
    announcement: Announcement | None = None
    stock_reports: dict[int, StockReport] = field(default_factory=dict)
    """By broker, those that such a producer wrote to."""
    stock_unreported: set[int] = field(default_factory=set)
    """Brokers that were asked for that and have not answered."""
    append_window: AppendWindow | None = None
    """What is measured of the bytes appended to it; None: nobody wants to know."""

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
        """The states there are, in order of partition."""
        return [state for index in sorted(self.partitions) if (state := self.partitions[index].state) is not None]

    def has_layouts(self) -> bool:
        """Whether some state says that the topic was resized."""
        return any(state.layout is not None for state in self.states())

    @property
    def moves(self) -> Moves:
        """Losers and gainers of the resize under way, or of the last one."""
        return moves_of(self.znode)

    def layout(self, partition: int) -> Layout:
        """The layout in force at a partition: its own, or the first one when it was never resized."""
        state = self.state(partition)
        if state is not None and state.layout is not None:
            return state.layout
        return Layout(self.znode.initial_partition_count, 0)

    def told(self, partition: int) -> bool:
        """Whether the leader of the partition has acknowledged its present epoch, and with it its layout."""
        found = self.partitions.get(partition)
        state = found.state if found is not None else None
        return (
            found is not None
            and state is not None
            and state.leader >= 0
            and found.acknowledged_epoch == state.leader_epoch
        )


Led: TypeAlias = tuple[TopicPartition, TopicImage, PartitionImage, PartitionState]
"""A partition that was led and is there to be led."""


@dataclass(slots=True)
class ClusterImage:
    """The whole cluster as the controller sees it."""

    controller_id: int
    controller_epoch: int
    number: int = 0
    """How often this controller has read the cluster in its term."""
    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    shutting_down: set[int] = field(default_factory=set)
    failed: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Replicas whose disk failed, by broker, until it registers again."""
    topics: dict[str, TopicImage] = field(default_factory=dict)
    refused: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions of which a broker refused what it was told, for a reason that may pass."""
    deletions: dict[str, dict[tuple[int, int], ReplicaStatus]] = field(default_factory=dict)
    """Topics being deleted: ``{(partition, broker): status}``."""
    config_changes_seen: str = ""
    """The last notification of an altered config that was read; empty: there was none yet."""
    configs: dict[str, StoredConfig] = field(default_factory=dict)
    """Config znodes of topics and brokers, by path."""
    suspects: set[str] = field(default_factory=set)
    """States that this controller could not read, or set aside, at some time of its term, by path."""
    awaiting_first_leaders: dict[str, None] = field(default_factory=dict)
    """Topics of which some new partitions are to get their first leaders next."""
    features: Features = field(default_factory=lambda: Features(FeaturesStatus.DISABLED))
    """What is finalized."""
    features_epoch: int = -1
    """The zkVersion of ``/features``; -1: there is none."""
    features_problem: str = ""
    """Why ``/features`` cannot be read; empty: it can."""
    refused_brokers: dict[int, int] = field(default_factory=dict)
    """Registered brokers that do not support a finalized feature level, with their broker epochs."""
    malformed: dict[str, int] = field(default_factory=dict)
    """Topics that cannot be read, with the mzxid of their znode: what their partitions are is not known."""
    created: dict[str, int] = field(default_factory=dict)
    """Partitions of topics that were created at a request and are not read yet, by topic."""

    @property
    def partition_count(self) -> int:
        """The partitions of all topics, each counted once however many replicas it has."""
        return sum(len(topic.znode.partitions) for topic in self.topics.values()) + sum(self.created.values())

    def exists(self, topic: str) -> bool:
        """Whether the topic has a znode, whether or not it can be read."""
        return topic in self.topics or topic in self.malformed or topic in self.created

    def config(self, path: str) -> StoredConfig:
        """A config znode; an empty one where there is none."""
        return self.configs.get(path, NO_CONFIG)

    def live_ids(self) -> set[int]:
        """Brokers that may lead: registered and not shutting down."""
        return self.brokers.keys() - self.shutting_down

    def serving(self, tp: TopicPartition) -> dict[int, LiveBroker]:
        """Live brokers whose replica of the partition, if they have one, is not on a failed disk."""
        if not self.failed:
            return self.brokers
        return {id: broker for id, broker in self.brokers.items() if tp not in self.failed.get(id, ())}

    def electable(self, tp: TopicPartition) -> dict[int, LiveBroker]:
        """Those of ``serving`` that are not shutting down: they may lead the partition and join its ISR."""
        if not self.failed and not self.shutting_down:
            return self.brokers
        return {id: broker for id, broker in self.serving(tp).items() if id not in self.shutting_down}

    @property
    def complete(self) -> bool:
        """Whether every partition there is in ZooKeeper is known."""
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
        """Partitions that were led and are there to be led: neither they nor their topic are being removed."""
        for tp, topic, partition in self.all_partitions():
            if (led := self._led(tp, topic, partition)) is not None:
                yield led

    def led(self, tp: TopicPartition) -> Led | None:
        """The partition if it is one of ``led_partitions``."""
        topic = self.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        return None if topic is None or partition is None else self._led(tp, topic, partition)

    def _led(self, tp: TopicPartition, topic: TopicImage, partition: PartitionImage) -> Led | None:
        state = partition.state
        if state is None or state.never_led or state.being_removed or tp.topic in self.deletions:
            return None
        return tp, topic, partition, state

    def online(self, topic: str) -> bool:
        """Whether every partition of the topic that takes records has a leader."""
        found = self.topics.get(topic)
        if found is None:
            return False
        counted = map(found.partitions.get, range(found.znode.undeleted_partition_count - 1, -1, -1))
        return all(partition is not None and partition.status is PartitionStatus.ONLINE for partition in counted)
