"""ApiVersions (18): the APIs and features of this broker.

The APIs are those in the table of ``dispatch``. An unknown version gets a version 0 answer with UNSUPPORTED_VERSION and
the range of this API alone (KIP-511). Version 3 adds the features (KIP-584): the supported features, and the finalized
features that this broker knows, with their epoch. This project's own clients also get the release of the software.
"""

from __future__ import annotations

import re

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import HEALTH_CHECK
from anabranch.protocol.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.runtime.release import SOFTWARE_NAME, software_version

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(ctx: RequestContext, request: ApiVersionsRequest) -> Answer:
    names = (request.client_software_name, request.client_software_version)
    if ctx.api_version >= 3 and not all(_SOFTWARE.fullmatch(name) for name in names):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    ctx.session.introduce(request.client_software_name)
    failures = ctx.node.background.describe() if request.client_software_name == HEALTH_CHECK else []
    release = software_version() if request.client_software_name == SOFTWARE_NAME else ""
    features = ctx.node.link.features
    return ApiVersionsResponse(
        api_keys=ctx.node.advertised,
        supported_features=features.supported_keys(),
        finalized_features_epoch=features.epoch,
        finalized_features=features.finalized_keys(),
        background_failures=failures,
        software_version=release,
    )


def unsupported(ctx: RequestContext, _request: ApiVersionsRequest) -> Answer:
    own = [api for api in ctx.node.advertised if api.api_key == ApiKey.API_VERSIONS]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
