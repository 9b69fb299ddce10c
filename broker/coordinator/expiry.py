"""Removes expired offsets (KIP-211) and offsets of deleted partitions.

An empty group is removed together with its last offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.broker.coordinator.deletions import PartitionDeletion
from anabranch.broker.coordinator.durable import CoordinatorRecord, GroupRecord, OffsetRecord, StoredOffset
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.outcome import CoordinatorOutcome, Now, Then, Turn
from anabranch.broker.coordinator.shard import Shard
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.protocol.subscriptions import CONSUMER_PROTOCOL_TYPE
from anabranch.protocol.types import TopicPartition

MAX_TOMBSTONES_PER_BATCH = 1_000


def expire_offsets(turn: Turn, group: Group) -> None:
    """Write tombstones for the group's expired offsets, and for the group itself when nothing of it is left."""
    committed = turn.shard.durable.offsets_of(group.group_id)
    expired = [
        tp
        for tp, offset in committed.items()
        if tp not in group.pending_commits and _is_expired(turn, group, tp, offset)
    ]
    _remove(turn, group, expired)


def remove_partitions(turn: Turn, group: Group, deleted: Mapping[TopicPartition, PartitionDeletion]) -> None:
    """Write tombstones for the group's offsets in deleted partitions; for a commit in flight, after that commit.

    If an offset was committed for a later incarnation than the deleted one, the offset stays (hole 20).
    """
    if group.state is GroupState.DEAD:
        return
    last = {tp: committed.incarnation for tp, committed in turn.shard.durable.offsets_of(group.group_id).items()}
    last.update({tp: commits[-1].incarnation for tp, commits in group.pending_commits.items()})
    gone = [tp for tp, incarnation in last.items() if tp in deleted and deleted[tp].covers(incarnation)]
    if gone:
        _remove(turn, group, gone)


def _is_expired(turn: Turn, group: Group, tp: TopicPartition, offset: StoredOffset) -> bool:
    """Whether an offset's retention is over (KIP-211). The retention begins at different times:

    - an empty group that once had members: when it became empty (at the commit, if that time was never stored);
    - a stable consumer group: at the commit, for topics to which no member subscribes;
    - a group of simple consumers: at the commit;
    - any other group: never.

    A commit with a retention of its own expires after that retention instead.
    """
    if group.protocol_type is None:
        since_ms = offset.commit_timestamp_ms
    elif group.state is GroupState.EMPTY:
        known = group.state_timestamp_ms != NO_TIMESTAMP
        since_ms = group.state_timestamp_ms if known else offset.commit_timestamp_ms
    elif group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
        if group.is_subscribed_to(tp.topic):
            return False
        since_ms = offset.commit_timestamp_ms
    else:
        return False
    if offset.expire_timestamp_ms is not None:
        return turn.now.wall_ms >= offset.expire_timestamp_ms
    return turn.now.wall_ms - since_ms >= turn.config.offsets_retention_ms


def _remove(turn: Turn, group: Group, partitions: list[TopicPartition]) -> None:
    records: list[CoordinatorRecord] = [OffsetRecord(group.group_id, tp, None) for tp in partitions]
    if _is_left_over(turn, group, len(partitions)):
        remove_group(turn, group, records)
        return
    for start in range(0, len(records), MAX_TOMBSTONES_PER_BATCH):
        turn.out.write(group.group_id, records[start : start + MAX_TOMBSTONES_PER_BATCH])


def _is_left_over(turn: Turn, group: Group, removed: int) -> bool:
    committed = turn.shard.durable.offsets_of(group.group_id)
    return (
        group.state is GroupState.EMPTY
        and removed >= len(committed)
        and not group.pending_members
        and not group.pending_commits
    )


def remove_group(turn: Turn, group: Group, tombstones: list[CoordinatorRecord], then: Then | None = None) -> None:
    """Remove an empty group and write ``tombstones`` for all of its offsets; ``then`` runs after the last batch.

    A group that never had a generation has no tombstone of its own.
    """
    group.transition_to(GroupState.DEAD, turn.now.wall_ms)
    group.wake_ms = None
    turn.shard.counted.forget(group.group_id)
    if group.group_id in turn.shard.durable.generations or group.generation_id > 0:
        tombstones = [*tombstones, GroupRecord(group.group_id, None)]
    for start in range(0, max(len(tombstones), 1), MAX_TOMBSTONES_PER_BATCH):
        batch = tombstones[start : start + MAX_TOMBSTONES_PER_BATCH]
        is_last = start + len(batch) == len(tombstones)
        turn.out.write(group.group_id, batch, (then or GroupRemoved(group)) if is_last else None)


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """The action once a group's tombstones are committed or lost: if they are lost, its durable state is used again."""

    group: Group

    def resolve(self, shard: Shard, error: ErrorCode, now: Now) -> CoordinatorOutcome:
        if shard.groups.get(self.group.group_id) is self.group:
            shard.rebuild(self.group.group_id, now.monotonic_ms)
        return CoordinatorOutcome()

    def overdue(self, shard: Shard, now: Now) -> tuple[CoordinatorOutcome, Then | None]:
        """No request waits; the group stays dead until its tombstones are known to be committed or lost."""
        return CoordinatorOutcome(), self
