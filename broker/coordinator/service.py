"""The group coordinator as the broker uses it.

Handlers call one method per API and return what it returns. The broker tells of leadership of the offsets topic's
partitions by ``on_leader`` and ``on_not_leader`` and of deleted partitions by ``on_partitions_deleted``; one task runs
``run``. Nothing else is needed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from broker.coordinator.config import GroupConfig
from broker.coordinator.offsets_log import OffsetsLog, RequestContext, Topics
from broker.deferred import Deferred
from protocol.generated.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from protocol.generated.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from protocol.generated.join_group import JoinGroupRequest, JoinGroupResponse
from protocol.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from protocol.generated.list_groups import ListGroupsRequest, ListGroupsResponse
from protocol.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from protocol.generated.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from protocol.generated.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from protocol.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from protocol.types import TopicPartition
from runtime.env import Clock


class GroupCoordinator:
    """Every group whose partition of ``__consumer_offsets`` this broker leads."""

    def __init__(
        self, config: GroupConfig, clock: Clock, rng: random.Random, log: OffsetsLog, topics: Topics
    ) -> None: ...

    async def run(self) -> None:
        """Load, time out and expire until cancelled."""
        raise NotImplementedError

    def close(self) -> None:
        """Answer every parked request with COORDINATOR_NOT_AVAILABLE and refuse new ones: the broker shuts down."""
        raise NotImplementedError

    def partition_for(self, group_id: str) -> int:
        """The partition of the offsets topic that holds a group: FindCoordinator answers with its leader."""
        raise NotImplementedError

    def on_leader(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the offsets partition from ``leader_epoch`` on: load it. Returns at once."""
        raise NotImplementedError

    def on_not_leader(self, partition: int, leader_epoch: int | None) -> None:
        """This broker follows, or lost the replica (``leader_epoch`` None): drop the partition's groups."""
        raise NotImplementedError

    def on_partitions_deleted(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions left the cluster: tombstone the offsets committed for them."""
        raise NotImplementedError

    def join_group(self, ctx: RequestContext, request: JoinGroupRequest) -> Deferred[JoinGroupResponse]:
        raise NotImplementedError

    def sync_group(self, ctx: RequestContext, request: SyncGroupRequest) -> Deferred[SyncGroupResponse]:
        raise NotImplementedError

    def heartbeat(self, ctx: RequestContext, request: HeartbeatRequest) -> Deferred[HeartbeatResponse]:
        raise NotImplementedError

    def leave_group(self, ctx: RequestContext, request: LeaveGroupRequest) -> Deferred[LeaveGroupResponse]:
        raise NotImplementedError

    def offset_commit(self, ctx: RequestContext, request: OffsetCommitRequest) -> Deferred[OffsetCommitResponse]:
        raise NotImplementedError

    def offset_fetch(self, ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        raise NotImplementedError

    def offset_delete(self, ctx: RequestContext, request: OffsetDeleteRequest) -> Deferred[OffsetDeleteResponse]:
        raise NotImplementedError

    def describe_groups(self, ctx: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        raise NotImplementedError

    def list_groups(self, ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        raise NotImplementedError

    def delete_groups(self, ctx: RequestContext, request: DeleteGroupsRequest) -> Deferred[DeleteGroupsResponse]:
        raise NotImplementedError
