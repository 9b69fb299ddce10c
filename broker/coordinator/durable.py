"""The state of groups that the offsets topic stores. Only ``replay`` changes it.

Live traffic replays a record once it is committed, and loading replays every record of the log. So a coordinator always
holds the state that its successor would load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION, NO_TIMESTAMP
from anabranch.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A committed offset. Timestamps are wall-clock milliseconds.

    ``expire_timestamp_ms`` is set only by commits with a retention of their own (OffsetCommit v2-4).
    ``incarnation`` is the incarnation of the partition. ``rewinds`` counts the group's commits that lowered the
    partition's offset. Only the flexible record version stores ``incarnation`` and ``rewinds``.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int | None = None
    incarnation: int = NO_INCARNATION
    rewinds: int = 0


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a stored generation, with its assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StableGeneration:
    """One stored generation of a group. If the generation has no members, the group is empty since the timestamp."""

    protocol_type: str | None
    generation_id: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp_ms: int
    members: dict[str, StoredMember] = field(default_factory=dict)

    def assignment_of(self, member_id: str, group_instance_id: str | None) -> bytes:
        """The stored assignment of a member, empty for an unknown member.

        A static member is also found by its instance id: its member id changes before the new id is stored.
        """
        member = self.members.get(member_id)
        if member is None and group_instance_id is not None:
            member = next((m for m in self.members.values() if m.group_instance_id == group_instance_id), None)
        return b"" if member is None else member.assignment


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A committed offset of a group; if ``value`` is None, the removal of that offset."""

    group_id: str
    partition: TopicPartition
    value: StoredOffset | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A generation of a group; if ``value`` is None, the group's removal. Offsets have tombstones of their own."""

    group_id: str
    value: StableGeneration | None


CoordinatorRecord: TypeAlias = OffsetRecord | GroupRecord


@dataclass(slots=True)
class DurableState:
    """Committed offsets and generations of every group in one partition of the offsets topic."""

    offsets: dict[str, dict[TopicPartition, StoredOffset]] = field(default_factory=dict)
    generations: dict[str, StableGeneration] = field(default_factory=dict)
    committers: dict[str, dict[str, int]] = field(default_factory=dict)
    """``{topic: {group: number of partitions of the topic in which the group has an offset}}``."""

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one committed record."""
        if isinstance(record, OffsetRecord):
            self._replay_offset(record)
        elif record.value is None:
            self.generations.pop(record.group_id, None)
        else:
            self.generations[record.group_id] = record.value

    def _replay_offset(self, record: OffsetRecord) -> None:
        if record.value is not None:
            of_group = self.offsets.setdefault(record.group_id, {})
            if record.partition not in of_group:
                self._count(record, 1)
            of_group[record.partition] = record.value
            return
        of_group = self.offsets.get(record.group_id, {})
        if record.partition in of_group:
            del of_group[record.partition]
            self._count(record, -1)
            if not of_group:
                del self.offsets[record.group_id]

    def _count(self, record: OffsetRecord, by: int) -> None:
        topic, group_id = record.partition.topic, record.group_id
        of_topic = self.committers.setdefault(topic, {})
        of_topic[group_id] = of_topic.get(group_id, 0) + by
        if not of_topic[group_id]:
            del of_topic[group_id]
            if not of_topic:
                del self.committers[topic]

    def group_ids(self) -> list[str]:
        """Every group with records in the log, in the order of the log."""
        return list(dict.fromkeys([*self.generations, *self.offsets]))

    def offsets_of(self, group_id: str) -> dict[TopicPartition, StoredOffset]:
        """The group's committed offsets; empty when it has none. Callers must not change them."""
        return self.offsets.get(group_id, {})
