"""``/brokers/topics/<topic>/partitions/<partition>/state``: leader, ISR and layout of one partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anabranch.protocol.sentinels import LEADER_DURING_DELETE, NO_LEADER
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.znode import MAX_EPOCH, MAX_PARTITIONS, MalformedZnodeError, ZnodeReader, encode_fields

MAX_STATE_BYTES = 2**20
"""The largest znode that ZooKeeper accepts by default."""


class PartitionLayout(NamedTuple):
    """The layout of a partition: the number of undeleted partitions, and how often that number was changed."""

    undeleted_partition_count: int
    layout_version: int


class Before(NamedTuple):
    """The state replaced by the last bump of a resize: the layout, and the last leader epoch under it."""

    layout: PartitionLayout
    leader_epoch: int


class LineageEntry(NamedTuple):
    """From leader epoch ``epoch`` on, a partition has keys that each of ``losers`` had up to the epoch given there."""

    epoch: int
    losers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's durable state. The znode's zkVersion is the partition epoch, its czxid the incarnation.

    ``leader`` is a broker id, ``NO_LEADER`` or ``LEADER_DURING_DELETE``. A partition with ``NO_LEADER`` and an empty
    ``isr`` was never led. ``layout`` None: the topic was never resized. ``initial_partition_count`` is the topic's
    initial count, on which the layout is based. A state with a layout has this count. ``floor`` is the newest epoch of
    an entry from which losers were dropped; -1 if none were dropped. ``lineage_times`` has the times at which entries
    were written, by the controller's clock, as {leader epoch: ms since 1970}. ``newer_log`` says which broker's log is
    newer than ZooKeeper's data (ADR 60); until a user removes the field, the partition has no leader and the topic is
    frozen.
    """

    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: list[int]
    layout: PartitionLayout | None = None
    initial_partition_count: int | None = None
    before: Before | None = None
    lineage: tuple[LineageEntry, ...] = ()
    lineage_times: dict[int, int] = field(default_factory=dict)
    floor: int = -1
    newer_log: str = ""
    version: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def path(topic: str, partition: int) -> str:
        return paths.partition_state(topic, partition)

    @classmethod
    def decode(cls, path: str, data: bytes) -> PartitionState:
        """Raises ``MalformedZnodeError``."""
        if len(data) > MAX_STATE_BYTES:
            raise MalformedZnodeError(path, "", f"{len(data)} bytes are more than the {MAX_STATE_BYTES} of a znode")
        reader = ZnodeReader.parse(path, data)
        layout = _layout(reader.object("layout")) if reader.has("layout") else None
        if layout is not None and not reader.has("initial_partition_count"):
            reader.fail("initial_partition_count", "is missing in a state with a layout")
        leader_epoch = reader.integer("leader_epoch", low=-1, high=MAX_EPOCH)
        return cls(
            version=reader.integer("version", 1, low=1),
            controller_epoch=reader.integer("controller_epoch", low=-1),
            leader=reader.integer("leader", low=LEADER_DURING_DELETE),
            leader_epoch=leader_epoch,
            isr=reader.integers("isr"),
            layout=layout,
            initial_partition_count=reader.optional_integer("initial_partition_count", low=1, high=MAX_PARTITIONS),
            before=_before(reader.object("before"), leader_epoch) if reader.has("before") else None,
            lineage=_lineage(reader, leader_epoch),
            lineage_times=reader.times("lineage_times"),
            floor=reader.integer("floor", -1, low=-1, high=leader_epoch),
            newer_log=reader.text("newer_log", ""),
            extra=reader.rest(),
        )

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": self.version,
            "leader_epoch": self.leader_epoch,
            "isr": self.isr,
        }
        if self.layout is not None:
            fields["layout"] = self.layout._asdict()
        if self.initial_partition_count is not None:
            fields["initial_partition_count"] = self.initial_partition_count
        if self.before is not None:
            fields["before"] = {"layout": self.before.layout._asdict(), "leader_epoch": self.before.leader_epoch}
        if self.lineage:
            fields["lineage"] = self.lineage
        if self.lineage_times:
            fields["lineage_times"] = self.lineage_times
        if self.floor >= 0:
            fields["floor"] = self.floor
        if self.newer_log:
            fields["newer_log"] = self.newer_log
        return encode_fields(fields, self.extra)

    @property
    def never_led(self) -> bool:
        """Whether the partition has a state but never had a leader. A partition that is only offline keeps its ISR."""
        return self.leader == NO_LEADER and not self.isr

    @property
    def being_removed(self) -> bool:
        """Whether the partition was drained after a merge and its removal has begun. Only the removal continues."""
        return self.leader == LEADER_DURING_DELETE

    def replace(self, **changes: Any) -> PartitionState:
        """A copy with some fields changed and the unknown fields kept."""
        return dataclasses.replace(self, **changes)


def _layout(reader: ZnodeReader) -> PartitionLayout:
    count = reader.integer("undeleted_partition_count", low=1, high=MAX_PARTITIONS)
    return PartitionLayout(count, reader.integer("layout_version", high=MAX_EPOCH))


def _before(reader: ZnodeReader, leader_epoch: int) -> Before:
    """The replaced state. Its leader epoch must be below the partition's."""
    return Before(_layout(reader.object("layout")), reader.integer("leader_epoch", low=-1, high=leader_epoch - 1))


def _lineage(reader: ZnodeReader, leader_epoch: int) -> tuple[LineageEntry, ...]:
    """The lineage. Entries ascend, each names a loser, and no entry's epoch is above the partition's leader epoch."""
    entries = tuple(LineageEntry(epoch, losers) for epoch, losers in reader.epoch_entries("lineage"))
    last = -1
    for index, (epoch, losers) in enumerate(entries):
        if epoch <= last:
            reader.fail(f"lineage.{index}", f"leader epoch {epoch} comes after {last}: leader epochs must ascend")
        if epoch > leader_epoch:
            reader.fail(f"lineage.{index}", f"leader epoch {epoch} is above the partition's, {leader_epoch}")
        if not losers:
            reader.fail(f"lineage.{index}", f"the entry of leader epoch {epoch} names no partition")
        if never := [q for q, f in losers.items() if f < 0]:
            reader.fail(f"lineage.{index}.{never[0]}", f"{losers[never[0]]} is not a leader epoch")
        last = epoch
    return entries
