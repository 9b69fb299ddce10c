"""CreatePartitions (37): the active controller decides. Answered once this broker's metadata has all partitions."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


def handle(ctx: RequestContext, request: CreatePartitionsRequest) -> Answer:
    wanted = {topic.name: topic.count for topic in request.topics}

    def visible(response: CreatePartitionsResponse) -> bool:
        metadata = ctx.node.metadata
        return request.validate_only or all(
            (metadata.partition_count(result.name) or 0) >= wanted[result.name] and metadata.has_leaders(result.name)
            for result in response.results
            if not result.error_code
        )

    def failed(error: KafkaError) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message)
                for name in wanted
            ]
        )

    return forward(ctx, request, request.timeout_ms, lambda response: response.results, visible, failed)
