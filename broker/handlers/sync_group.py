"""SyncGroup (14): the leader sends the assignment, every member gets its own part. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.sync_group import SyncGroupRequest


def handle(ctx: RequestContext, request: SyncGroupRequest) -> Answer:
    return ctx.node.groups.answer(ctx, request)
