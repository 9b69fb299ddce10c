"""The client's view of the cluster: pure values, replaced as a whole by each Metadata response."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from anabranch.protocol.addresses import join_address
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from anabranch.protocol.sentinels import NO_COUNT, NO_EPOCH, NO_INCARNATION, NO_LAYOUT_VERSION, NO_LEADER, NO_NODE
from anabranch.protocol.types import ZERO_UUID, TopicPartition
from anabranch.zk_schemas.partition_state import PartitionLayout

NO_LAYOUT = PartitionLayout(NO_COUNT, NO_LAYOUT_VERSION)
"""The layout for a topic of a plain Kafka broker: batches of the topic name no layout."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker's address. A bootstrap server whose id is not known yet has an id below -1."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def __str__(self) -> str:
        return join_address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    leader: int
    """Broker id, -1 when there is none."""
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    incarnation: int = NO_INCARNATION
    """Distinguishes the partition from earlier and later partitions with its number. Higher is newer, -1 is unknown."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as last described. Layout counts and version are -1 if the broker sent none.

    A plain Kafka broker sends none. The topic id changes whenever partitions are removed. So only the incarnation
    distinguishes a topic from one created again under its name.
    """

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionInfo]
    internal: bool = False
    error: ErrorCode = ErrorCode.NONE
    initial_partition_count: int = NO_COUNT
    undeleted_partition_count: int = NO_COUNT
    layout_version: int = NO_LAYOUT_VERSION
    ordered_delivery: bool = False
    """``enable.ordered.delivery``: whether keys keep their order across resizes. If not: ``hash % count``."""
    incarnation: int = NO_INCARNATION
    """Distinguishes the topic from earlier and later topics of its name. Higher is newer, -1 is unknown."""
    layout: tuple[int, int] = field(init=False, repr=False, compare=False)
    """The partition counts at creation and now, the pair that ``key_placement.place`` takes."""

    def __post_init__(self) -> None:
        initial, undeleted = self.initial_partition_count, self.undeleted_partition_count
        if initial <= 0 or undeleted <= 0:
            initial = undeleted = len(self.partitions)
        elif not self.ordered_delivery:
            initial = undeleted
        object.__setattr__(self, "layout", (initial, undeleted))

    @property
    def named_layout(self) -> PartitionLayout:
        """The layout that a batch names in its Produce request if its records were placed by this description."""
        if self.undeleted_partition_count < 0 or self.layout_version < 0:
            return NO_LAYOUT
        return PartitionLayout(self.undeleted_partition_count, self.layout_version)

    def is_older_than(self, other: TopicInfo) -> bool:
        """Whether this description of the topic, or of an earlier topic of its name, is older than ``other``.

        A broker that lags answers with metadata from before a resize. With this metadata, newer records of a key would
        go to the key's old partition. Within one layout, partitions below the count are only created, and the other
        partitions are only removed.
        """
        if 0 <= self.incarnation != other.incarnation >= 0:
            return self.incarnation < other.incarnation
        if self.topic_id != other.topic_id and -1 in (self.incarnation, other.incarnation):
            return False
        if self.layout_version != other.layout_version:
            return self.layout_version < other.layout_version
        return self.layout_version >= 0 and bool(other.partitions) and self._is_before(other)

    def _is_before(self, other: TopicInfo) -> bool:
        """Whether here fewer counted partitions are created, or fewer marked partitions removed, than in ``other``."""
        counted = [sum(p < self.undeleted_partition_count for p in info.partitions) for info in (self, other)]
        return counted[0] < counted[1] or len(self.partitions) - counted[0] > len(other.partitions) - counted[1]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Brokers and topics. ``merge`` returns a new cluster; nothing is changed in place."""

    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    cluster_id: str | None = None
    controller_id: int = NO_NODE

    def leader(self, tp: TopicPartition) -> int:
        """Broker id of the partition's leader, -1 when unknown or none."""
        info = self.partition(tp)
        return info.leader if info is not None and info.leader in self.nodes else NO_LEADER

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic is not None else None

    def knows_removed(self, tp: TopicPartition, incarnation: int) -> bool:
        """Whether the topic exists, but not this incarnation of the partition (-1: no incarnation of it).

        If so, the topic has no partition of that number, or a newer partition. A topic that was deleted and created
        again has other incarnations too.
        """
        topic = self.topics.get(tp.topic)
        if topic is None or not topic.partitions:
            return False
        info = topic.partitions.get(tp.partition)
        return info is None or 0 <= incarnation < info.incarnation

    def is_resized(self, name: str) -> bool:
        """Whether the topic is known and was ever resized."""
        topic = self.topics.get(name)
        return topic is not None and topic.layout_version > 0

    def leader_epoch(self, tp: TopicPartition) -> int:
        info = self.partition(tp)
        return info.leader_epoch if info is not None else NO_EPOCH

    def merge(self, response: MetadataResponse, wanted: Iterable[str] | None) -> Cluster:
        """The cluster after ``response``.

        ``wanted`` are the topics that the client still needs. Other known topics are dropped. ``wanted`` None means
        that the response is for all topics and replaces all. A topic that does not exist any more keeps its layout and
        loses its partitions. A broker may answer from stale metadata. So a partition never goes back to an older leader
        epoch (KIP-320), and a topic never to an older layout.
        """
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        topics: dict[str, TopicInfo] = {}
        if wanted is not None:
            keep = set(wanted)
            topics.update((name, info) for name, info in self.topics.items() if name in keep)
        for described in response.topics:
            if described.name is None:
                continue
            known = self.topics.get(described.name)
            error = ErrorCode.of(described.error_code)
            if error is ErrorCode.NONE:
                topics[described.name] = _topic_info(described.name, described, known)
            elif known is None:
                topics[described.name] = TopicInfo(described.name, ZERO_UUID, {}, error=error)
            elif error in _TOPIC_GONE or not known.partitions:
                # The facts that order metadata by age are kept: this broker may not know the topic because it lags,
                # and the next response may be even older.
                topics[described.name] = replace(known, partitions={}, error=error)
            else:
                topics[described.name] = replace(known, error=error)
        return Cluster(nodes, topics, response.cluster_id or self.cluster_id, response.controller_id)


_TOPIC_GONE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)


def _topic_info(name: str, described: MetadataResponseTopic, known: TopicInfo | None) -> TopicInfo:
    partitions = {p.partition_index: _partition_info(p) for p in described.partitions}
    info = TopicInfo(
        name=name,
        topic_id=described.topic_id,
        partitions=dict(sorted(partitions.items())),
        internal=described.is_internal,
        initial_partition_count=described.initial_partition_count,
        undeleted_partition_count=described.undeleted_partition_count,
        layout_version=described.layout_version,
        ordered_delivery=described.ordered_delivery == 1,
        incarnation=described.topic_incarnation,
    )
    if known is None:
        return info
    newer, older = (known, info) if info.is_older_than(known) else (info, known)
    if not _same_topic(newer, older):
        return newer
    return replace(newer, partitions={p: _newer(part, older.partitions.get(p)) for p, part in newer.partitions.items()})


def _same_topic(a: TopicInfo, b: TopicInfo) -> bool:
    if a.incarnation >= 0 and b.incarnation >= 0:
        return a.incarnation == b.incarnation
    return a.topic_id == b.topic_id


def _newer(part: PartitionInfo, other: PartitionInfo | None) -> PartitionInfo:
    """The newer of two descriptions of a partition: ``part``, unless the leader epoch of the other is higher."""
    if other is None or other.incarnation != part.incarnation or not 0 <= part.leader_epoch < other.leader_epoch:
        return part
    return other


def _partition_info(p: MetadataResponsePartition) -> PartitionInfo:
    return PartitionInfo(
        partition=p.partition_index,
        leader=p.leader_id,
        leader_epoch=p.leader_epoch,
        replicas=tuple(p.replica_nodes),
        isr=tuple(p.isr_nodes),
        offline_replicas=tuple(p.offline_replicas),
        error=ErrorCode.of(p.error_code),
        incarnation=p.incarnation,
    )
