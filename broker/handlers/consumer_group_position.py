"""ConsumerGroupPosition (25300): the positions of a group's members (KIP-253). ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.consumer_group_position import ConsumerGroupPositionRequest


def handle(ctx: RequestContext, request: ConsumerGroupPositionRequest) -> Answer:
    return ctx.node.groups.answer(ctx, request)
