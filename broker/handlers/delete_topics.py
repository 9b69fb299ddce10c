"""DeleteTopics (20): the active controller decides. Answered once this broker's metadata does not have the topics."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)


def handle(ctx: RequestContext, request: DeleteTopicsRequest) -> Answer:
    names: list[str | None] = [*request.topic_names, *(topic.name for topic in request.topics)]

    def visible(response: DeleteTopicsResponse) -> bool:
        return not any(topic.name in ctx.node.metadata.topics for topic in response.responses if not topic.error_code)

    def failed(error: KafkaError) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=name, error_code=error.code, error_message=error.message)
                for name in dict.fromkeys(names)
            ]
        )

    return forward(ctx, request, request.timeout_ms, lambda response: response.responses, visible, failed)
