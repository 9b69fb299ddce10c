"""AlterConfigs (33): the active controller decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward, refused_resources
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def handle(ctx: RequestContext, request: AlterConfigsRequest) -> Answer:
    def failed(error: KafkaError) -> AlterConfigsResponse:
        return AlterConfigsResponse(responses=refused_resources(request, error, AlterConfigsResourceResponse))

    return forward(ctx, request, 0, lambda response: response.responses, lambda _: True, failed)
