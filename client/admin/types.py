"""What ``Admin`` takes and returns."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.client.net.cluster import Node, PartitionInfo
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.types import TopicPartition

ALL_BROKERS = -1
"""In the place of a broker id: the config default of all brokers."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 takes the broker's default. ``replica_assignments`` (by partition) replaces both counts."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    replica_assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    topic_id: uuid.UUID
    num_partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class TopicListing:
    name: str
    topic_id: uuid.UUID
    internal: bool


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic; ``partitions`` ascending. The layout is -1 where brokers know none (see ``TopicInfo``)."""

    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: tuple[PartitionInfo, ...]
    initial_partition_count: int = -1
    undeleted_partition_count: int = -1
    layout_version: int = -1
    ordered_delivery: bool = False

    @property
    def partition_count(self) -> int:
        """How many partitions are not marked for deletion."""
        return self.undeleted_partition_count if self.undeleted_partition_count > 0 else len(self.partitions)


class HeldBy(NamedTuple):
    """A group that has still to process ``on`` up to the end of a leader epoch; -1 where a number is not known."""

    group: str
    on: int
    epoch: int
    end_offset: int
    position: int
    waited_ms: int
    is_let_go: bool
    """It is not waited for any more: its order may be lost."""


class PartitionHold(NamedTuple):
    """How far a leader serves stock consumers of a topic with ``ordered.delivery.legacy.consumers=hold``."""

    leader_epoch: int
    served_epoch: int
    """The highest leader epoch of which they are given batches, -1: none."""
    waits: list[HeldBy]

    @property
    def is_held(self) -> bool:
        return self.served_epoch < self.leader_epoch


class PartitionLineage(NamedTuple):
    """Which partitions had a partition's keys before (KIP-253, 25301)."""

    lineage: Lineage | None
    """None: the partition does not exist."""
    over: int = -1
    """The last leader epoch of the last life of the number that was removed; -1: none was."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """How far a group is in a partition; ``is_waited_for``: some member must know it before it goes on elsewhere."""

    position: int
    """The next offset nobody has processed, -1 when the coordinator does not know."""
    is_waited_for: bool


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str
    controller_id: int
    nodes: tuple[Node, ...]


class ElectionType(enum.IntEnum):
    """Who may become a leader by ``elect_leaders``."""

    PREFERRED = 0
    """The first replica, when it is in sync."""
    UNCLEAN = 1
    """Where nobody leads, any replica that is live: records may be lost."""


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition on its way to other replicas. ``replicas`` are all of it, those being added and removed included."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class ConfigSource(enum.IntEnum):
    """Where a value comes from, Kafka's numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of a topic or broker. The value of a sensitive key is None."""

    name: str
    value: str | None
    source: int
    """A ``ConfigSource``, or a number this version does not know."""
    read_only: bool
    sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT_CONFIG


class ConfigOp(enum.IntEnum):
    """What an incremental change does to a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class HeldRecords:
    """What a leader keeps beyond ``retention.ms`` for a group that has yet to read some of it; "": which is not known.

    ``end_offset`` is exclusive. ``until_ms``: when it goes, whatever was read. Times in ms since 1970.
    """

    start_offset: int
    end_offset: int
    size_bytes: int
    since_ms: int
    until_ms: int
    group: str


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    size_bytes: int
    offset_lag: int
    is_future: bool
    held: HeldRecords | None = None
    """``ordered.delivery.retention.waits``; None at followers, and where nothing is held."""


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker; ``error`` is set when it is out of use."""

    path: str
    partitions: Mapping[TopicPartition, ReplicaSize]
    error: KafkaError | None = None
    total_bytes: int | None = None
    """Of the file system it is in (KIP-827). None: the broker does not say."""
    usable_bytes: int | None = None
    """What of it is free."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str
    """Empty when the coordinator is too old to say."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    """The assignor in use."""
    members: tuple[MemberDescription, ...]
    coordinator: Node


class UpgradeType(enum.IntEnum):
    """What an update of a feature may do (UpdateFeatures version 1)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    """Refused where something would be lost."""
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """The level that a feature is to have; below 1: it is to be deleted."""

    max_version_level: int
    type: UpgradeType = UpgradeType.UPGRADE


class LevelRange(NamedTuple):
    """Levels of a feature, both ends included."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """What one broker supports, and what is finalized in the cluster as far as it knows (KIP-584)."""

    supported: dict[str, LevelRange]
    finalized: dict[str, LevelRange]
    epoch: int | None
    """None while nothing is finalized."""
