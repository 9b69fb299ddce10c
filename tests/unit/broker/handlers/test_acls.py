"""The APIs of access control lists: without an authorizer each entry is refused with SECURITY_DISABLED, as in Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.net.dispatch import HANDLERS
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import ClientConnection, decode_response, encode_response
from anabranch.protocol.generated.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.generated.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from anabranch.protocol.generated.describe_acls import DescribeAclsRequest

NO_CONTEXT: Any = None


def refusals(request: Any, version: int) -> list[int]:
    """The error codes of the response, as a client of this version reads them."""
    key = ApiKey(request.API_KEY)
    answer: Any = HANDLERS[key](NO_CONTEXT, request)
    frames = ClientConnection()
    wire = b"".join(bytes(part) for part in encode_response(key, version, 1, answer))
    frames.buffer()[: len(wire)] = wire
    frames.received(len(wire))
    frame = frames.next_frame()
    assert frame is not None
    read: Any = decode_response(key, version, frame)[1]
    if key is ApiKey.DESCRIBE_ACLS:
        assert read.resources == []
        return [read.error_code]
    return [each.error_code for each in (read.results if key is ApiKey.CREATE_ACLS else read.filter_results)]


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize(
    ("request_", "count"),
    [
        (DescribeAclsRequest(), 1),
        (CreateAclsRequest(creations=[AclCreation(), AclCreation()]), 2),
        (CreateAclsRequest(), 0),
        (DeleteAclsRequest(filters=[DeleteAclsFilter(), DeleteAclsFilter(), DeleteAclsFilter()]), 3),
    ],
)
def test_every_entry_is_refused_because_there_is_no_authorizer(request_: Any, count: int, version: int) -> None:
    assert API[ApiKey(request_.API_KEY)].max_version == 3
    assert refusals(request_, version) == [ErrorCode.SECURITY_DISABLED] * count
