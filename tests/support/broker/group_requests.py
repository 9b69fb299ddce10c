"""Requests of the members of a group and about its offsets, as most tests of groups send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionRequest,
    ConsumerGroupPositionRequestPartition,
    ConsumerGroupPositionRequestTopic,
)
from anabranch.protocol.generated.heartbeat import HeartbeatRequest
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.generated.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from anabranch.protocol.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from anabranch.protocol.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

GROUP = "g"
Partition = tuple[str, int]


def join(
    member_id: str = "",
    *,
    group: str = GROUP,
    instance: str | None = None,
    session_ms: int = 10_000,
    rebalance_ms: int = 20_000,
    protocol_type: str = "consumer",
    protocols: Sequence[str] = ("range",),
    metadata: bytes = b"",
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in protocols],
    )


def sync(
    member_id: str,
    generation: int,
    assignments: Mapping[str, bytes] | None = None,
    *,
    group: str = GROUP,
    instance: str | None = None,
    **fields: Any,
) -> SyncGroupRequest:
    assigned = [SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in (assignments or {}).items()]
    request = SyncGroupRequest(group_id=group, generation_id=generation, member_id=member_id, assignments=assigned)
    return _with(request, group_instance_id=instance, **fields)


def heartbeat(
    member_id: str, generation: int, *, group: str = GROUP, instance: str | None = None, polls_positions: bool = False
) -> HeartbeatRequest:
    request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
    return _with(request, group_instance_id=instance, polls_positions=polls_positions)


def leave(*members: tuple[str, str | None], group: str = GROUP, member_id: str = "") -> LeaveGroupRequest:
    """Each member as its id and its instance. Versions 0 to 2 have ``member_id`` instead."""
    identities = [MemberIdentity(member_id=m, group_instance_id=i) for m, i in members]
    return LeaveGroupRequest(group_id=group, member_id=member_id, members=identities)


def commit(
    offsets: Mapping[Partition, int],
    member_id: str = "",
    generation: int = -1,
    *,
    group: str = GROUP,
    instance: str | None = None,
    retention_ms: int = -1,
    **of_partition: Any,
) -> OffsetCommitRequest:
    """Offsets by partition; ``of_partition`` has further fields of each of them."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        asked = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        topics.setdefault(topic, []).append(_with(asked, **of_partition))
    return OffsetCommitRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
    )


def fetch_offsets(*partitions: int, topics: Sequence[str] = ("t",), group: str = GROUP) -> OffsetFetchRequest:
    """Before version 8: the same partitions of each topic."""
    asked = [OffsetFetchRequestTopic(name=name, partition_indexes=list(partitions or (0,))) for name in topics]
    return OffsetFetchRequest(group_id=group, topics=asked)


def fetch_stable_offsets(*partitions: int) -> OffsetFetchRequest:
    """From version 8 on: of topic ``t``, without offsets that have a pending commit (KIP-447)."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=list(partitions))]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)], require_stable=True)


def fetch_all_offsets(*groups: str) -> OffsetFetchRequest:
    """From version 8 on: every offset of each group."""
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups])


def delete_offsets(*partitions: Partition, group: str = GROUP) -> OffsetDeleteRequest:
    topics = [
        OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
        for topic, index in partitions
    ]
    return OffsetDeleteRequest(group_id=group, topics=topics)


def poll(
    member_id: str,
    generation: int,
    *wants: Partition,
    reports: Mapping[Partition, int] | None = None,
    awaited: Mapping[Partition, int] | None = None,
    incarnation: int = -1,
    max_wait_ms: int = 60_000,
    group: str = GROUP,
    instance: str | None = None,
    number: int = -1,
) -> ConsumerGroupPositionRequest:
    """Request the positions of ``wants``, and report the positions in ``reports``.

    ``awaited`` has the offsets that held-back records wait for.
    """
    topics: dict[str, list[ConsumerGroupPositionRequestPartition]] = {}
    for topic, index in dict.fromkeys([*wants, *(reports or {})]):
        topics.setdefault(topic, []).append(
            ConsumerGroupPositionRequestPartition(
                partition_index=index,
                incarnation=incarnation,
                need_position=(topic, index) in wants,
                position=(reports or {}).get((topic, index), -1),
                awaited_until=(awaited or {}).get((topic, index), -1),
            )
        )
    return ConsumerGroupPositionRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        max_wait_ms=max_wait_ms,
        poll_number=number,
        topics=[ConsumerGroupPositionRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
    )


def _with(message: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        assert hasattr(message, name), name
        setattr(message, name, value)
    return message
