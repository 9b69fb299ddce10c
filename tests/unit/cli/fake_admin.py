"""An admin client over a topic in memory. Tests check the requests of commands, and the use of the responses."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from anabranch import ErrorCode, KafkaError, TopicPartition
from anabranch.client.admin.types import (
    ClusterDescription,
    ConfigEntry,
    ConfigSource,
    FeatureMetadata,
    FeatureUpdate,
    GroupDescription,
    GroupListing,
    GroupPosition,
    LogDirDescription,
    MemberDescription,
    PartitionLineage,
    ReplicaSize,
    ResizeGoal,
    RetainedOnReplica,
    TopicDescription,
    TopicListing,
    WithheldPartition,
)
from anabranch.client.cluster import Node, PartitionInfo
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.client.net.offsets import EpochEnd, OffsetAndTimestamp
from anabranch.ordered_resize.autoscale import Measured
from anabranch.ordered_resize.facts import Lineage
from anabranch.zk_schemas.partition_state import LineageEntry

TOPIC_ID = uuid.UUID(int=7)
SHRUNK: dict[str, Any] = {
    "undeleted": 4,
    "total": 6,
    "version": 2,
    "leader_epochs": {0: 2, 1: 2, 2: 2, 3: 2, 4: 1, 5: 1},
    "entries": {0: [(2, {4: 0})], 1: [(2, {5: 0})], 4: [(0, {0: 0})], 5: [(0, {1: 0})]},
    "epoch_end_offsets": {(0, 0): 70, (1, 0): 100, (0, 1): 90, (1, 1): 150, (4, 0): 30, (5, 0): 40},
    "ends": {4: (0, 30), 5: (10, 40)},
}
"""The state of a topic of 4 partitions that was split to 6 and merged to 4: partitions 4 and 5 are marked."""


@dataclass
class FakeAdmin:
    """One topic ``t`` led by broker 1. ``ends`` is (log start offset, high watermark) by partition."""

    initial: int = 4
    undeleted: int = 4
    total: int = 4
    version: int = 0
    ordered: bool = True
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    entries: Mapping[int, Sequence[tuple[int, Mapping[int, int]]]] = field(default_factory=dict)
    """The lineage by partition; a partition without a key has no entries."""
    times_ms: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """The times of entries by partition and leader epoch."""
    epoch_end_offsets: Mapping[tuple[int, int], int] = field(default_factory=dict)
    ends: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    kept_from: Mapping[int, int] = field(default_factory=dict)
    """By partition, the first offset at or after the requested time. A missing partition has no such offset."""
    configs: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    positions: Mapping[int, int] = field(default_factory=dict)
    owner_reports: Mapping[int, bool] = field(default_factory=dict)
    members: tuple[MemberDescription, ...] = ()
    refusal: KafkaError | None = None
    goal: ResizeGoal | None = None
    """The counts as the controller knows them; None if it does not know the question."""
    on_create_partitions: Any = None
    objection: KafkaError | None = None
    """The refusal of a dry run that spares stock producers."""
    advice: dict[str, str] = field(default_factory=dict)
    """By topic, the advice in the response when a count is accepted."""
    without_leader: frozenset[int] = frozenset()
    found_holds: Mapping[int, WithheldPartition] | KafkaError = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)
    asked_times: list[int] = field(default_factory=list)
    """The times in the requests for offsets by time."""
    written_at: Mapping[int, int] = field(default_factory=dict)
    """By partition, the time of the record at any offset. The leader of a partition without a key does not answer."""
    retained: Mapping[int, RetainedOnReplica] | None = field(default_factory=dict)
    """By partition, the records that the leader retains. With None the leader does not answer."""
    knows_positions: bool = True
    """Whether the coordinator knows the API of positions."""
    measured: Measured = field(default_factory=lambda: Measured(10 << 20, 2_000, 5_000))
    """The appends that autoscaling judges."""
    features: FeatureMetadata | None = None
    update_refusals: Mapping[str, KafkaError] = field(default_factory=dict)
    """Refused updates, by feature."""
    controller: int = 1

    def __call__(self, **config: Any) -> FakeAdmin:
        """Take the place of the class, so that every command gets this client."""
        return self

    async def __aenter__(self) -> FakeAdmin:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    async def list_topics(self) -> list[TopicListing]:
        return [TopicListing("t", TOPIC_ID, False)]

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        partitions = tuple(
            PartitionInfo(
                p,
                leader=-1 if p in self.without_leader else 1,
                leader_epoch=self.leader_epochs.get(p, 0),
                replicas=(1, 2),
                isr=() if p in self.without_leader else (1, 2),
                incarnation=100 + p,
            )
            for p in range(self.total)
        )
        described = TopicDescription(
            "t", TOPIC_ID, False, partitions, self.initial, self.undeleted, self.version, self.ordered
        )
        return dict.fromkeys(names, described)

    async def withheld_partitions(self, topic: TopicDescription) -> Mapping[int, WithheldPartition]:
        if isinstance(self.found_holds, KafkaError):
            raise self.found_holds
        return self.found_holds

    async def describe_configs(self, *, topics: Iterable[str], keys: Any = None) -> dict[str, dict[str, ConfigEntry]]:
        values = {
            "delete.latest.values.when.drained": "false",
            "delete.records.when.drained": "false",
            "cleanup.policy": "delete",
            "retention.ms": "604800000",
            "ordered.delivery.stock.consumers": "accept",
            "ordered.delivery.retention.waits": "false",
            "ordered.delivery.retention.waits.max.ms": "86400000",
        }
        entries = {
            name: ConfigEntry(
                name,
                self.configs.get(name, value),
                ConfigSource.DYNAMIC_TOPIC_CONFIG if name in self.configs else ConfigSource.DEFAULT_CONFIG,
                False,
                False,
            )
            for name, value in {**values, **self.configs}.items()
        }
        return dict.fromkeys(topics, entries)

    async def describe_loggers(self, broker: int) -> Any:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {broker}")

    async def alter_loggers(self, broker: int, levels: Any) -> None:
        await self.describe_loggers(broker)

    async def measured_appends(self, topic: str) -> Measured:
        return self.measured

    async def describe_features(self, *, broker: int | None = None) -> FeatureMetadata:
        if broker is not None:
            self.calls.append(("features of broker", broker, False))
        assert self.features is not None
        return self.features

    async def update_features(
        self, updates: Mapping[str, FeatureUpdate], *, validate_only: bool
    ) -> dict[str, KafkaError | None]:
        asked = {name: f"{update.max_version_level} {update.type.name}" for name, update in updates.items()}
        self.calls.append(("features", asked, validate_only))
        return {name: self.update_refusals.get(name) for name in updates}

    async def incremental_alter_configs(self, *, topics: Any, validate_only: bool = False) -> None:
        self.calls.append(("configs", topics, validate_only))

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
        spares_stock_producers: bool = False,
    ) -> dict[str, str]:
        self.calls.append(("partitions", dict(counts), validate_only))
        if self.refusal is not None:
            raise self.refusal
        if spares_stock_producers and self.objection is not None:
            raise self.objection
        if self.on_create_partitions is not None and not validate_only:
            self.on_create_partitions(self)
        return self.advice

    async def resize_goal(self, topic: str) -> ResizeGoal:
        if self.goal is None:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS)
        return self.goal

    async def describe_log_dirs(
        self, brokers: Iterable[int] = (1,), partitions: Iterable[TopicPartition] = ()
    ) -> dict[int, list[LogDirDescription]]:
        if self.retained is None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        replicas = {tp: ReplicaSize(0, 0, False, self.retained.get(tp.partition)) for tp in partitions}
        return {broker: [LogDirDescription("/logs", replicas)] for broker in brokers}

    async def lineages(self, asked: Iterable[TopicPartition], *, timeout_ms: int) -> Any:
        return {tp: PartitionLineage(self.lineage(tp.partition)) for tp in asked if tp.partition < self.total}

    def lineage(self, p: int) -> Lineage:
        entries = tuple(LineageEntry(*e) for e in self.entries.get(p, ()))
        return Lineage(self.leader_epochs.get(p, 0), -1, entries, self.times_ms.get(p, {}))

    async def epoch_ends(
        self, asked: Mapping[TopicPartition, int], *, within_ms: int
    ) -> dict[TopicPartition, EpochEnd]:
        return {tp: EpochEnd(epoch, self.epoch_end_offsets[tp.partition, epoch]) for tp, epoch in asked.items()}

    async def list_offsets(
        self, specs: Mapping[TopicPartition, str | int], *, within_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the ends, or ``kept_from`` for a look-up by time. No broker knows an end of (-1, -1)."""
        times = [spec for spec in specs.values() if not isinstance(spec, str)]
        if times:
            self.asked_times += times
            return {tp: OffsetAndTimestamp(self.kept_from.get(tp.partition, -1), -1, 0) for tp in specs}
        return {
            tp: OffsetAndTimestamp(self.ends.get(tp.partition, (0, 0))[spec == "latest"], -1, 0)
            for tp, spec in specs.items()
        }

    async def list_groups(self) -> list[GroupListing]:
        return [GroupListing(group, "consumer", "Stable") for group in self.groups]

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        node = Node(1, "localhost", 9092)
        return {g: GroupDescription(g, "Stable", "consumer", "range", self.members, node) for g in group_ids}

    async def list_group_offsets(self, group: str, partitions: Any = None) -> dict[TopicPartition, OffsetAndMetadata]:
        return {TopicPartition("t", p): OffsetAndMetadata(offset) for p, offset in self.groups[group].items()}

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.calls.append(("offsets", {group: {tp.partition: offset for tp, offset in offsets.items()}}, False))
        if self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group does not know this member")

    async def group_positions(self, group: str, partitions: Iterable[TopicPartition]) -> Any:
        if not self.knows_positions:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        return {
            tp: GroupPosition(self.positions.get(tp.partition, -1), False, self.owner_reports.get(tp.partition))
            for tp in partitions
        }

    async def describe_cluster(self) -> Any:
        return ClusterDescription("fake", self.controller, (Node(1, "localhost", 9092),))

    async def cluster(self, topics: Iterable[str]) -> None:
        """Replace ``LogReader.cluster``: no metadata is needed."""

    async def fetch(self, tp: TopicPartition, offset: int) -> Any:
        """Replace ``LogReader.fetch``."""
        if tp.partition not in self.written_at:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        records = [SimpleNamespace(offset=offset - 1, timestamp=1)]
        records += [SimpleNamespace(offset=offset, timestamp=self.written_at[tp.partition])]
        return SimpleNamespace(batches=[(SimpleNamespace(records=lambda: records), True)])
