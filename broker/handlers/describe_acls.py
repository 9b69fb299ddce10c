"""DescribeAcls (29): refused with SECURITY_DISABLED, as in Kafka without an authorizer. Skipped: access lists."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.unsupported import NO_AUTHORIZER, NO_AUTHORIZER_CODE
from anabranch.protocol.generated.describe_acls import DescribeAclsRequest, DescribeAclsResponse


def handle(_ctx: RequestContext, _request: DescribeAclsRequest) -> Answer:
    return DescribeAclsResponse(error_code=NO_AUTHORIZER_CODE, error_message=NO_AUTHORIZER, resources=[])
