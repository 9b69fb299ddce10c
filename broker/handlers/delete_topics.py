"""DeleteTopics (20): the active controller decides. Answered once this broker's metadata does not have the topics."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.generated.delete_topics import DeletableTopicResult, DeleteTopicsRequest


def handle(ctx: RequestContext, request: DeleteTopicsRequest) -> Answer:
    def shows(result: DeletableTopicResult) -> bool:
        return result.name not in ctx.node.metadata.topics

    return forward(ctx, request, request.timeout_ms, lambda response: response.responses, shows)
