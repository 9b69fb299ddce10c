"""DeleteGroups (42): remove groups without members, with their offsets. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest


def handle(ctx: RequestContext, request: DeleteGroupsRequest) -> Answer:
    return ctx.node.groups.delete_groups(ctx, request)
