"""SyncGroup (14): the leader brings the assignment, every member takes its own. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request_context import Answer, RequestContext
from anabranch.protocol.generated.sync_group import SyncGroupRequest


def handle(ctx: RequestContext, request: SyncGroupRequest) -> Answer:
    return ctx.node.groups.sync_group(ctx, request)
