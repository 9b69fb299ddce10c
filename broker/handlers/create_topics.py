"""CreateTopics (19): the active controller decides. Answered once this broker knows leaders of the new topics."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


def handle(ctx: RequestContext, request: CreateTopicsRequest) -> Answer:
    def visible(response: CreateTopicsResponse) -> bool:
        return request.validate_only or all(
            ctx.node.metadata.has_leaders(topic.name) for topic in response.topics if not topic.error_code
        )

    def failed(error: KafkaError) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)
                for name in dict.fromkeys(topic.name for topic in request.topics)
            ]
        )

    return forward(ctx, request, request.timeout_ms, lambda response: response.topics, visible, failed)
