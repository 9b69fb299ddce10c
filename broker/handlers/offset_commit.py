"""OffsetCommit (8): store a group's offsets. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.offset_commit import OffsetCommitRequest


def handle(ctx: RequestContext, request: OffsetCommitRequest) -> Answer:
    return ctx.node.groups.answer(ctx, request)
