"""IncrementalAlterConfigs (44): the active controller decides. This broker's log levels are set here (KIP-412)."""

from __future__ import annotations

from anabranch.broker.log.slices import at_once
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.config_resources import ResourceType
from anabranch.protocol.error_responses import error_response_in_steps
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.incremental_alter_configs import IncrementalAlterConfigsRequest
from anabranch.runtime import broker_loggers
from anabranch.runtime.pauses import with_pauses


def handle(ctx: RequestContext, request: IncrementalAlterConfigsRequest) -> Answer:
    loggers = sum(each.resource_type == ResourceType.BROKER_LOGGER for each in request.resources)
    if not loggers:
        return forward(ctx, request, results=lambda response: response.responses)
    if loggers == len(request.resources):
        steps = broker_loggers.altered_in_steps(ctx.node.config.broker_id, request)
    else:
        message = "a request that alters loggers (resource type 8) may not alter other resources"
        steps = error_response_in_steps(ctx.api_key, request, ErrorCode.INVALID_REQUEST, message)
    if len(request.resources) == 1:  # at once, because the connection's next request may ask for the level
        return at_once(steps)
    return ctx.node.later(
        lambda: with_pauses(steps),
        lambda error: with_pauses(error_response_in_steps(ctx.api_key, request, error.code, error.message)),
    )
