"""ElectLeaders (43): the active controller decides.

The request to the controller has the highest version, because its response has an error for the whole request.
"""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest


def handle(ctx: RequestContext, request: ElectLeadersRequest) -> Answer:
    return forward(ctx, request, request.timeout_ms, version=API[ApiKey.ELECT_LEADERS].max_version)
