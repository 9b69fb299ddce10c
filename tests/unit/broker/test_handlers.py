"""Where an API is served: one file for each, named after it and headed by its name and key."""

from __future__ import annotations

import sys

import pytest

from anabranch.broker.dispatch import HANDLERS
from anabranch.protocol.api_keys import API, ApiKey

FORWARDED = {
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ELECT_LEADERS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.UPDATE_FEATURES,
}
"""The active controller's: ``handlers/admin.py`` has them all."""


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: key.name)
def test_the_file_of_an_api_has_its_name(key: ApiKey) -> None:
    handler = HANDLERS[key]
    file = "admin" if key in FORWARDED else key.name.lower()
    assert handler.__module__ == f"anabranch.broker.handlers.{file}"
    heading = sys.modules[handler.__module__].__doc__ or ""
    if key not in FORWARDED:
        assert heading.startswith(f"{API[key].name} ({int(key)})")
        assert handler.__name__ == "handle"
