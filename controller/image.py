"""What the active controller knows of the cluster: a copy of the znodes, changed only after they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from controller.states import PartitionStatus, ReplicaStatus
from protocol.types import TopicPartition
from zk_schemas.broker_registration import BrokerRegistration
from zk_schemas.partition_state import Layout, PartitionState
from zk_schemas.topic import TopicZnode


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
    """Partitions whose state znode is malformed: left alone until the topic is read again."""
    flush: int = 0

    def replicas(self, partition: int) -> list[int]:
        return self.znode.partitions[partition]

    def reassigning(self, partition: int) -> bool:
        return partition in self.znode.adding_replicas or partition in self.znode.removing_replicas

    def layout(self, partition: int) -> Layout:
        """The layout in force at a partition: its own, or the topic's when it was never resized."""
        state = self.partitions[partition].state
        if state is not None and state.layout is not None:
            return state.layout
        return Layout(self.znode.undeleted_partition_count, self.znode.layout_version)


@dataclass(slots=True)
class ClusterImage:
    """The whole cluster as the controller sees it."""

    controller_id: int
    controller_epoch: int
    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    shutting_down: set[int] = field(default_factory=set)
    failed: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Replicas whose disk failed, by broker, until it registers again."""
    topics: dict[str, TopicImage] = field(default_factory=dict)
    refused: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions of which a broker refused what it was told, for a reason that may pass."""
    deletions: dict[str, dict[tuple[int, int], ReplicaStatus]] = field(default_factory=dict)
    """Topics being deleted: ``{(partition, broker): status}``."""
    malformed: set[str] = field(default_factory=set)
    """Topics that cannot be read: what their partitions are is not known."""

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
        return not self.malformed and not any(topic.unreadable for topic in self.topics.values())

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic is not None else None

    def all_partitions(self) -> Iterator[tuple[TopicPartition, TopicImage, PartitionImage]]:
        """Every known partition in order of topic name and number."""
        for name in sorted(self.topics):
            topic = self.topics[name]
            for index in sorted(topic.partitions):
                yield TopicPartition(name, index), topic, topic.partitions[index]

    def led_partitions(self) -> Iterator[tuple[TopicPartition, TopicImage, PartitionImage, PartitionState]]:
        """Partitions with a state znode whose topic is not being deleted."""
        for tp, topic, partition in self.all_partitions():
            if partition.state is not None and tp.topic not in self.deletions:
                yield tp, topic, partition, partition.state

    def online(self, topic: str) -> bool:
        """Whether every partition of the topic has a leader."""
        found = self.topics.get(topic)
        return (
            found is not None
            and len(found.partitions) == len(found.znode.partitions)
            and all(partition.status is PartitionStatus.ONLINE for partition in found.partitions.values())
        )
