"""LeaveGroup (13): members leave without waiting for their session to end. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.leave_group import LeaveGroupRequest


def handle(ctx: RequestContext, request: LeaveGroupRequest) -> Answer:
    return ctx.node.groups.answer(ctx, request)
