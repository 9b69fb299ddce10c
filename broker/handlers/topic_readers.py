"""TopicReaders (25302): the groups that read a topic, and their positions. ``broker/coordinator`` decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.generated.topic_readers import TopicReadersRequest


def handle(ctx: RequestContext, request: TopicReadersRequest) -> Answer:
    return ctx.node.groups.topic_readers(request)
