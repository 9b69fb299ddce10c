"""OffsetDelete (47): remove a group's offsets of topics that it does not read. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.offset_delete import OffsetDeleteRequest


def handle(ctx: RequestContext, request: OffsetDeleteRequest) -> Answer:
    return ctx.node.groups.answer(ctx, request)
