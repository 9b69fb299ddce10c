"""What the client knows of the cluster: pure values, replaced as a whole by each Metadata response."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from protocol.errors import ErrorCode
from protocol.generated.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from protocol.types import ZERO_UUID, TopicPartition


@dataclass(frozen=True, slots=True)
class Node:
    """A broker's address. Bootstrap servers whose id is not known yet have ids below -1."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


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


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as last described. Layout counts are -1 when the broker sent none (a plain Kafka broker)."""

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionInfo]
    internal: bool = False
    error: ErrorCode = ErrorCode.NONE
    initial_partition_count: int = -1
    undeleted_partition_count: int = -1
    layout_version: int = -1

    @property
    def layout(self) -> tuple[int, int]:
        """Partition count at creation and now, the pair ``key_placement.place`` takes."""
        if self.initial_partition_count > 0 and self.undeleted_partition_count > 0:
            return self.initial_partition_count, self.undeleted_partition_count
        count = len(self.partitions)
        return count, count


@dataclass(frozen=True, slots=True)
class Cluster:
    """Brokers and topics. ``merge`` returns the next one; nothing is changed in place."""

    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    cluster_id: str | None = None
    controller_id: int = -1

    def leader(self, tp: TopicPartition) -> int:
        """Broker id of the partition's leader, -1 when unknown or none."""
        info = self.partition(tp)
        return info.leader if info is not None and info.leader in self.nodes else -1

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic is not None else None

    def leader_epoch(self, tp: TopicPartition) -> int:
        info = self.partition(tp)
        return info.leader_epoch if info is not None else -1

    def merge(self, response: MetadataResponse, wanted: Iterable[str] | None) -> Cluster:
        """The cluster after ``response``.

        ``wanted`` are the topics the client still cares for: others it knew are dropped, as are those the broker
        says do not exist. None: the response was for all topics and replaces all. A partition never goes back to an
        older leader epoch while its topic id is the same (KIP-320): a broker may answer from stale metadata.
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
                topics[described.name] = _topic_info(described, known)
            elif error in _TOPIC_GONE or known is None or not known.partitions:
                topics[described.name] = TopicInfo(described.name, ZERO_UUID, {}, error=error)
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


def _topic_info(described: MetadataResponseTopic, known: TopicInfo | None) -> TopicInfo:
    same = known is not None and known.topic_id == described.topic_id
    partitions: dict[int, PartitionInfo] = {}
    for p in sorted(described.partitions, key=lambda p: p.partition_index):
        info = _partition_info(p)
        old = known.partitions.get(info.partition) if known is not None and same else None
        if old is not None and 0 <= info.leader_epoch < old.leader_epoch:
            info = old
        partitions[info.partition] = info
    assert described.name is not None
    return TopicInfo(
        name=described.name,
        topic_id=described.topic_id,
        partitions=partitions,
        internal=described.is_internal,
        initial_partition_count=described.initial_partition_count,
        undeleted_partition_count=described.undeleted_partition_count,
        layout_version=described.layout_version,
    )


def _partition_info(p: MetadataResponsePartition) -> PartitionInfo:
    return PartitionInfo(
        partition=p.partition_index,
        leader=p.leader_id,
        leader_epoch=p.leader_epoch,
        replicas=tuple(p.replica_nodes),
        isr=tuple(p.isr_nodes),
        offline_replicas=tuple(p.offline_replicas),
        error=ErrorCode.of(p.error_code),
    )
