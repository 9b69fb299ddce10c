"""AlterConfigs (33): the active controller decides."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.generated.alter_configs import AlterConfigsRequest


def handle(ctx: RequestContext, request: AlterConfigsRequest) -> Answer:
    return forward(ctx, request, results=lambda response: response.responses)
