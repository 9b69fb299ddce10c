"""The group APIs: 8, 9, 11-16, 42, 47, 25300, 25302; all of it the coordinator's, see ``broker/coordinator``."""

from __future__ import annotations

from anabranch.broker.request_context import Answer, RequestContext
from anabranch.protocol.generated.consumer_group_position import ConsumerGroupPositionRequest
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest
from anabranch.protocol.generated.describe_groups import DescribeGroupsRequest
from anabranch.protocol.generated.heartbeat import HeartbeatRequest
from anabranch.protocol.generated.join_group import JoinGroupRequest
from anabranch.protocol.generated.leave_group import LeaveGroupRequest
from anabranch.protocol.generated.list_groups import ListGroupsRequest
from anabranch.protocol.generated.offset_commit import OffsetCommitRequest
from anabranch.protocol.generated.offset_delete import OffsetDeleteRequest
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequest
from anabranch.protocol.generated.sync_group import SyncGroupRequest
from anabranch.protocol.generated.topic_readers import TopicReadersRequest


def join_group(ctx: RequestContext, request: JoinGroupRequest) -> Answer:
    return ctx.node.groups.join_group(ctx, request)


def sync_group(ctx: RequestContext, request: SyncGroupRequest) -> Answer:
    return ctx.node.groups.sync_group(ctx, request)


def heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> Answer:
    return ctx.node.groups.heartbeat(ctx, request)


def leave_group(ctx: RequestContext, request: LeaveGroupRequest) -> Answer:
    return ctx.node.groups.leave_group(ctx, request)


def offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> Answer:
    return ctx.node.groups.offset_commit(ctx, request)


def offset_fetch(ctx: RequestContext, request: OffsetFetchRequest) -> Answer:
    return ctx.node.groups.offset_fetch(ctx, request)


def describe_groups(ctx: RequestContext, request: DescribeGroupsRequest) -> Answer:
    return ctx.node.groups.describe_groups(ctx, request)


def list_groups(ctx: RequestContext, request: ListGroupsRequest) -> Answer:
    return ctx.node.groups.list_groups(ctx, request)


def delete_groups(ctx: RequestContext, request: DeleteGroupsRequest) -> Answer:
    return ctx.node.groups.delete_groups(ctx, request)


def offset_delete(ctx: RequestContext, request: OffsetDeleteRequest) -> Answer:
    return ctx.node.groups.offset_delete(ctx, request)


def topic_readers(ctx: RequestContext, request: TopicReadersRequest) -> Answer:
    return ctx.node.groups.topic_readers(request)


def consumer_group_position(ctx: RequestContext, request: ConsumerGroupPositionRequest) -> Answer:
    return ctx.node.groups.consumer_group_position(ctx, request)
