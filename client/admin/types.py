"""The types of ``Admin``'s arguments and results."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.client.arguments import judging
from anabranch.client.cluster import Node, PartitionInfo
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.request_kinds import UpgradeType
from anabranch.protocol.sentinels import NO_COUNT, NO_EPOCH, NO_LAYOUT_VERSION, NO_NODE
from anabranch.protocol.types import TopicPartition

ALL_BROKERS = -1
"""Instead of a broker id: the config default of all brokers."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 takes the broker's default. ``replica_assignments`` (by partition) replaces both counts."""

    name: str
    num_partitions: int = NO_COUNT
    replication_factor: int = NO_COUNT
    configs: Mapping[str, str | None] = field(default_factory=dict)
    replica_assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


NewTopic.__init__ = judging({})(NewTopic.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    topic_id: uuid.UUID
    num_partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic in the list of all topics."""

    name: str
    topic_id: uuid.UUID
    internal: bool


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, with ``partitions`` in ascending order.

    Layout numbers are -1 if brokers send none (see ``TopicInfo``).
    """

    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: tuple[PartitionInfo, ...]
    initial_partition_count: int = NO_COUNT
    undeleted_partition_count: int = NO_COUNT
    layout_version: int = NO_LAYOUT_VERSION
    ordered_delivery: bool = False

    @property
    def partition_count(self) -> int:
        """Number of partitions that are not marked for deletion."""
        return self.undeleted_partition_count if self.undeleted_partition_count > 0 else len(self.partitions)


class WithheldFor(NamedTuple):
    """A group that has not yet processed partition ``on`` up to the end of a leader epoch. Unknown numbers are -1."""

    group: str
    on: int
    epoch: int
    end_offset: int
    position: int
    waited_ms: int
    is_let_go: bool
    """Whether the leader no longer waits for the group, which may then get keys out of order."""


class WithheldPartition(NamedTuple):
    """The leader epochs of a partition that stock consumers get (``ordered.delivery.stock.consumers=withhold``)."""

    leader_epoch: int
    served_epoch: int
    """The highest leader epoch whose batches stock consumers get; -1 if there is none."""
    waits: list[WithheldFor]

    @property
    def is_withheld(self) -> bool:
        return self.served_epoch < self.leader_epoch


class PartitionLineage(NamedTuple):
    """The partitions that had a partition's keys before (KIP-253, API 25301)."""

    lineage: Lineage | None
    """None if the partition does not exist."""
    over: int = NO_EPOCH
    """The last leader epoch of the latest removed partition with this number; -1 if no such partition was removed."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group's position in a partition. ``is_waited_for``: a member of the group waits for it."""

    position: int
    """The first offset that is not processed; -1 if the coordinator does not know the position."""
    is_waited_for: bool
    owner_reports: bool | None = None
    """Whether the owner reports positions. False for a stock client, whose commits are its positions. None: no owner.

    It is also None if the broker does not send this.
    """


@dataclass(frozen=True, slots=True)
class ControllerDescription:
    """A running controller; ``release`` is None if it is not known."""

    id: int
    host: str
    port: int
    release: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster: its brokers and its controllers."""

    cluster_id: str
    controller_id: int
    """The broker that takes the requests for the controller; -1 if there is none."""
    nodes: tuple[Node, ...]
    controller: ControllerDescription | None = None
    """The process that is the active controller; None if none is active, or if the brokers are not Anabranch's."""
    reports_controller: bool = False
    """Whether the brokers report the active controller."""
    standby_controllers: tuple[ControllerDescription, ...] | None = None
    """The processes that take over if the active controller ends; None if the brokers do not report them."""

    @property
    def active_controller_id(self) -> int:
        """The active controller's id, -1 if none is active. ``controller_id`` if brokers do not report the process."""
        if not self.reports_controller:
            return self.controller_id
        return NO_NODE if self.controller is None else self.controller.id


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition that moves to other replicas. ``replicas`` includes those being added and removed."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class ConfigSource(enum.IntEnum):
    """The source of a config value, with Kafka's numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


class ConfigSynonym(NamedTuple):
    """A value that is set for a key or a synonym of it; ``source`` as in ``ConfigEntry``."""

    name: str
    value: str | None
    source: int


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
    synonyms: tuple[ConfigSynonym, ...] = ()
    """The values from which this value was chosen, by priority. Deleting a value brings the next into force.

    The last value is the default.
    """

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT_CONFIG


class ConfigOp(enum.IntEnum):
    """The operation of an incremental change on a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class RetainedOnReplica:
    """Records that a leader keeps beyond ``retention.ms``, because a group has not read all of them.

    ``group`` is empty if it is not known. ``end_offset`` is exclusive. At ``until_ms`` the records are removed, even
    unread ones. Times are milliseconds since 1970.
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
    retained: RetainedOnReplica | None = None
    """Records retained by ``ordered.delivery.retention.waits``; None for followers, and if nothing is retained."""


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker; ``error`` is set when the directory is out of use."""

    path: str
    partitions: Mapping[TopicPartition, ReplicaSize]
    error: KafkaError | None = None
    total_bytes: int | None = None
    """The size of its file system (KIP-827); None if the broker does not send it."""
    usable_bytes: int | None = None
    """The free space of its file system."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A consumer group in the list of all groups."""

    group_id: str
    protocol_type: str
    state: str
    """Empty if the coordinator is too old to send the state."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    awaited_ms: int | None = None
    """In a rebalance, how long the group has waited for the member to join again.

    None if the group does not wait, or if the broker does not send this time.
    """
    wait_left_ms: int | None = None
    """The time after which the group continues without an awaited member."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group with its members and its coordinator."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    """The assignor in use."""
    members: tuple[MemberDescription, ...]
    coordinator: Node


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """The requested level of a feature. A level below 1 deletes the feature."""

    max_version_level: int
    type: UpgradeType = UpgradeType.UPGRADE


class ResizeGoal(NamedTuple):
    """The partition count of the last resize, done or not, and the count of the queued resize, if there is one."""

    partitions: int
    queued: int | None


class LevelRange(NamedTuple):
    """Levels of a feature, both ends included."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """The features that one broker supports, and the finalized features that this broker has read (KIP-584)."""

    supported: dict[str, LevelRange]
    finalized: dict[str, LevelRange]
    epoch: int | None
    """None while nothing is finalized."""
