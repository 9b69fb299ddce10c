"""AlterConfigs (33): the active controller decides."""

from __future__ import annotations

from anabranch.broker.forwarding import forward
from anabranch.broker.request_context import Answer, RequestContext
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def handle(ctx: RequestContext, request: AlterConfigsRequest) -> Answer:
    def failed(error: KafkaError) -> AlterConfigsResponse:
        return AlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    error_code=error.code,
                    error_message=error.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ]
        )

    return forward(ctx, request, 0, lambda response: response.responses, lambda _: True, failed)
