"""Messages, partitions and metadata in the form that confluent-kafka gives them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import total_ordering

from anabranch.client import ConsumerRecord
from anabranch.client.cluster import Cluster, TopicInfo
from anabranch.client.errors import ErrorCode
from anabranch.confluent.errors import KafkaError
from anabranch.protocol.batch_layout import Header
from anabranch.protocol.types import TopicPartition as Partition

OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, OFFSET_INVALID = -2, -1, -1000, -1001
TIMESTAMP_NOT_AVAILABLE, TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME = 0, 1, 2


@total_ordering
@dataclass(eq=False)
class TopicPartition:
    """A partition, with an offset or one of the ``OFFSET_`` constants. Topic and partition decide equality."""

    topic: str
    partition: int = -1
    offset: int = OFFSET_INVALID
    metadata: str | None = None
    leader_epoch: int | None = None
    error: KafkaError | None = dataclasses.field(default=None, init=False)

    @property
    def key(self) -> Partition:
        """The same partition for ``anabranch``."""
        return Partition(self.topic, self.partition)

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, TopicPartition) else NotImplemented

    def __lt__(self, other: TopicPartition) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash(self.key)


class Message:
    """A record that was read or delivered, or an error. Each part is a method."""

    __slots__ = ("_error", "_headers", "_key", "_leader_epoch", "_offset", "_place", "_timestamp", "_value")

    def __init__(
        self,
        topic: str | None = None,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: list[Header] | None = None,
        error: KafkaError | None = None,
        timestamp: tuple[int, int] = (TIMESTAMP_NOT_AVAILABLE, -1),
        partition: int = -1,
        offset: int = OFFSET_INVALID,
        leader_epoch: int | None = None,
    ) -> None:
        self._place = (topic, partition)
        self._offset = offset
        self._key = key
        self._value = value
        self._headers = headers
        self._timestamp = timestamp
        self._error = error
        self._leader_epoch = leader_epoch

    def error(self) -> KafkaError | None:
        """The error, or None for a record."""
        return self._error

    def topic(self) -> str | None:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[Header] | None:
        """Pairs of a name and bytes or None; None if there are none."""
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        """One of the ``TIMESTAMP_`` constants, and milliseconds since the Unix epoch."""
        return self._timestamp

    def leader_epoch(self) -> int | None:
        return self._leader_epoch

    def __len__(self) -> int:
        return len(self._value or b"")

    def __bool__(self) -> bool:
        return True


def timestamp_of(timestamp_ms: int, timestamp_type: int) -> tuple[int, int]:
    """The pair of ``Message.timestamp``, from Kafka's timestamp type: 0 CreateTime, 1 LogAppendTime."""
    return (TIMESTAMP_NOT_AVAILABLE if timestamp_ms < 0 else timestamp_type + 1), timestamp_ms


def message_of(record: ConsumerRecord[bytes | None, bytes | None]) -> Message:
    """A record that was read, as a message."""
    return Message(
        record.topic,
        record.value,
        record.key,
        list(record.headers) or None,
        None,
        timestamp_of(record.timestamp, record.timestamp_type),
        record.partition,
        record.offset,
        record.leader_epoch if record.leader_epoch >= 0 else None,
    )


@dataclass(frozen=True)
class BrokerMetadata:
    id: int
    host: str
    port: int


@dataclass(frozen=True)
class PartitionMetadata:
    id: int
    leader: int
    replicas: list[int]
    isrs: list[int]
    error: KafkaError | None


@dataclass(frozen=True)
class TopicMetadata:
    topic: str
    partitions: dict[int, PartitionMetadata]
    error: KafkaError | None


@dataclass(frozen=True)
class ClusterMetadata:
    """The answer of ``list_topics``."""

    cluster_id: str | None
    controller_id: int
    brokers: dict[int, BrokerMetadata]
    topics: dict[str, TopicMetadata]


def cluster_metadata(cluster: Cluster) -> ClusterMetadata:
    brokers = {node.id: BrokerMetadata(node.id, node.host, node.port) for node in cluster.nodes.values()}
    topics = {name: _topic_metadata(topic) for name, topic in cluster.topics.items()}
    return ClusterMetadata(cluster.cluster_id, cluster.controller_id, brokers, topics)


def _topic_metadata(topic: TopicInfo) -> TopicMetadata:
    partitions = {
        part.partition: PartitionMetadata(
            part.partition, part.leader, list(part.replicas), list(part.isr), _error(part.error)
        )
        for part in topic.partitions.values()
    }
    return TopicMetadata(topic.name, partitions, _error(topic.error))


def _error(code: ErrorCode) -> KafkaError | None:
    return None if code is ErrorCode.NONE else KafkaError(int(code), code.message)
