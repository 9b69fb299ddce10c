"""CreateTopics (19): the active controller decides. Answered once this broker knows leaders of the new topics."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.generated.create_topics import CreatableTopicResult, CreateTopicsRequest


def handle(ctx: RequestContext, request: CreateTopicsRequest) -> Answer:
    def shows(result: CreatableTopicResult) -> bool:
        return request.validate_only or ctx.node.metadata.has_leaders(result.name)

    return forward(ctx, request, request.timeout_ms, lambda response: response.topics, shows)
