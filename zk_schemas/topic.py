"""``/brokers/topics/<topic>``: a topic's id, assignment and layout."""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass, field
from typing import Any

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.znode import (
    MAX_EPOCH,
    MAX_PARTITIONS,
    NO_ID,
    MalformedZnodeError,
    ZnodeReader,
    encode_fields,
    format_id,
)

LAYOUT_FIELDS = ("initial_partition_count", "undeleted_partition_count", "layout_version", "last_leader_epochs")


@dataclass(frozen=True, slots=True)
class TopicZnode:
    """A topic as the controller keeps it.

    ``partitions`` maps each partition, from 0 without gaps, to its assigned replicas (broker ids, preferred first).
    Partitions from ``undeleted_partition_count`` on are marked for deletion. ``last_leader_epochs`` holds the last
    leader epoch of each partition that was removed at some time. ``last_offsets`` holds the end of such a partition's
    log, if that end is not 0. If the partition is created again, its log begins at that offset, and the entries stay in
    both maps. If another tool wrote the topic, id, counts or layout version may be missing: ``absent`` names these
    fields. They have a default here, and the controller then writes them. ``ordered_delivery`` is the value of
    ``enable.ordered.delivery`` that the first resize fixed when it began; None before that.
    ``previous_undeleted_partition_count`` is the count before the latest resize, finished or not; None if there was
    none. ``finished_layout_version`` is the layout version that every leader acknowledged last; None if there was no
    resize, or none that was recorded. ``wanted`` is the queued count of the next resize. The controller
    checks the relations between fields (initial <= undeleted <= partitions), because a manual edit may break them.
    """

    topic_id: uuid.UUID
    partitions: dict[int, list[int]]
    initial_partition_count: int
    undeleted_partition_count: int
    layout_version: int = 0
    last_leader_epochs: dict[int, int] = field(default_factory=dict)
    last_offsets: dict[int, int] = field(default_factory=dict)
    adding_replicas: dict[int, list[int]] = field(default_factory=dict)
    removing_replicas: dict[int, list[int]] = field(default_factory=dict)
    ordered_delivery: bool | None = None
    previous_undeleted_partition_count: int | None = None
    finished_layout_version: int | None = None
    wanted: int | None = None
    version: int = 3
    absent: frozenset[str] = field(default=frozenset(), compare=False)
    extra: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def path(topic: str) -> str:
        return paths.topic(topic)

    @classmethod
    def new(cls, topic_id: uuid.UUID, partitions: dict[int, list[int]]) -> TopicZnode:
        """A topic that was never resized."""
        return cls(topic_id, partitions, len(partitions), len(partitions))

    def base_offset(self, partition: int) -> int:
        """The first offset of the partition's log: the end of its predecessor's log; 0 if there is no predecessor."""
        return self.last_offsets.get(partition, 0)

    def has_predecessor(self, partition: int) -> bool:
        """Whether the partition was removed at some time."""
        return partition in self.last_leader_epochs

    @classmethod
    def decode(cls, path: str, data: bytes) -> TopicZnode:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        version = max(reader.integer("version", 3, low=1), 3)  # it is written with the fields of version 3
        partitions = reader.replicas("partitions")
        if list(partitions) != list(range(len(partitions))) or not partitions:
            raise MalformedZnodeError(path, "partitions", "partitions must be numbered from 0 without a gap")
        if lone := [index for index, replicas in partitions.items() if not replicas]:
            raise MalformedZnodeError(path, f"partitions.{lone[0]}", "a partition needs at least one replica")
        absent = frozenset(name for name in (*LAYOUT_FIELDS, "topic_id") if not reader.has(name))
        return cls(
            topic_id=reader.topic_id("topic_id"),
            partitions=partitions,
            initial_partition_count=reader.integer("initial_partition_count", len(partitions), low=1),
            undeleted_partition_count=reader.integer("undeleted_partition_count", len(partitions), low=1),
            layout_version=reader.integer("layout_version", 0),
            last_leader_epochs=reader.epochs("last_leader_epochs"),
            last_offsets=reader.offsets("last_offsets"),
            adding_replicas=reader.replicas("adding_replicas", {}),
            removing_replicas=reader.replicas("removing_replicas", {}),
            ordered_delivery=reader.optional_flag("ordered_delivery"),
            previous_undeleted_partition_count=reader.optional_integer(
                "previous_undeleted_partition_count", low=1, high=MAX_PARTITIONS
            ),
            finished_layout_version=reader.optional_integer("finished_layout_version", low=0, high=MAX_EPOCH),
            wanted=reader.optional_integer("wanted", low=1),
            version=version,
            absent=absent,
            extra=reader.rest(),
        )

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"version": self.version}
        if self.topic_id != NO_ID:
            fields["topic_id"] = format_id(self.topic_id)
        fields["partitions"] = self.partitions
        fields["adding_replicas"] = self.adding_replicas
        fields["removing_replicas"] = self.removing_replicas
        fields["initial_partition_count"] = self.initial_partition_count
        fields["undeleted_partition_count"] = self.undeleted_partition_count
        fields["layout_version"] = self.layout_version
        fields["last_leader_epochs"] = self.last_leader_epochs
        if self.last_offsets:
            fields["last_offsets"] = self.last_offsets
        if self.ordered_delivery is not None:
            fields["ordered_delivery"] = self.ordered_delivery
        if self.previous_undeleted_partition_count is not None:
            fields["previous_undeleted_partition_count"] = self.previous_undeleted_partition_count
        if self.finished_layout_version is not None:
            fields["finished_layout_version"] = self.finished_layout_version
        if self.wanted is not None:
            fields["wanted"] = self.wanted
        return encode_fields(fields, self.extra)

    def replace(self, **changes: Any) -> TopicZnode:
        """A copy with some fields changed and the unknown fields kept."""
        return dataclasses.replace(self, **changes)
