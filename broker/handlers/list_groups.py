"""ListGroups (16): the groups of this coordinator. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.list_groups import ListGroupsRequest


def handle(ctx: RequestContext, request: ListGroupsRequest) -> Answer:
    return ctx.node.groups.list_groups(ctx, request)
