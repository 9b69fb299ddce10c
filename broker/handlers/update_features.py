"""UpdateFeatures (57): the active controller decides. This broker answers once it has read the new levels (KIP-584)."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.generated.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


def handle(ctx: RequestContext, request: UpdateFeaturesRequest) -> Answer:
    features = ctx.node.link.features

    def shows(response: UpdateFeaturesResponse) -> bool:
        return features.epoch >= response.features_epoch

    return forward(ctx, request, request.timeout_ms, shows=shows, wait_for=features.wait_until)
