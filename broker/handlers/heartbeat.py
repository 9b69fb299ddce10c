"""Heartbeat (12): a member shows that it is alive, and is told of a rebalance. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.heartbeat import HeartbeatRequest


def handle(ctx: RequestContext, request: HeartbeatRequest) -> Answer:
    return ctx.node.groups.answer(ctx, request)
