"""OffsetCommit 2-8, OffsetFetch 1-8, OffsetDelete 0.

OffsetCommit v2-4 carry a retention of their own, v6 leader epochs, v7 ``group.instance.id``. v8 carries KIP-253's
incarnation in tag 10256; tag 10260 marks the offset as a report. OffsetFetch v2 adds a top-level error,
and null topics stand for all topics, v7 ``require_stable``, v8 many groups at once and incarnations.

An offset committed without an incarnation counts for the incarnation that the broker knows. An offset of an earlier
incarnation is not valid for the present partition, and is neither stored nor returned (hole 20). Such an offset shows
only that the group has read the partition: if the partition was removed and created again, its new first offset is
returned instead. A commit for a later, unknown incarnation is refused with a retriable error until this broker's
metadata has that incarnation. If a forged incarnation were stored, every later commit would be refused as a commit for
an earlier incarnation.

A stock consumer that reads a topic while it is deleted and created again still commits its positions in the deleted
topic. Their leader epochs show that: they are below those of the present topic. Such an offset is not stored.

Transactional commits are not supported. If they were, the offsets of an open transaction would count as pending here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TypeAlias

from anabranch.broker.coordinator.awaited_positions import OwnerReport
from anabranch.broker.coordinator.broker_services import IncarnationOf, Topics
from anabranch.broker.coordinator.durable import CoordinatorRecord, OffsetRecord, StoredOffset
from anabranch.broker.coordinator.fencing import check_generation
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.outcome import CoordinatorOutcome, Now, Then, Turn, is_committed
from anabranch.broker.coordinator.position_owners import Processed, on_committed, take_processed
from anabranch.broker.coordinator.responses import offset_append_error
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.coordinator.token import Token
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from anabranch.protocol.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from anabranch.protocol.generated.offset_fetch import (
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION, NO_OFFSET, NO_RETENTION_TIME
from anabranch.protocol.subscriptions import CONSUMER_PROTOCOL_TYPE
from anabranch.protocol.types import TopicPartition

Exists: TypeAlias = Callable[[str, int], bool]
"""Whether a partition (topic, index) exists."""
Checked: TypeAlias = list[tuple[str, list[tuple[int, ErrorCode]]]]
"""The partitions of a commit by topic, each with the error of its check."""


# ---------------------------------------------------------------- commit


def commit_offsets(turn: Turn, token: Token, request: OffsetCommitRequest, topics: Topics) -> None:
    """Write the offsets and answer once they are committed; each partition has an error of its own.

    A stock consumer commits offsets of partitions that were merged away, or of a deleted topic, until it rebalances.
    Such a commit is acknowledged but not stored: if it were refused, aiokafka would not rebalance.
    """
    group, error = committing_group(turn, request)
    if error is not ErrorCode.NONE or group is None:
        turn.out.reply(token, refuse_commit(request, error))
        return
    accepted: list[CoordinatorRecord] = []
    partitions: list[TopicPartition] = []
    processed = Processed(request.generation_id, request.member_id, {})
    checked: Checked = []
    for topic in request.topics:
        errors: list[tuple[int, ErrorCode]] = []
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            known = _newest_incarnation(turn.shard, group, tp, topics.incarnation)
            error = _check_partition(turn, topic.name, partition, topics, known)
            is_foreign = _is_of_deleted_topic(tp, partition, topics)
            if is_foreign and request.generation_id < 0:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if error is ErrorCode.NONE and topics.contains(*tp) and not is_foreign:
                committed = _committed(turn, request, partition, known, _newest_commit(turn.shard, group, tp))
                accepted.append(OffsetRecord(group.group_id, tp, committed))
                partitions.append(tp)
                group.commit_started(tp, committed)
                if partition.is_processed:
                    processed.reports[tp] = OwnerReport(committed.incarnation, committed.offset)
            errors.append((partition.partition_index, error))
        checked.append((topic.name, errors))
    if not accepted:
        turn.out.reply(token, _response(checked))
        return
    turn.shard.groups[group.group_id] = group
    turn.out.write(group.group_id, accepted, OffsetsStored(group, token, checked, partitions, processed))


def refuse_commit(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """Answer every partition with the same error."""
    return _response([(topic.name, [(p.partition_index, error) for p in topic.partitions]) for topic in request.topics])


def _response(
    checked: Checked, error: ErrorCode = ErrorCode.NONE, reported: Set[TopicPartition] = frozenset()
) -> OffsetCommitResponse:
    """``error`` is for partitions that passed their check. ``reported``: partitions whose offset counts as a report."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=index,
                        error_code=error if code is ErrorCode.NONE else code,
                        is_reported=TopicPartition(name, index) in reported,
                    )
                    for index, code in errors
                ],
            )
            for name, errors in checked
        ]
    )


def committing_group(turn: Turn, request: OffsetCommitRequest) -> tuple[Group | None, ErrorCode]:
    """The group, with the committing member's session kept alive, or the error with which the commit is refused."""
    generation_id = request.generation_id
    group = turn.shard.groups.get(request.group_id)
    if group is None:
        # A request without a generation comes from a simple consumer, whose group has only offsets.
        if generation_id >= 0:
            return None, ErrorCode.ILLEGAL_GENERATION
        return Group(request.group_id, turn.shard.memory), ErrorCode.NONE
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return group, ErrorCode.NONE
    error = check_generation(group, request)
    if error is not ErrorCode.NONE:
        return None, error
    if group.state is GroupState.COMPLETING_REBALANCE:
        return None, ErrorCode.REBALANCE_IN_PROGRESS
    group.keep_alive(group.members[request.member_id], turn.now.monotonic_ms)
    return group, ErrorCode.NONE


def _newest_incarnation(shard: Shard, group: Group, tp: TopicPartition, incarnation_of: IncarnationOf) -> int:
    """The latest known incarnation: it may be known only from a stored offset, not from this broker's metadata."""
    committed = shard.durable.offsets_of(group.group_id).get(tp)
    stored = NO_INCARNATION if committed is None else committed.incarnation
    pending = (commit.incarnation for commit in group.pending_commits.get(tp, ()))
    return max(incarnation_of(tp.topic, tp.partition), stored, *pending)


def _newest_commit(shard: Shard, group: Group, tp: TopicPartition) -> StoredOffset | None:
    """The group's last commit for the partition, in flight or in the log."""
    pending = group.pending_commits.get(tp)
    return pending[-1] if pending else shard.durable.offsets_of(group.group_id).get(tp)


def _is_of_deleted_topic(tp: TopicPartition, partition: OffsetCommitRequestPartition, topics: Topics) -> bool:
    is_stock = partition.incarnation == NO_INCARNATION
    return is_stock and topics.is_of_deleted_topic(tp, partition.committed_leader_epoch)


def _check_partition(
    turn: Turn, topic: str, partition: OffsetCommitRequestPartition, topics: Topics, known_incarnation: int
) -> ErrorCode:
    index = partition.partition_index
    if not topics.contains(topic, index):
        ignored = partition.incarnation == NO_INCARNATION and topics.merged_away(topic, index)
        return ErrorCode.NONE if ignored else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if NO_INCARNATION < partition.incarnation < known_incarnation:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if NO_INCARNATION < known_incarnation < partition.incarnation:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if len(partition.committed_metadata or "") > turn.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _committed(
    turn: Turn,
    request: OffsetCommitRequest,
    partition: OffsetCommitRequestPartition,
    known_incarnation: int,
    before: StoredOffset | None,
) -> StoredOffset:
    """The offset as it will be stored. The record version with an expiry has no leader epoch, incarnation or rewinds.

    Values that the record version cannot hold are left out here, so that a successor loads the same state.
    """
    now_ms, retention_ms = turn.now.wall_ms, request.retention_time_ms
    expires = None if retention_ms == NO_RETENTION_TIME else now_ms + retention_ms
    incarnation = max(partition.incarnation, known_incarnation) if expires is None else NO_INCARNATION
    return StoredOffset(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch if expires is None else NO_EPOCH,
        metadata=partition.committed_metadata or "",
        commit_timestamp_ms=now_ms,
        expire_timestamp_ms=expires,
        incarnation=incarnation,
        rewinds=_rewinds(before, partition.committed_offset) if expires is None else 0,
    )


def _rewinds(before: StoredOffset | None, offset: int) -> int:
    """``rewinds`` of a commit of ``offset`` after ``before``: the number of commits so far that lowered the offset."""
    return 0 if before is None else before.rewinds + (offset < before.offset)


@dataclass(frozen=True, slots=True)
class OffsetsStored:
    """A commit's records were written."""

    group: Group
    token: Token
    checked: Checked
    partitions: list[TopicPartition]
    processed: Processed

    def resolve(self, shard: Shard, error: ErrorCode, now: Now) -> CoordinatorOutcome:
        is_stored = error is ErrorCode.NONE
        reported = take_processed(shard, self.group, self.processed) if is_stored else frozenset()
        out = CommitEnded(self.group, self.partitions).resolve(shard, error, now)
        out.reply(self.token, _response(self.checked, offset_append_error(error), reported))
        return out

    def overdue(self, shard: Shard, now: Now) -> tuple[CoordinatorOutcome, Then | None]:
        """The offsets stay pending: a stable fetch must still see them, and they are removed with their group.

        The offsets do not count as a report any more: the member gets an error, and may then change its position.
        """
        out = CoordinatorOutcome()
        out.reply(self.token, _response(self.checked, offset_append_error(ErrorCode.REQUEST_TIMED_OUT)))
        return out, CommitEnded(self.group, self.partitions)


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """A commit is known to be committed or lost. This action answers no request."""

    group: Group
    partitions: list[TopicPartition]

    def resolve(self, shard: Shard, error: ErrorCode, now: Now) -> CoordinatorOutcome:
        for tp in self.partitions:
            self.group.commit_ended(tp)
        turn = Turn(shard, now)
        if is_committed(error):
            on_committed(turn, self.group, self.partitions)
        return turn.out

    def overdue(self, shard: Shard, now: Now) -> tuple[CoordinatorOutcome, Then | None]:
        return CoordinatorOutcome(), self


# ---------------------------------------------------------------- fetch


def fetch_offsets(
    shard: Shard,
    group_id: str,
    topics: list[OffsetFetchRequestTopics] | None,
    known: Topics,
    *,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    """The committed offsets of a group; all of them if ``topics`` is None. A partition without an offset gets -1.

    If the offset's incarnation is earlier than the partition's known incarnation, the offset is not returned, because a
    stock client would apply it to the present partition. If the partition was removed and created again, the group has
    read nothing of the new partition, so the partition's first offset is returned. Without an offset,
    ``auto.offset.reset=latest`` would skip the partition's first records. An offset of a removed partition is kept but
    not returned. ``require_stable`` refuses a partition with a commit in flight (KIP-447): UNSTABLE_OFFSET_COMMIT.
    """
    committed = shard.durable.offsets_of(group_id)
    group = shard.groups.get(group_id)
    pending = group.pending_commits if group is not None and require_stable else {}
    if topics is None:
        of_topic: dict[str, list[int]] = {}
        for tp in sorted(committed):
            if committed_now(tp, committed[tp], known) is not None:
                of_topic.setdefault(tp.topic, []).append(tp.partition)
        wanted = list(of_topic.items())
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in topics]
    result = OffsetFetchResponseGroup(group_id=group_id)
    for name, indexes in wanted:
        partitions = []
        for index in indexes:
            tp = TopicPartition(name, index)
            if tp in pending:
                partitions.append(_no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                found = committed.get(tp)
                partitions.append(_fetched(index, None if found is None else committed_now(tp, found, known)))
        result.topics.append(OffsetFetchResponseTopics(name=name, partitions=partitions))
    return result


def committed_now(tp: TopicPartition, committed: StoredOffset, known: Topics) -> StoredOffset | None:
    """The committed offset, converted to the present incarnation; unchanged if no later incarnation is known."""
    if known.merged_away(*tp):
        return None
    incarnation = known.incarnation(*tp)
    if not NO_INCARNATION < committed.incarnation < incarnation:
        return committed
    base = known.base_offset(*tp)
    if base < 0:
        return None
    return dataclasses.replace(committed, offset=base, leader_epoch=NO_EPOCH, incarnation=incarnation)


def _no_offset(index: int, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, error_code=error)


def _fetched(index: int, committed: StoredOffset | None) -> OffsetFetchResponsePartitions:
    if committed is None:
        return _no_offset(index)
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        incarnation=committed.incarnation,
    )


# ---------------------------------------------------------------- delete


def delete_offsets(turn: Turn, token: Token, request: OffsetDeleteRequest, exists: Exists) -> None:
    """Write tombstones for a group's offsets in topics to which no member subscribes (KIP-496)."""
    group = turn.shard.groups.get(request.group_id)
    if group is None or group.state is GroupState.DEAD:
        turn.out.reply(token, OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
        return
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        turn.out.reply(token, OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
        return
    committed = turn.shard.durable.offsets_of(group.group_id)
    tombstones: list[CoordinatorRecord] = []
    response = OffsetDeleteResponse()
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            error = ErrorCode.NONE
            if not exists(tp.topic, tp.partition):
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif group.state is not GroupState.EMPTY and group.is_subscribed_to(tp.topic):
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif tp in committed or tp in group.pending_commits:
                tombstones.append(OffsetRecord(group.group_id, tp, None))
            results.append(OffsetDeleteResponsePartition(partition_index=tp.partition, error_code=error))
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=results))
    if tombstones:
        turn.out.write(group.group_id, tombstones, OffsetsDeleted(token, response))
    else:
        turn.out.reply(token, response)


@dataclass(frozen=True, slots=True)
class OffsetsDeleted:
    """The tombstones of an OffsetDelete were written."""

    token: Token
    response: OffsetDeleteResponse

    def resolve(self, shard: Shard, error: ErrorCode, now: Now) -> CoordinatorOutcome:
        out = CoordinatorOutcome()
        failed = error is not ErrorCode.NONE
        out.reply(self.token, OffsetDeleteResponse(error_code=offset_append_error(error)) if failed else self.response)
        return out

    def overdue(self, shard: Shard, now: Now) -> tuple[CoordinatorOutcome, Then | None]:
        return self.resolve(shard, ErrorCode.REQUEST_TIMED_OUT, now), None
