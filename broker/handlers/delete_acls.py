"""DeleteAcls (31): refused with SECURITY_DISABLED, as in Kafka without an authorizer. Skipped: access lists."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.unsupported import NO_AUTHORIZER, NO_AUTHORIZER_CODE
from anabranch.protocol.generated.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


def handle(_ctx: RequestContext, request: DeleteAclsRequest) -> Answer:
    results = [
        DeleteAclsFilterResult(error_code=NO_AUTHORIZER_CODE, error_message=NO_AUTHORIZER) for _ in request.filters
    ]
    return DeleteAclsResponse(filter_results=results)
