"""IncrementalAlterConfigs (44): the active controller decides. This broker's log levels are set here (KIP-412)."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward, refused_resources
from anabranch.protocol.config_resources import ResourceType
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from anabranch.runtime import broker_loggers


def handle(ctx: RequestContext, request: IncrementalAlterConfigsRequest) -> Answer:
    def failed(error: KafkaError) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(
            responses=refused_resources(request, error, AlterConfigsResourceResponse)
        )

    loggers = [each for each in request.resources if each.resource_type == ResourceType.BROKER_LOGGER]
    if not loggers:
        return forward(ctx, request, 0, lambda response: response.responses, lambda _: True, failed)
    if len(loggers) < len(request.resources):
        message = "a request that alters loggers (resource type 8) may not alter other resources"
        return failed(KafkaError(ErrorCode.INVALID_REQUEST, message))
    return IncrementalAlterConfigsResponse(
        responses=[
            broker_loggers.altered(ctx.node.config.broker_id, each, validate_only=request.validate_only)
            for each in loggers
        ]
    )
