"""OffsetFetch (9): the offsets that a group has committed. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequest


def handle(ctx: RequestContext, request: OffsetFetchRequest) -> Answer:
    return ctx.node.groups.offset_fetch(ctx, request)
