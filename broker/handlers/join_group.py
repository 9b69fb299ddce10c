"""JoinGroup (11): become a member of a group, or of its next generation. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.join_group import JoinGroupRequest


def handle(ctx: RequestContext, request: JoinGroupRequest) -> Answer:
    return ctx.node.groups.answer(ctx, request)
