"""FindCoordinator: a transactional client gets a final error, and an unknown key type is an invalid request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.handlers import find_coordinator
from anabranch.broker.request.unsupported import NO_TRANSACTIONS
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.topic_names import OFFSETS_TOPIC

VERSIONS = range(1, API[ApiKey.FIND_COORDINATOR].max_version + 1)


def find(version: int, key_type: int) -> list[tuple[int, str | None]]:
    """The error and its message for each key."""
    ctx: Any = SimpleNamespace(
        api_version=version, node=SimpleNamespace(metadata=SimpleNamespace(topics={OFFSETS_TOPIC: None}))
    )
    if version < 4:
        found: Any = find_coordinator.handle(ctx, FindCoordinatorRequest(key="one", key_type=key_type))
        return [(found.error_code, found.error_message)]
    request = FindCoordinatorRequest(coordinator_keys=["one", "two"], key_type=key_type)
    found = find_coordinator.handle(ctx, request)
    return [(each.error_code, each.error_message) for each in found.coordinators]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transactional_client_gets_a_final_error(version: int) -> None:
    refused = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    assert find(version, 1) == [refused] * (2 if version >= 4 else 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("key_type", [2, -1])
def test_an_unknown_key_type_is_an_invalid_request(version: int, key_type: int) -> None:
    assert {code for code, _ in find(version, key_type)} == {ErrorCode.INVALID_REQUEST}
