"""DescribeGroups (15): state, members and assignments. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.describe_groups import DescribeGroupsRequest


def handle(ctx: RequestContext, request: DescribeGroupsRequest) -> Answer:
    return ctx.node.groups.describe_groups(ctx, request)
