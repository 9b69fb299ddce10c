"""CreateAcls (30): refused with SECURITY_DISABLED, as in Kafka without an authorizer. Skipped: access lists."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.unsupported import NO_AUTHORIZER, NO_AUTHORIZER_CODE
from anabranch.protocol.generated.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


def handle(_ctx: RequestContext, request: CreateAclsRequest) -> Answer:
    results = [AclCreationResult(error_code=NO_AUTHORIZER_CODE, error_message=NO_AUTHORIZER) for _ in request.creations]
    return CreateAclsResponse(results=results)
